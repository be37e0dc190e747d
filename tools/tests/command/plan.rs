//! `aqueduct plan`: what it prints and how it exits.

use std::path::{Path, PathBuf};

use crate::support::{Outcome, aqueduct, run, script, start, temporary};

/// Two ranks exchange their inputs as packets and add them.
fn one_shot() -> String {
    let gpu = |rank: u32| {
        let peer = 1 - rank;
        format!(
            r#"{{"id":{rank},"input_chunks":1,"output_chunks":1,"scratch_chunks":2,
            "channels":[{{"channel_type":"memory","connected_to":[{peer}]}}],
            "remote_buffers":[{{"rank":{peer},"type":"s","access_channel_types":["memory"]}}],
            "threadblocks":[{{"id":0,"channels":[{{"channel_type":"memory","channel_ids":[0]}}],
            "remote_buffer_refs":[{{"access_channel_type":"memory","remote_buffer_ids":[0]}}],
            "ops":[{{"name":"ppkt","channel_type":"memory","src_buff":[{{"type":"i","index":0,"size":1}}],
                     "dst_buff":[{{"buffer_id":0,"index":{rank},"size":1}}]}},
                   {{"name":"repkt","reduce_op":"sum",
                     "src_buff":[{{"type":"i","index":0,"size":1}},{{"type":"s","index":{peer},"size":1}}],
                     "dst_buff":[{{"type":"o","index":0,"size":1}}]}}]}}]}}"#
        )
    };
    let head = r#""name":"pair","collective":"allreduce","protocol":"LL","inplace":false,"use_double_scratch_buffer":true"#;
    format!("{{{head},\"gpus\":[{},{}]}}", gpu(0), gpu(1))
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("aqueduct-plan-{}-{name}.json", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn right_and_wrong_plans() {
    let right = file("right", &one_shot());
    let wrong =
        file("wrong", &one_shot().replace("\"type\":\"s\",\"index\":0", "\"type\":\"s\",\"index\":1"));
    let torn = file("torn", &one_shot()[..100]);
    let [right, wrong, torn] = [&right, &wrong, &torn].map(|path| path.to_str().unwrap());
    run(&mut aqueduct(&["plan", "check", right])).exited(0).prints(&["right: 2 ranks, 4 operations"]);
    run(&mut aqueduct(&["plan", "check", right, wrong]))
        .exited(1)
        .prints(&["right: 2 ranks", "deadlock: rank 1 block 0 operation 1: waits for ever for packets"]);
    run(&mut aqueduct(&["plan", "check", torn])).exited(1).says(&["line ", "column "]);
    // A file that is there and no text is a wrong plan, too.
    let noise = file("noise", "");
    std::fs::write(&noise, b"{\"name\": \"\xff\"}").unwrap();
    let noise = noise.to_str().unwrap();
    run(&mut aqueduct(&["plan", "check", noise])).exited(1).says(&["byte 10 is no UTF-8 text"]);
    run(&mut aqueduct(&["plan", "show", noise])).exited(1).says(&["byte 10 is no UTF-8 text"]);
    run(&mut aqueduct(&["plan", "check", "/nonexistent", wrong]))
        .exited(2)
        .says(&["/nonexistent: No such file"]);
    run(&mut aqueduct(&["plan", "check"])).exited(2);
    run(&mut aqueduct(&["plan", "show", right])).exited(0).prints(&[
        "pair: allreduce of 2 ranks, out of place",
        "    0: move input[0] -> rank 1 scratch[0] packets",
        "    1: sum input[0], scratch[1] packets -> output[0]",
    ]);
    run(&mut aqueduct(&["plan", "show", right, "--after", "replicate", "--instances", "2"]))
        .exited(0)
        .prints(&[
            "rank 0: 2 input, 2 output, 4 scratch chunks",
            "  block 1",
            "    0: move input[1] -> rank 1 scratch[1] packets",
        ]);
    run(&mut aqueduct(&["plan", "show", right, "--after", "fuse", "--policy", "none"])).exited(0);
    run(&mut aqueduct(&["plan", "show", right, "--after", "nothing"]))
        .exited(2)
        .says(&["pipeline, sync, fuse, replicate"]);
    run(&mut aqueduct(&["plan", "show", right, "--instances", "2"])).exited(2).says(&["--after"]);
    run(&mut aqueduct(&["plan", "show", right, "--after", "pipeline", "--slice", "64K"])).exited(0).prints(
        &[
            "    0: loop over 1 chunks by 65536 bytes",
            "        0: move input[0] -> rank 1 scratch[0] packets",
        ],
    );
    run(&mut aqueduct(&["plan", "show", right, "--after", "pipeline", "--slice", "100"]))
        .exited(1)
        .says(&["slices of 100 bytes; use a multiple of 16"]);
    run(&mut aqueduct(&["plan", "show", right, "--after", "replicate", "--instances", "0"]))
        .exited(1)
        .says(&["a plan of no instances"]);
    let expected = ["pair: 4 orders of 3 calls with 100 elements per rank: every element right"];
    run(&mut aqueduct(&["plan", "simulate", right, "-e", "100", "--seeds", "4"])).exited(0).prints(&expected);
    run(&mut aqueduct(&["plan", "simulate", wrong])).exited(1).prints(&["deadlock: ", "waits for packets"]);
    for path in [right, wrong, torn] {
        std::fs::remove_file(path).unwrap();
    }
}

/// The commands with which docs/plans.md begins, as they stand there.
#[test]
fn the_first_commands_of_the_document_work() {
    let page = include_str!("../../../docs/plans.md");
    let commands = page.split("## Begin here").nth(1).and_then(|rest| rest.split("```").nth(1));
    let commands = commands.and_then(|block| block.strip_prefix("sh\n")).expect("a block of commands");
    assert_eq!(commands.lines().count(), 5, "{commands}");
    let folder = temporary("plans");
    std::fs::create_dir(&folder).unwrap();
    let outcome = run(script(&format!("set -e; {commands}")).current_dir(&folder)).exited(0);
    std::fs::remove_dir_all(&folder).unwrap();
    outcome.prints(&[
        "p.json: right: 2 ranks, ",
        "allreduce of 2 ranks",
        "every element right",
        "     1048576 ",
        "# Out of bounds values : 0 OK",
    ]);
}

/// Of a collective that nobody knows, results are compared with the simulator's, also where no operation writes and where the output is longer
/// than the input.
#[test]
fn plans_of_ones_own_are_checked() {
    let plan = r#"{"name": "spread", "collective": "spread", "protocol": "Simple", "inplace": false, "gpus": [
{"id": 0, "input_chunks": 1, "output_chunks": 3, "scratch_chunks": 0, "channels": [], "remote_buffers": [], "semaphores": [],
 "threadblocks": [{"id": 0, "channels": [], "remote_buffer_refs": [], "ops": [
  {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 1}], "dst_buff": [{"type": "o", "index": 2, "size": 1}]}]}]}]}"#;
    let path = file("spread", plan);
    let name = path.to_str().unwrap();
    let program = env!("CARGO_BIN_EXE_aqueduct");
    let command =
        ["run", "-n", "1", "--", program, "plan", "run", name, "-b", "12K", "-e", "3M", "-f", "256"];
    let outcome = run(&mut aqueduct(&command)).exited(0);
    std::fs::remove_file(path).unwrap();
    let outcome =
        outcome.prints(&["against the simulator up to 262144 bytes", "# Out of bounds values : 0 OK"]);
    let wrong = |bytes: &str| {
        let of = |line: &&str| line.contains(" plan ") && line.contains(&format!(" {bytes} "));
        let line = outcome.stdout.lines().find(of).unwrap();
        line.split_whitespace().rev().nth(4).unwrap().to_owned()
    };
    assert_eq!([wrong("12288"), wrong("3145728")], ["0", "N/A"], "{}", outcome.stdout);
}

