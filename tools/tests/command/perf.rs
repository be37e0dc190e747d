//! `aqueduct perf`: tables, JSON and refusals, between processes on the software device.

use serde_json::Value;

use crate::support::{LIMIT, PerfFile, aqueduct, perf, rows, run};

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
        assert_eq!((row[2], row[3], row[4]), ("f32", "sum", "packets"), "{row:?}");
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

/// Small and large messages, out of place and in place, with the way that each goes.
#[test]
fn collectives_of_every_kind() {
    for operation in [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "send-recv",
    ] {
        let sizes = ["-b", "100", "-e", "100K", "-f", "1000", "-n", "1", "-w", "0"];
        let outcome = perf("3", &[&[operation], &sizes[..]].concat()).exited(0);
        let rows = rows(&outcome.stdout);
        let divides =
            matches!(operation, "all-gather" | "reduce-scatter" | "all-to-all" | "gather" | "scatter");
        let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        let expected = if divides { ["96", "99996"] } else { ["100", "100000"] };
        assert_eq!(sizes, expected, "{}", outcome.stdout);
        let reduces = operation.contains("reduce");
        for (row, way) in rows.iter().zip(["packets", "zero-copy"]) {
            assert_eq!(row[3], if reduces { "sum" } else { "none" }, "{row:?}");
            assert_eq!((row[4], row[8], row[12]), (way, "0", "0"), "{operation}: {row:?}");
        }
        let verdict = "# Out of bounds values : 0 OK";
        assert_eq!(outcome.stdout.lines().last(), Some(verdict), "{operation}: {}", outcome.stdout);
    }
}

/// Large messages on buffers that the library sees first in the call.
#[test]
fn buffers_that_are_not_registered() {
    for (operation, root, way) in [
        ("all-reduce", "0", "two-shot"),
        ("reduce-scatter", "0", "staged"),
        ("gather", "1", "staged"),
        ("scatter", "1", "staged"),
    ] {
        let sizes = ["-b", "100K", "-e", "100K", "-n", "1", "-w", "0", "-R", "0"];
        let root: &[_] = if root == "0" { &[] } else { &["-r", root] };
        let outcome = perf("2", &[&[operation], &sizes[..], root].concat()).exited(0);
        let rows = rows(&outcome.stdout);
        assert_eq!((rows[0][4], rows[0][8], rows[0][12]), (way, "0", "0"), "{}", outcome.stdout);
    }
}

/// Parts of different sizes, in place where that is possible; those of a group of sends and receives, too.
#[test]
fn collectives_of_variable_sizes() {
    for operation in ["all-to-all-v", "all-gather-v", "reduce-scatter-v", "point-to-point"] {
        let sizes = ["-b", "100", "-e", "100K", "-f", "1000", "-n", "1", "-w", "0", "-d", "half"];
        let outcome = perf("3", &[&[operation], &sizes[..]].concat()).exited(0);
        let rows = rows(&outcome.stdout);
        let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(sizes, ["96", "99996"], "{}", outcome.stdout);
        let in_place = if matches!(operation, "all-to-all-v" | "point-to-point") { "-" } else { "0" };
        for row in &rows {
            assert_eq!((row[4], row[8], row[12]), ("zero-copy", "0", in_place), "{operation}: {row:?}");
        }
        let verdict = "# Out of bounds values : 0 OK";
        assert_eq!(outcome.stdout.lines().last(), Some(verdict), "{operation}: {}", outcome.stdout);
    }
}

