//! Options that an operation has no use for are refused, and all others act.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{PerfFile, aqueduct, perf, run, temporary};

/// Every operation, with what it needs.
const OPERATIONS: [(&str, &[&str]); 32] = [
    ("put", &[]),
    ("get", &[]),
    ("ll8", &[]),
    ("ll16", &[]),
    ("ll128", &[]),
    ("signal", &[]),
    ("all-reduce", &[]),
    ("all-gather", &[]),
    ("reduce-scatter", &[]),
    ("all-to-all", &[]),
    ("broadcast", &[]),
    ("reduce", &[]),
    ("gather", &[]),
    ("scatter", &[]),
    ("send-recv", &[]),
    ("all-to-all-v", &[]),
    ("all-gather-v", &[]),
    ("reduce-scatter-v", &[]),
    ("point-to-point", &[]),
    ("write", &["-t", "CudaIpc"]),
    ("read", &["-t", "CudaIpc"]),
    ("write-lat", &["-t", "CudaIpc"]),
    ("flush", &["-t", "CudaIpc"]),
    ("port-put", &["-t", "CudaIpc"]),
    ("port-lat", &["-t", "CudaIpc"]),
    ("fifo", &[]),
    ("barrier", &[]),
    ("startup", &[]),
    ("bootstrap", &["-n", "2"]),
    ("message", &[]),
    ("message-rate", &[]),
    ("message-read", &[]),
];

/// A value of each option other than its default, and the parameter of the header that shows it.
const VALUES: [(&str, &str, Shown); 35] = [
    ("min-bytes", "64", Shown::Parameter("min_bytes", "64")),
    ("max-bytes", "192", Shown::Parameter("max_bytes", "192")),
    ("step-factor", "3", Shown::Parameter("step_factor", "3")),
    ("step-bytes", "128", Shown::Parameter("step_bytes", "128")),
    ("iterations", "7", Shown::Parameter("iterations", "7")),
    ("warmup", "2", Shown::Parameter("warmup", "2")),
    ("check", "0", Shown::Parameter("check", "0")),
    ("check-by", "device", Shown::Parameter("checked", "\"by the device, samples by the host\"")),
    ("op", "max", Shown::Parameter("reduction", "\"max\"")),
    ("datatype", "half", Shown::Parameter("datatype", "\"f16\"")),
    ("graph", "2", Shown::Parameter("graph", "2")),
    ("bidirectional", "", Shown::Parameter("bidirectional", "true")),
    ("root", "1", Shown::Parameter("root", "1")),
    ("local-register", "0", Shown::Parameter("local_register", "false")),
    ("explain", "", Shown::Parameter("explain", "true")),
    ("batch", "3", Shown::Parameter("batch", "3")),
    ("duration", "50ms", Shown::Parameter("duration_s", "0.05")),
    ("stats", "", Shown::Table),
    ("json", "", Shown::File),
    ("csv", "", Shown::File),
    ("dump", "", Shown::File),
    ("transport", "CudaIpc", Shown::Parameter("transport", "\"CudaIpc\"")),
    ("memory", "host", Shown::Parameter("memory", "\"host\"")),
    ("peer-memory", "host", Shown::Parameter("peer_memory", "\"host\"")),
    ("window", "5", Shown::Parameter("window", "5")),
    ("into", "shared", Shown::Parameter("into", "\"shared\"")),
    ("connections", "2", Shown::Parameter("connections", "2")),
    ("pattern", "bidirectional", Shown::Parameter("pattern", "\"bidirectional\"")),
    ("mix", "64,128", Shown::Parameter("mix", "[64,128]")),
    ("rounds", "2", Shown::Parameter("rounds", "2")),
    ("spin", "", Shown::Parameter("spin", "true")),
    ("fenced", "", Shown::Parameter("fenced", "true")),
    ("threads", "2", Shown::Threads),
    ("fifo-size", "64", Shown::Parameter("fifo_size", "64")),
    ("triggers", "40", Shown::Parameter("triggers", "40")),
];

