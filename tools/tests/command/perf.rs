//! `aqueduct perf`: tables, JSON and refusals, between processes on the software device.

use serde_json::Value;

use crate::support::{LIMIT, Outcome, aqueduct, run};

/// Runs `aqueduct run -n RANKS --no-prefix -- aqueduct perf ARGUMENTS`.
fn perf(ranks: &str, arguments: &[&str]) -> Outcome {
    let launch = ["run", "-n", ranks, "--no-prefix", "--", "aqueduct", "perf"];
    run(&mut aqueduct(&[&launch[..], arguments].concat()))
}

/// The rows of a table, split into words.
fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn all_reduce_prints_a_table() {
    let outcome =
        perf("2", &["all-reduce", "-b", "8", "-e", "4K", "-f", "8", "-n", "2", "-w", "1"]).exited(0);
    let heads =
        ["# software device: times say nothing about GPUs", "minBytes 8 maxBytes 4096", "# rank   1 pid"];
    let outcome =
        outcome.prints(&heads).prints(&["size         count      type   redop      algo", "#wrong"]);
    let rows = rows(&outcome.stdout);
    let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["8", "64", "512", "4096"]);
    for row in &rows {
        assert_eq!(row.len(), 13, "{row:?}");
        assert_eq!((row[2], row[3], row[4]), ("f32", "sum", "1shot-ll"), "{row:?}");
        assert_eq!((row[8], row[12]), ("0", "0"), "#wrong of {row:?}");
        assert!(row[5].parse::<f64>().unwrap() > 0.0, "a time in {row:?}");
    }
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"));
}

#[test]
fn all_reduce_of_other_types_and_by_graph() {
    for arguments in [
        &["all-reduce", "-b", "6", "-e", "6000", "-f", "10", "-d", "half", "-o", "max"][..],
        &["all-reduce", "-b", "4", "-e", "200", "-i", "49", "-d", "bfloat16", "-o", "min"],
        &["all-reduce", "-b", "600K", "-e", "600K", "-d", "int32", "-G", "2"],
    ] {
        let outcome = perf("3", &[arguments, &["-n", "1", "-w", "0"]].concat()).exited(0);
        assert!(!rows(&outcome.stdout).is_empty(), "{}", outcome.stdout);
        assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"), "{arguments:?}");
    }
}

#[test]
fn channels_of_every_kind() {
    for operation in ["put", "get", "ll8", "ll16", "ll128", "signal"] {
        let mut arguments = vec![operation, "-n", "2", "-w", "0"];
        if operation != "signal" {
            arguments.extend(["-b", "9", "-e", "2000", "-f", "20"]);
        }
        let outcome = perf("2", &arguments).exited(0);
        assert!(!rows(&outcome.stdout).is_empty(), "{}", outcome.stdout);
        // A signal carries no data to check.
        let verdict = if operation == "signal" { "N/A (not checked)" } else { "0 OK" };
        let last = format!("# Out of bounds values : {verdict}");
        assert_eq!(outcome.stdout.lines().last(), Some(last.as_str()), "{operation}: {}", outcome.stdout);
    }
}

#[test]
fn json_instead_of_the_table_and_beside_it() {
    let arguments = ["all-reduce", "-b", "8", "-e", "32", "-n", "3", "-w", "0", "--json"];
    let outcome = perf("2", &[&arguments[..], &["-"]].concat()).exited(0);
    check(&serde_json::from_str(&outcome.stdout).expect("standard output is JSON and nothing else"));

    let path = std::env::temp_dir().join(format!("aqueduct-command-test-{}.json", std::process::id()));
    let outcome = perf("2", &[&arguments[..], &[path.to_str().unwrap()]].concat()).exited(0);
    let text = std::fs::read_to_string(&path);
    std::fs::remove_file(&path).unwrap();
    check(&serde_json::from_str(&text.unwrap()).expect("the file is JSON"));
    assert_eq!(rows(&outcome.stdout).len(), 3, "the table is printed as well");
    let nowhere = perf("1", &[&arguments[..], &["/nonexistent/folder/file.json"]].concat());
    nowhere.exited(1).says(&["cannot write /nonexistent/folder/file.json", "No such file"]);
}

/// Checks the report of 8, 16 and 32 bytes over two ranks.
fn check(report: &Value) {
    assert_eq!(report["operation"], "all-reduce");
    assert!(report["header"].as_array().unwrap().len() > 3);
    let rows = report["rows"].as_array().unwrap();
    let sizes: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 16, 32]);
    for row in rows {
        assert_eq!(row["count"].as_u64(), row["size"].as_u64().map(|bytes| bytes / 4));
        assert_eq!((row["datatype"].as_str(), row["redop"].as_str()), (Some("f32"), Some("sum")));
        for way in ["out_of_place", "in_place"] {
            let (measured, number) = (&row[way], |name| row[way][name].as_f64().unwrap());
            assert_eq!(measured["wrong"], 0, "{row}");
            assert!(0.0 < number("min_us") && number("min_us") <= number("time_us"), "{row}");
            assert!(number("time_us") <= number("max_us"), "{row}");
        }
    }
}