/// Every algorithm that the help lists runs from a file, and some as kernels.
#[test]
fn classical_programs_become_files() {
    let help = run(&mut aqueduct(&["plan", "new", "--help"])).exited(0).stdout;
    let listed: Vec<[&str; 2]> = help
        .lines()
        .filter_map(|line| line.trim().split_once(": ")?.0.split_once(" --algorithm "))
        .map(|(collective, algorithm)| [collective, algorithm])
        .collect();
    assert!(listed.len() >= 15, "{help}");
    for [collective, algorithm] in listed {
        let made =
            run(&mut aqueduct(&["plan", "new", collective, "-n", "4", "-a", algorithm])).exited(0).stdout;
        let path = file(&format!("{collective}-{algorithm}"), &made);
        let name = path.to_str().unwrap();
        run(&mut aqueduct(&["plan", "check", name])).exited(0).prints(&["right: 4 ranks"]);
        std::fs::remove_file(path).unwrap();
    }
    let more = [
        "plan",
        "new",
        "all-reduce",
        "-n",
        "2",
        "--instances",
        "2",
        "--chunk-factor",
        "2",
        "--policy",
        "none",
    ];
    let path = file("more", &run(&mut aqueduct(&more)).exited(0).stdout);
    let shown = run(&mut aqueduct(&["plan", "show", path.to_str().unwrap()])).exited(0);
    std::fs::remove_file(path).unwrap();
    shown.prints(&["rank 1: 8 input, 8 output, 0 scratch chunks", "  block 3"]);
    for (wrong, words) in [
        (&["reduce-all", "-n", "2"][..], "use one of all-reduce, "),
        (&["all-reduce", "-n", "2", "-a", "tree"], "use one of two-shot, one-shot, "),
        (&["all-reduce", "-n", "1"], "2 to 1024"),
        (&["all-reduce", "-n", "3", "-a", "recursive-halving"], "a power of two"),
        (&["all-reduce", "-n", "2", "-a", "ring", "--chunk-factor", "2"], "use more instances"),
        (&["all-reduce", "-n", "2", "--instances", "0"], "no instances"),
        (&["broadcast", "-n", "4", "--slice", "64K"], "slices need moves of one number of chunks"),
        (&["all-reduce", "-n", "2", "--slice", "1"], "use a multiple of 16"),
        (
            &["all-reduce", "-n", "2", "-a", "ring", "--protocol", "LL128"],
            "has no packets; leave --protocol out",
        ),
    ] {
        run(&mut aqueduct(&[&["plan", "new"], wrong].concat())).exited(2).says(&[words]);
    }
}