/// Options of one operation only.
const OTHERS: [(&str, &str, &str, Shown); 9] = [
    ("bootstrap", "ranks", "3", Shown::Parameter("ranks", "[3]")),
    ("bootstrap", "repeat", "2", Shown::Parameter("repeat", "2")),
    // It shows only if it passes.
    ("bootstrap", "timeout", "100", Shown::Nothing),
    ("message", "transport", "shm", Shown::Parameter("transport", "\"shm\"")),
    ("message-rate", "transport", "shm", Shown::Parameter("transport", "\"shm\"")),
    ("message-read", "transport", "shm", Shown::Parameter("transport", "\"shm\"")),
    ("message", "timeout", "100", Shown::Nothing),
    ("message-rate", "timeout", "100", Shown::Nothing),
    ("message-read", "timeout", "100", Shown::Nothing),
];

/// Where an option that acts is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    Parameter(&'static str, &'static str),
    /// In columns that the usual table lacks.
    Table,
    /// The file is there.
    File,
    /// In the rows.
    Threads,
    Nothing,
}

/// The options that do nothing, by operation.
fn idle(operation: &str) -> &'static [&'static str] {
    match operation {
        "put" | "get" => &["op", "datatype", "root", "local-register", "explain"],
        "ll8" | "ll16" | "ll128" => {
            &["op", "datatype", "graph", "bidirectional", "root", "local-register", "explain"]
        }
        "signal" => &[
            "min-bytes",
            "max-bytes",
            "step-factor",
            "step-bytes",
            "check",
            "check-by",
            "op",
            "datatype",
            "graph",
            "bidirectional",
            "root",
            "local-register",
            "explain",
        ],
        "all-reduce" | "reduce-scatter" => &["bidirectional", "root"],
        "reduce-scatter-v" => &["bidirectional", "root", "local-register", "explain"],
        "all-gather" | "all-to-all" | "send-recv" => &["op", "bidirectional", "root"],
        "all-to-all-v" | "all-gather-v" | "point-to-point" => {
            &["op", "bidirectional", "root", "local-register", "explain"]
        }
        "broadcast" | "gather" | "scatter" => &["op", "bidirectional"],
        "reduce" => &["bidirectional"],
        "write-lat" | "flush" => &["window", "connections", "pattern", "mix"],
        "message" | "message-rate" => &["window", "into"],
        _ => &[],
    }
}