#[test]
fn an_unchecked_run_says_so() {
    let outcome = perf("2", &["all-reduce", "-b", "8", "-e", "8", "-n", "1", "-c", "0"]).exited(0);
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : N/A (not checked)"));
}

#[test]
fn sizes_that_make_no_sense() {
    let words = ["--min-bytes 1024 is larger than --max-bytes 512"];
    perf("2", &["all-reduce", "-b", "1K", "-e", "512"]).exited(1).says(&words);
    for (size, words) in [("12Q", "unknown suffix Q"), ("17179869184G", "does not fit"), ("-3", "error:")] {
        run(&mut aqueduct(&["perf", "all-reduce", "-b", size])).exited(2).says(&[words]);
    }
}

#[test]
fn a_channel_needs_pairs() {
    for ranks in ["1", "3"] {
        let words = ["perf put works on pairs", "aqueduct run -n 2 -- aqueduct perf put"];
        perf(ranks, &["put", "-b", "8", "-e", "8"]).exited(1).says(&words);
    }
}

/// Sixteen ranks on few cores all-reduce 64 KiB within the time limit of every command here, two minutes.
#[test]
fn sixteen_ranks() {
    let outcome = perf("16", &["all-reduce", "-b", "64K", "-e", "64K", "-n", "1", "-w", "0"]).exited(0);
    assert!(outcome.time < LIMIT);
    let rows = rows(&outcome.stdout);
    assert_eq!(
        (rows.len(), rows[0][0], rows[0][8], rows[0][12]),
        (1, "65536", "0", "0"),
        "{}",
        outcome.stdout
    );
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"));
}

#[test]
fn the_phases_of_a_start_make_up_its_time() {
    let outcome = perf("2", &["startup", "-J", "-"]).exited(0);
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let phases = json["phases"].as_array().unwrap();
    let times: Vec<f64> = phases.iter().map(|phase| phase["ms"].as_f64().unwrap()).collect();
    assert_eq!((json["ranks"].as_u64(), times.len()), (Some(2), 5));
    assert!(times.iter().all(|time| *time > 0.0), "{json}");
    let total = json["total_without_cuda_ms"].as_f64().unwrap();
    assert!((times[1..].iter().sum::<f64>() - total).abs() < 1e-6, "{json}");
    perf("2", &["startup"]).exited(0).prints(&["driver and context", "first all-reduce", "all without CUDA"]);
}

/// The JSON report of `aqueduct perf bootstrap`.
fn wire_up(ranks: &str, limits: &[&str]) -> Value {
    let outcome =
        run(&mut aqueduct(&[&["perf", "bootstrap", "-n", ranks, "-J", "-"], limits].concat())).exited(0);
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// Time and traffic of a start grow about as n log n. Measured in CPU time, which other load does not affect, and with
/// a wide margin, because the measurements are small. A quadratic step must fail this test.
fn grows_like_n_log_n(json: &Value) {
    let growth = &json["growth"][0];
    let (times, n_log_n) = (growth["cpu_times"].as_f64().unwrap(), growth["n_log_n"].as_f64().unwrap());
    println!("{times:.1} times the CPU time, n log n is {n_log_n:.1}");
    assert!(times < 2.5 * n_log_n, "{growth}");
}

#[test]
fn no_rank_carries_the_traffic_of_a_large_start() {
    let json = wire_up("16,128", &[]);
    let row = &json["rows"][1];
    assert_eq!((row["ranks"].as_u64(), row["processes"].as_u64()), (Some(128), Some(1)));
    assert_eq!(row["max_control_links"], 14, "two for each power of two below 128");
    for phase in row["phases"].as_array().unwrap() {
        // Rank 0 sends no more than the others. Heartbeats of a slow start come on top.
        let (mean, max) = (phase["mean_bytes"].as_f64().unwrap(), phase["max_bytes"].as_f64().unwrap());
        assert!(phase["name"] == "teardown" || max <= 1.2 * mean + 512.0, "{phase}");
    }
    grows_like_n_log_n(&json);
}

#[test]
fn a_start_is_printed_by_phase() {
    let outcome = run(&mut aqueduct(&["perf", "bootstrap", "-n", "3,9"])).exited(0);
    let outcome =
        outcome.prints(&["rendezvous", "exchange", "control-links", "barrier", "teardown", "n log n"]);
    assert_eq!(rows(&outcome.stdout).len(), 12, "{}", outcome.stdout);
}

#[test]
#[ignore = "takes both cores for ten seconds; ci/deep.sh scale"]
fn a_thousand_ranks_start_in_ten_seconds() {
    let json = wire_up("128,1024", &["-r", "3"]);
    println!("{json:#}");
    let seconds = json["rows"][1]["total_s"].as_f64().unwrap();
    assert!(seconds < 10.0, "{seconds} s");
    grows_like_n_log_n(&json);
}

#[test]
fn too_few_open_files_are_named() {
    let program = env!("CARGO_BIN_EXE_aqueduct");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit -n 70 && exec {program} perf bootstrap -n 128")]);
    run(&mut command).exited(1).says(&["`ulimit -n`", "70"]);
}