/// LL128 packets run where NVLink is; elsewhere every rank says what to do.
#[test]
fn packets_of_128_bytes_run_over_nvlink() {
    let new = ["plan", "new", "all-reduce", "-n", "2", "-a", "two-shot-packets", "--protocol", "LL128"];
    let path = file("lines", &run(&mut aqueduct(&new)).exited(0).stdout);
    let plan = path.to_str().unwrap();
    let job =
        || aqueduct(&["run", "-n", "2", "--", "aqueduct", "plan", "run", plan, "-b", "1K", "-e", "16K"]);
    run(&mut job()).exited(0).prints(&["# Out of bounds values : 0 OK"]);
    // Whichever rank the launcher hears first.
    run(job().env("AQUEDUCT_SOFT_LACKS", "native_atomics"))
        .exited(1)
        .says(&["the plan's LL128 packets need NVLink", "sees; give the plan protocol LL"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_kernel_is_printed() {
    let path = file("kernel", &one_shot());
    let name = path.to_str().unwrap();
    let compile = |more: &[&str]| run(&mut aqueduct(&[&["plan", "compile", name], more].concat()));
    let first = compile(&[]).exited(0).prints(&[".target sm_90\n", ".visible .entry aqueduct_plan("]);
    assert_eq!(
        compile(&["-r", "0", "-d", "float", "-o", "sum", "--sm", "90"]).exited(0).stdout,
        first.stdout
    );
    for other in [&["-r", "1"][..], &["-d", "half"], &["-o", "max"], &["--sm", "80"]] {
        assert_ne!(compile(other).exited(0).stdout, first.stdout, "{other:?}");
    }
    compile(&["-r", "2"]).exited(2).says(&["ranks 0 to 1"]);
    compile(&["--sm", "61"]).exited(2).says(&["compute capability 6.1"]);
    compile(&["-d", "f3"]).exited(2).says(&["bf16"]);
    std::fs::remove_file(path).unwrap();
}

/// Jobs find the kernels that earlier ones have compiled, and nothing about the folder makes one fail.
#[test]
fn compiled_kernels_are_kept() {
    let plan = file("kept", &one_shot());
    let folder = temporary("cache");
    let job = |folder: &Path| {
        let plan = plan.to_str().unwrap();
        let mut command =
            aqueduct(&["run", "-n", "2", "--", "aqueduct", "plan", "run", plan, "-b", "1K", "-e", "1K"]);
        command.env("AQUEDUCT_CACHE", folder).env("AQUEDUCT_LOG", "debug");
        start(&mut command)
    };
    let right = |outcome: Outcome| outcome.exited(0).prints(&["# Out of bounds values : 0 OK"]);
    let count = |outcome: &Outcome, words: &str| outcome.stderr.matches(words).count();
    let found = |outcome: &Outcome| count(outcome, "was found in the cache");
    // Two jobs at once compile the same kernels.
    for job in [job(&folder), job(&folder)] {
        right(job.finish());
    }
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(
        files.len(),
        5,
        "two for each rank, the second for short messages, and that the plan is right: {files:?}"
    );
    assert!(files.iter().all(|path| path.extension().is_some_and(|is| is == "kernel")), "{files:?}");
    let again = right(job(&folder).finish());
    assert_eq!(found(&again), 4, "{again:#?}");
    assert_eq!(count(&again, "has found the plan right"), 2, "once in each process: {again:#?}");
    for path in &files {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }
    let damaged = right(job(&folder).finish());
    assert_eq!((found(&damaged), count(&damaged, "is damaged")), (0, 4), "{damaged:#?}");
    // A rank may find what the other one has just written.
    assert!(count(&damaged, "has found the plan right") <= 1, "{damaged:#?}");
    let mended = right(job(&folder).finish());
    assert_eq!(found(&mended), 4, "{mended:#?}");
    // No folder can be made below a file.
    let unwritable = right(job(&plan.join("below")).finish());
    assert_eq!(count(&unwritable, "cannot be kept in"), 2, "once in each process: {unwritable:#?}");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::remove_file(&plan).unwrap();
}

/// Times of every size, behind the simulation's result; a machine that there is not, or that the plan does not fit, is refused.
#[test]
fn predictions_stand_behind_the_simulations_result() {
    let path = file("predicted", &one_shot());
    let plan = path.to_str().unwrap();
    let out = run(&mut aqueduct(&[
        "plan",
        "simulate",
        plan,
        "--machine",
        "h200-x2",
        "-b",
        "1K",
        "--max-bytes",
        "1M",
    ]))
    .exited(0)
    .prints(&["every element right", "# machine h200-x2: predicted, not measured"])
    .stdout;
    let rows: Vec<Vec<f64>> = out
        .lines()
        .skip_while(|line| !line.starts_with("# "))
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(|cell| cell.parse().unwrap()).collect())
        .collect();
    assert_eq!(
        rows.iter().map(|row| row[0] as u64).collect::<Vec<_>>(),
        [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]
    );
    assert!(rows.windows(2).all(|pair| pair[0][1] <= pair[1][1]), "{rows:?}");
    assert!(rows.iter().all(|row| (row[0] / row[1] / 1e3 - row[2]).abs() < 0.02 * row[2] + 0.01), "{rows:?}");
    let simulate = |machine: &str| run(&mut aqueduct(&["plan", "simulate", plan, "--machine", machine]));
    simulate("h100").exited(2).says(&["there is no machine \"h100\"; use one of h200-x2"]);
    // The tests run where the package's sources are.
    simulate("src").exited(2).says(&["src: Is a directory"]);
    simulate("/nonexistent").exited(2).says(&["/nonexistent: No such file"]);
    let described = file("machine", "gpus 1\ngpus 2\n");
    simulate(described.to_str().unwrap()).exited(2).says(&["line 2: gpus stands here a second time"]);
    run(&mut aqueduct(&["plan", "simulate", plan, "-b", "1K"])).exited(2).says(&["--machine"]);
    [path, described].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// A drawing instead of the text, the same every time; a plan's name can neither leave its element nor talk to a terminal.
#[test]
fn drawings_and_names_that_would_do_something() {
    let hostile = one_shot().replace("\"pair\"", "\"<b>\\u001b[31mred\"");
    let (path, svg) = (file("drawn", &hostile), file("drawing", ""));
    let (plan, svg) = (path.to_str().unwrap(), svg.to_str().unwrap());
    let draw = |more: &[&str]| run(&mut aqueduct(&[&["plan", "show", plan, "--svg", svg], more].concat()));
    assert_eq!(draw(&[]).exited(0).stdout, "");
    let first = std::fs::read_to_string(svg).unwrap();
    assert_eq!(first.matches("class=\"op ").count(), 4, "{first}");
    assert!(
        first.contains(r"&lt;b&gt;\u{1b}[31mred: allreduce of 2 ranks, 1048576 bytes, predicted for h200-x2"),
        "{first}"
    );
    draw(&["--bytes", "1M", "--machine", "h200-x2"]).exited(0);
    assert_eq!(std::fs::read_to_string(svg).unwrap(), first);
    draw(&["--bytes", "2M"]).exited(0);
    assert_ne!(std::fs::read_to_string(svg).unwrap(), first);
    draw(&["--machine", "none"]).exited(2).says(&["there is no machine"]);
    run(&mut aqueduct(&["plan", "show", plan, "--svg", "/nonexistent/x.svg"]))
        .exited(2)
        .says(&["cannot write /nonexistent/x.svg"]);
    run(&mut aqueduct(&["plan", "show", plan, "--bytes", "1M"])).exited(2).says(&["--svg"]);
    for args in [&["plan", "show", plan][..], &["plan", "simulate", plan], &["plan", "check", plan]] {
        let out = run(&mut aqueduct(args)).exited(0).stdout;
        assert!(!out.contains('\x1b'), "{out:?}");
        assert!(args[1] == "check" || out.contains(r"<b>\u{1b}[31mred"), "{out:?}");
    }
    [plan, svg].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// A drawing of a call as it was made, with the same operations as the prediction, and its times as lines.
#[test]
fn a_measured_call_is_drawn() {
    let (path, svg) = (file("traced", &one_shot()), file("traced-drawing", ""));
    let (plan, svg) = (path.to_str().unwrap(), svg.to_str().unwrap());
    let data = format!("{svg}.jsonl");
    let traced = ["plan", "run", plan, "-b", "1K", "-e", "2K", "--trace", svg];
    run(&mut aqueduct(&[&["run", "-n", "2", "--", "aqueduct"], &traced[..]].concat()))
        .exited(0)
        .prints(&["# Out of bounds values : 0 OK"]);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert_eq!(drawn.matches("class=\"op ").count(), 4, "{drawn}");
    assert!(
        drawn.contains("pair: allreduce of 2 ranks, 2048 bytes, measured on the software device"),
        "{drawn}"
    );
    let lines: Vec<serde_json::Value> = std::fs::read_to_string(&data)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let said: Vec<_> =
        lines.iter().map(|line| (line["rank"].as_u64().unwrap(), line["op"].as_u64().unwrap())).collect();
    assert_eq!(said, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(lines[0]["operation"], "move input[0] -> rank 1 scratch[0] packets");
    assert!(lines.iter().all(|line| line["start_ns"].as_u64() <= line["end_ns"].as_u64()), "{lines:?}");
    assert!(lines.iter().any(|line| line["start_ns"] == 0), "{lines:?}");
    [plan, svg, &data].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// Usage errors of a job, before anything is measured.
#[test]
fn runs_of_other_ranks_or_with_a_drawing_nowhere_are_refused() {
    let path = file("unrun", &one_shot());
    let plan = path.to_str().unwrap();
    let job = |ranks, more: &[&str]| {
        let begin = ["run", "--no-prefix", "-n", ranks, "--", "aqueduct", "plan", "run", plan, "-e", "1K"];
        run(&mut aqueduct(&[&begin[..], more].concat())).exited(2)
    };
    job("3", &[]).says(&["the plan is one of 2 ranks and the job has 3; start it with aqueduct run -n 2 --"]);
    let nowhere = job("2", &["--trace", "/nonexistent/x.svg"]);
    nowhere.says(&["cannot write /nonexistent/x.svg", "name another file with --trace"]);
    std::fs::remove_file(path).unwrap();
}

/// Arguments and plans of which nothing would be learned, or that would take all memory.
#[test]
fn simulations_that_are_refused() {
    let right = file("refused", &one_shot());
    let large = one_shot().replace("\"collective\":\"allreduce\"", "\"collective\":\"mine\"");
    let large = file("large", &large.replace("\"input_chunks\":1,", "\"input_chunks\":60000000,"));
    let [right, large] = [&right, &large].map(|path| path.to_str().unwrap());
    run(&mut aqueduct(&["plan", "simulate", right, "--seeds", "0"])).exited(2).says(&["--seeds"]);
    run(&mut aqueduct(&["plan", "simulate", right, "--elements", "4294967295"]))
        .exited(2)
        .says(&["too many to simulate", "--elements"]);
    run(&mut aqueduct(&["plan", "simulate", large])).exited(2).says(&["too many to simulate"]);
}