/// The long names of the options that `--help` lists.
fn options(operation: &str) -> BTreeSet<String> {
    // Operations that share options have one list.
    let one = OPERATIONS[..13].iter().any(|(name, _)| *name == operation);
    let arguments: &[&str] = if one { &["perf", "--help"] } else { &["perf", operation, "--help"] };
    let help = run(&mut aqueduct(arguments)).exited(0).stdout;
    let named = |line: &str| {
        let line = line.trim_start();
        let at = line.find("--").filter(|_| line.starts_with('-'))?;
        let name: String =
            line[at + 2..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        (!["help", "version"].contains(&name.as_str())).then_some(name)
    };
    help.lines().filter_map(named).collect()
}

fn value(operation: &str, option: &str) -> (&'static str, Shown) {
    let others = OTHERS
        .iter()
        .filter(|(of, ..)| *of == operation)
        .map(|&(_, name, value, shown)| (name, value, shown));
    let all = others.chain(VALUES);
    let found = all.into_iter().find(|(name, ..)| *name == option);
    let (_, value, shown) =
        found.unwrap_or_else(|| panic!("perf {operation} --{option}: nothing is known of it"));
    (value, shown)
}

#[test]
fn every_option_of_every_operation_acts_or_is_refused() {
    for (operation, needed) in OPERATIONS {
        let options = options(operation);
        assert!(idle(operation).iter().all(|option| options.contains(*option)), "{operation}: {options:?}");
        // Options that exclude each other take turns.
        let mut rounds: [Vec<&str>; 3] = Default::default();
        for option in &options {
            let (value, _) = value(operation, option);
            let given = format!("--{option}");
            let mut arguments = vec!["perf", operation];
            arguments.extend(needed.iter().filter(|_| option != "transport" && option != "ranks"));
            arguments.push(&given);
            arguments.extend((!value.is_empty()).then_some(value));
            if idle(operation).contains(&option.as_str()) {
                let words = format!("aqueduct: --{option} does nothing in perf {operation}: ");
                let outcome = run(&mut aqueduct(&arguments)).exited(2).says(&[&words]);
                assert_eq!(
                    (outcome.stdout.as_str(), outcome.stderr.lines().count()),
                    ("", 1),
                    "{outcome:#?}"
                );
                continue;
            }
            rounds[match option.as_str() {
                "step-bytes" | "duration" | "check" | "stats" | "memory" => 1,
                "mix" => 2,
                _ => 0,
            }]
            .push(option);
        }
        for acting in rounds.into_iter().filter(|acting| !acting.is_empty()) {
            act(operation, needed, &acting);
        }
    }
}

/// Runs the operation with these options together, and asserts that each of them shows.
fn act(operation: &str, needed: &[&str], options: &[&str]) {
    let path = temporary("acts.jsonl");
    let files: Vec<_> = ["csv", "dump"].map(temporary).into();
    let mut arguments = vec![operation.to_owned()];
    let given = |name: &str| options.contains(&name);
    let needed = needed.iter().filter(|_| !given("transport") && !given("ranks"));
    arguments.extend(needed.map(|word| (*word).to_owned()));
    // Small sizes where there are sizes, unless they are given or excluded.
    let sized = !["signal", "fifo", "barrier", "startup", "bootstrap"].contains(&operation) && !given("mix");
    if sized && !given("min-bytes") {
        arguments.extend(["-b", "64", "-e", "192"].map(str::to_owned));
    }
    // Few calls: on a busy machine each one of two spinning processes waits for a turn on a core.
    if operation.starts_with("message") && !given("iterations") {
        arguments.extend(["-n", "7"].map(str::to_owned));
    }
    for option in options {
        let (value, shown) = value(operation, option);
        let value = match (*option, shown) {
            ("json", _) => continue,
            ("csv", _) => files[0].to_str().unwrap(),
            ("dump", _) => files[1].to_str().unwrap(),
            _ => value,
        };
        arguments.push(format!("--{option}"));
        arguments.extend((!value.is_empty()).then(|| value.to_owned()));
    }
    arguments.extend(["--json".to_owned(), path.to_str().unwrap().to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match operation {
        // They start their processes themselves.
        "bootstrap" | "message" | "message-rate" | "message-read" => {
            run(&mut aqueduct(&[&["perf"], &arguments[..]].concat()))
        }
        _ => perf("2", &arguments),
    };
    let outcome = outcome.exited(0);
    let file = PerfFile::parse(&std::fs::read_to_string(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    for option in options {
        let (_, shown) = value(operation, option);
        match shown {
            Shown::Parameter(name, expected) => {
                let seen = file.header["parameters"].get(name).unwrap_or(&Value::Null).to_string();
                assert_eq!(
                    seen.trim_matches('"'),
                    expected.trim_matches('"'),
                    "perf {arguments:?}: --{option}"
                );
            }
            Shown::Table => {
                assert!(outcome.stdout.contains(" p99.9 "), "perf {arguments:?}: {}", outcome.stdout)
            }
            Shown::Threads => assert_eq!(file.rows[0]["threads"], 2, "perf {arguments:?}"),
            Shown::File | Shown::Nothing => {}
        }
    }
    for (option, path) in ["csv", "dump"].into_iter().zip(&files) {
        assert_eq!(std::fs::remove_file(path).is_ok(), given(option), "perf {arguments:?}: --{option}");
    }
    effects(&file, given, &arguments);
}

/// A parameter that is only repeated would not act: the rows show the rest.
fn effects(file: &PerfFile, given: impl Fn(&str) -> bool, arguments: &[&str]) {
    let ours: Vec<&Value> = file.rows.iter().filter(|row| row["series"] == "measured").collect();
    let all = |name: &str, expected: Value| {
        assert!(ours.iter().all(|row| row[name] == expected), "{name}: {arguments:?}")
    };
    if given("datatype") {
        all("datatype", "f16".into());
    }
    if given("op") {
        all("reduction", "max".into());
    }
    if given("check") {
        all("wrong", Value::Null);
    }
    if given("mix") {
        all("sizes", "64+128".into());
    }
    if given("rounds") {
        all("samples", 2.into());
    }
    if given("triggers") {
        all("count", 40.into());
    }
    if given("iterations") && given("batch") {
        // Calls of a sample: replays of graphs of two, windows of five, single ones.
        let each = if given("graph") {
            6
        } else if given("window") {
            15
        } else {
            3
        };
        all("calls_per_sample", each.into());
        all("samples", 3.into());
    }
    if given("min-bytes") {
        // Two ranks' parts of variable sizes are one and two thirds of whole elements.
        let least = if arguments[0].ends_with("-v") || arguments[0] == "point-to-point" { 60 } else { 64 };
        let step = if given("step-factor") { vec![least, 192] } else { vec![least] };
        let sizes: BTreeSet<u64> =
            ours.iter().filter_map(|row| row["size_bytes"].as_u64()).filter(|&size| size > 0).collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), step, "{arguments:?}");
    }
    if given("bidirectional") {
        assert!(
            ours.iter()
                .all(|row| row["bus_bandwidth_gb_s"].as_f64() > row["algorithm_bandwidth_gb_s"].as_f64())
        );
    }
}

#[test]
fn what_an_option_does_may_depend_on_others() {
    let write = ["write", "-t", "CudaIpc"];
    for (arguments, words) in [
        (
            &["put", "-c", "0", "--check-by", "host"][..],
            "--check-by does nothing in perf put: with --check 0 nothing is",
        ),
        (&["all-reduce", "-c", "0", "--check-by", "auto"], "--check-by does nothing in perf all-reduce: "),
        (
            &["flush", "-t", "Ethernet", "-c", "0", "--check-by", "host"],
            "--check-by does nothing in perf flush: ",
        ),
        (
            &["write", "-t", "CudaIpc", "-m", "host", "--check-by", "device"],
            "data in host memory is always made",
        ),
        (
            &["port-lat", "-t", "Ethernet", "--fenced"],
            "--fenced does nothing in perf port-lat: it changes the bare loop",
        ),
        (&["ll8", "-c", "5"], "--check does nothing in perf ll8: it checks once"),
        (
            &["put", "--stats", "-J", "-"],
            "--stats does nothing in perf put: standard output belongs to a file",
        ),
        (&["fifo", "--stats", "--csv", "-"], "--stats does nothing in perf fifo: "),
        (&["put", "-f", "3", "-i", "8"], "cannot be used with"),
        (&["write", "-t", "CudaIpc", "--mix", "8", "-f", "3"], "cannot be used with"),
    ] {
        run(&mut aqueduct(&[&["perf"], arguments].concat())).exited(2).says(&[words]);
    }
    let small = ["-b", "64", "-e", "64", "-n", "1", "-w", "0"];
    let half = ["-m", "host", "--peer-memory", "device", "--check-by", "host"];
    perf("2", &[&write[..], &half, &small].concat()).exited(0);
    perf("2", &[&["put", "-i", "8"], &small[..]].concat()).exited(0);
}

#[test]
fn more_messages_than_there_are_flags() {
    let messages = |words: &[&str]| run(&mut aqueduct_pair(&[&["perf"], words].concat()));
    for operation in ["ll8", "ll16", "signal"] {
        let outcome = messages(&[operation, "-n", "4294967295", "-w", "4000000000"]).exited(2);
        outcome.says(&["its ", " rows need more; use "]);
    }
    let outcome = messages(&["ll8", "-b", "8", "-e", "8", "-n", "4294967295", "-w", "0"]).exited(2);
    // Five samples, each with 8 spare flags.
    outcome.says(&["use at most -n 4294967250\n"]);
    let outcome = messages(&["ll16", "-b", "8", "-e", "8", "-n", "4294967295", "-w", "0"]).exited(2);
    outcome.says(&["use at most -n 2147483605\n"]);
    messages(&["ll8", "-w", "4294967295"]).exited(2).says(&["use a smaller --warmup"]);
}

/// Two ranks of the command.
fn aqueduct_pair(arguments: &[&str]) -> std::process::Command {
    aqueduct(&[&["run", "-n", "2", "--", "aqueduct"], arguments].concat())
}