/// The bytes of a broadcast are those of the root that `-r` names, and of the bandwidth of all-gather's links.
#[test]
fn roots_types_and_graphs_of_collectives() {
    let small = ["-b", "6000", "-e", "6000", "-n", "2", "-w", "0"];
    for arguments in [
        &["broadcast", "-r", "1", "-d", "half"][..],
        &["reduce", "-r", "1", "-d", "bfloat16", "-o", "max"],
        &["gather", "-r", "1", "-d", "half"],
        &["scatter", "-r", "1", "-d", "int32", "-G", "2"],
        &["reduce-scatter", "-d", "half", "-G", "2"],
        &["all-to-all", "-d", "int32", "-G", "2"],
    ] {
        let file = PerfFile::parse(&perf("2", &[arguments, &small, &["-J", "-"]].concat()).exited(0).stdout);
        assert_eq!(file.header["parameters"]["root"].as_u64(), arguments.contains(&"-r").then_some(1));
        let places: Vec<_> = file.rows.iter().map(|row| row["place"].as_str().unwrap()).collect();
        assert_eq!(places, ["out-of-place", "in-place"], "{arguments:?}");
        for row in &file.rows {
            assert_eq!(row["wrong"], 0, "{row}");
            let [bus, algorithm] =
                ["bus_bandwidth_gb_s", "algorithm_bandwidth_gb_s"].map(|name| row[name].as_f64().unwrap());
            let all = arguments[0].contains('-') || matches!(arguments[0], "gather" | "scatter");
            let factor = if all { 0.5 } else { 1.0 };
            assert!((bus / algorithm - factor).abs() < 1e-9, "{row}");
        }
    }
    perf("2", &["reduce", "-r", "2"]).exited(2).says(&["--root 2: there are 2 ranks; use at most 1"]);
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
fn an_unchecked_run_says_so() {
    let outcome = perf("2", &["all-reduce", "-b", "8", "-e", "8", "-n", "1", "-c", "0"]).exited(0);
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : N/A (not checked)"));
}

#[test]
fn sizes_that_make_no_sense() {
    let words = ["--min-bytes 1024 is larger than --max-bytes 512"];
    perf("2", &["all-reduce", "-b", "1K", "-e", "512"]).exited(2).says(&words);
    for (size, words) in [("12Q", "unknown suffix Q"), ("17179869184G", "does not fit"), ("-3", "error:")] {
        run(&mut aqueduct(&["perf", "all-reduce", "-b", size])).exited(2).says(&[words]);
    }
}

#[test]
fn a_channel_needs_pairs() {
    for ranks in ["1", "3"] {
        let words = ["perf put works on pairs", "aqueduct run -n 2 -- aqueduct perf put"];
        perf(ranks, &["put", "-b", "8", "-e", "8"]).exited(2).says(&words);
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
    let file = PerfFile::parse(&outcome.stdout);
    assert_eq!(file.header["ranks"].as_array().unwrap().len(), 2);
    let times: Vec<f64> = file.rows.iter().map(|row| row["time_p50_us"].as_f64().unwrap()).collect();
    assert_eq!(times.len(), 6);
    assert!(times.iter().all(|time| *time > 0.0), "{times:?}");
    // CUDA's own phase is not part of the sum.
    assert!((times[1..5].iter().sum::<f64>() - times[5]).abs() < 1e-3, "{times:?}");
    perf("2", &["startup"]).exited(0).prints(&["driver and context", "first all-reduce", "all without CUDA"]);
}

/// The rows of `aqueduct perf bootstrap`.
fn wire_up(ranks: &str, limits: &[&str]) -> Vec<Value> {
    let outcome =
        run(&mut aqueduct(&[&["perf", "bootstrap", "-n", ranks, "-J", "-"], limits].concat())).exited(0);
    PerfFile::parse(&outcome.stdout).rows
}

/// The rows about all phases together.
fn totals(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["phase"] == "all").collect()
}

/// Time and traffic of a start grow about as n log n. Measured in CPU time, which other load does not affect, and with
/// a wide margin, because the measurements are small. A quadratic step must fail this test.
fn grows_like_n_log_n(rows: &[Value]) {
    let [few, many] = totals(rows)[..] else { panic!("two numbers of ranks") };
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let cpu = |row| number(row, "cpu_user_s") + number(row, "cpu_system_s");
    let n_log_n = |row| number(row, "ranks") * number(row, "ranks").ln();
    let (times, expected) = (cpu(many) / cpu(few), n_log_n(many) / n_log_n(few));
    println!("{times:.1} times the CPU time, n log n is {expected:.1}");
    assert!(times < 2.5 * expected, "{few} {many}");
}

#[test]
fn no_rank_carries_the_traffic_of_a_large_start() {
    let rows = wire_up("16,128", &[]);
    let many = totals(&rows)[1];
    assert_eq!((many["ranks"].as_u64(), many["processes"].as_u64()), (Some(128), Some(1)));
    assert_eq!(many["control_links_max"], 14, "two for each power of two below 128");
    for phase in rows.iter().filter(|row| row["ranks"] == 128) {
        // Rank 0 sends no more than the others. Heartbeats of a slow start come on top.
        let (mean, max) =
            (phase["sent_mean_bytes"].as_f64().unwrap(), phase["sent_max_bytes"].as_f64().unwrap());
        let one_by_one = phase["phase"] != "teardown" && phase["phase"] != "all";
        assert!(!one_by_one || max <= 1.2 * mean + 512.0, "{phase}");
    }
    grows_like_n_log_n(&rows);
}

#[test]
fn ranks_of_bootstrap_give_up_at_its_time_limit() {
    let outcome = run(&mut aqueduct(&["perf", "bootstrap", "-n", "64", "--timeout", "1ms"])).exited(1);
    outcome.says(&["timeout: "]);
}

#[test]
fn a_start_is_printed_by_phase() {
    let outcome = run(&mut aqueduct(&["perf", "bootstrap", "-n", "3,9"])).exited(0);
    let outcome =
        outcome.prints(&["rendezvous", "exchange", "control-links", "barrier", "teardown", "n log n"]);
    assert_eq!(rows(&outcome.stdout).len(), 12, "{}", outcome.stdout);
}

#[test]
fn a_start_is_not_measured_by_every_rank_of_a_job() {
    let outcome = perf("2", &["bootstrap", "-n", "2"]);
    assert_ne!(outcome.code, Some(0), "{outcome:#?}");
    outcome.says(&["perf bootstrap starts its own ranks; run it without a launcher"]);
}

#[test]
#[ignore = "takes both cores for ten seconds; ci/deep.sh scale"]
fn a_thousand_ranks_start_in_ten_seconds() {
    let rows = wire_up("128,1024", &["-r", "3"]);
    println!("{rows:#?}");
    let seconds = totals(&rows)[1]["wall_s"].as_f64().unwrap();
    assert!(seconds < 10.0, "{seconds} s");
    grows_like_n_log_n(&rows);
}

#[test]
fn too_few_open_files_are_named() {
    let program = env!("CARGO_BIN_EXE_aqueduct");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit -n 70 && exec {program} perf bootstrap -n 128")]);
    let outcome = run(&mut command).exited(1).says(&["`ulimit -n`", "70"]);
    assert_eq!(outcome.stdout, "", "nothing is measured, so no table begins");
}
