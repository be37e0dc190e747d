//! Options of `aqueduct perf`: statistics, durations, directions, kinds of connections.

use std::time::Instant;

use serde_json::Value;

use crate::support::{PerfFile, aqueduct, perf, rows, run, temporary};

/// Runs an operation on so many ranks and returns what it wrote.
fn measured(ranks: &str, arguments: &[&str]) -> PerfFile {
    PerfFile::parse(&perf(ranks, &[arguments, &["-J", "-"]].concat()).exited(0).stdout)
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

#[test]
fn percentiles_are_over_single_calls_or_over_batches() {
    let all_reduce = ["all-reduce", "-b", "64", "-e", "64", "-n", "24", "-w", "0"];
    for (batch, samples, calls, over) in
        [(None, 8, 3, "batch-means"), (Some("1"), 24, 1, "calls"), (Some("10"), 3, 10, "batch-means")]
    {
        let batch = batch.map_or(vec![], |batch| vec!["--batch", batch]);
        let file = measured("2", &[&all_reduce[..], &batch].concat());
        for row in &file.rows {
            assert_eq!(
                (row["samples"].as_u64(), row["calls_per_sample"].as_u64()),
                (Some(samples), Some(calls))
            );
            assert_eq!(row["percentiles_over"], over, "{row}");
            let order = ["time_min_us", "time_p50_us", "time_p99_us", "time_p99_9_us", "time_max_us"];
            assert!(order.map(|name| number(row, name)).is_sorted(), "{row}");
            assert!(number(row, "time_stddev_us") > 0.0, "{row}");
        }
    }
    // A replay of a graph of 5 calls is a sample of 5 calls at least.
    let file = measured("2", &["all-reduce", "-b", "64", "-e", "64", "-n", "2", "-G", "5", "--batch", "1"]);
    assert_eq!((&file.rows[0]["samples"], &file.rows[0]["calls_per_sample"]), (&2.into(), &5.into()));
    let outcome = perf("2", &["ll16", "-b", "8", "-e", "8", "-n", "10", "-w", "0"]).exited(0);
    outcome.prints(&[
        "# time: median of the samples; a sample is the mean of its round trips (--batch 1: of one)",
    ]);
}

/// Rank 0 waits while rank 1 gets. A row that took rank 0's clock would show almost nothing.
#[test]
fn times_are_those_of_the_rank_that_works() {
    let file = measured("2", &["get", "-b", "4M", "-e", "4M", "-n", "4", "-w", "0", "--batch", "1"]);
    let row = file.rows.iter().find(|row| row["series"] == "measured").expect("a row of our own");
    let [time, samples] = ["time_p50_us", "samples"].map(|name| number(row, name));
    // No host copies 4 MiB faster than this, at 80 GB/s.
    assert!(time > 50.0, "{row}");
    let calls = time * samples * number(row, "calls_per_sample") / 1e6;
    assert!(number(row, "wall_s") > 0.5 * calls, "{row}");
}

/// Each row lasts as long as it is told to.
#[test]
fn rows_of_a_duration() {
    let pairs = [
        &["all-reduce", "-b", "8", "-e", "64", "-f", "8"][..],
        // Rank 0 acts in one, rank 1 in the other.
        &["put", "-b", "8", "-e", "8"],
        &["get", "-b", "8", "-e", "8"],
        &["write", "-t", "Ethernet", "-m", "host", "-b", "8", "-e", "8"],
        &["write-lat", "-t", "CudaIpc", "-b", "8", "-e", "8"],
        &["signal"],
        &["port-put", "-t", "CudaIpc", "-b", "4K", "-e", "4K"],
        &["fifo", "-T", "1", "-n", "50"],
    ];
    for arguments in pairs {
        let began = Instant::now();
        let file = measured("2", &[arguments, &["--duration", "300ms"]].concat());
        let took = began.elapsed().as_secs_f64();
        assert_eq!(file.header["parameters"]["duration_s"], 0.3);
        let rows: Vec<_> = file.rows.iter().filter(|row| row["series"] == "measured").collect();
        assert!(!rows.is_empty() && took >= 0.3 * rows.len() as f64, "{took} s for {rows:?}");
        // They take turns with what they are compared with, within that time.
        let samples = |series: &str| -> Vec<_> {
            file.rows.iter().filter(|row| row["series"] == series).map(|row| row["samples"].clone()).collect()
        };
        let theirs = samples("comparison");
        assert!(theirs.is_empty() || theirs == samples("measured"), "{:?}", file.rows);
        // The calls of a row are part of its time; the barriers between them are the rest.
        for row in rows {
            assert!((0.001..took).contains(&number(row, "wall_s")), "{took} s in all: {row}");
        }
    }
    for (arguments, words) in [
        (&["all-reduce", "--duration", "1s", "-n", "5"][..], "cannot be used with"),
        (&["fifo", "--duration", "1s", "-r", "5"], "cannot be used with"),
        (&["put", "--duration", "0s"], "0s is not more than 0"),
        (&["put", "--duration", "5d"], "unknown unit d"),
        (&["put", "--batch", "0"], "'0' for '--batch"),
    ] {
        run(&mut aqueduct(&[&["perf"], arguments].concat())).exited(2).says(&[words]);
    }
}

#[test]
fn a_wide_table_has_all_statistics() {
    for arguments in [
        &["all-reduce", "-b", "64", "-e", "64", "-n", "12"][..],
        &["write", "-t", "CudaIpc", "-b", "4K", "-e", "4K", "-n", "12"],
        &["port-lat", "-t", "CudaIpc", "-b", "8", "-e", "8", "-n", "5", "-r", "3"],
        &["fifo", "-T", "4", "-n", "40", "-r", "3"],
    ] {
        let outcome = perf("2", &[arguments, &["--stats"]].concat()).exited(0);
        let outcome =
            outcome.prints(&["  p99.9 ", " stddev ", " cpu ", "#wrong", "# p99, p99.9 and stddev are over"]);
        let rows = rows(&outcome.stdout);
        assert!(rows.len() >= 2, "{}", outcome.stdout);
        assert!(rows.iter().all(|row| row.len() == 21), "{}", outcome.stdout);
        assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"));
    }
}

#[test]
fn a_dump_has_every_sample() {
    let path = temporary("samples.csv");
    let arguments =
        ["put", "-b", "8", "-e", "16", "-n", "15", "--batch", "1", "--dump", path.to_str().unwrap()];
    let file = measured("2", &arguments);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines[0], "row,series,algorithm,place,size_bytes,threads,sample,calls,time_us");
    assert_eq!(file.rows.len(), 4);
    for (index, row) in file.rows.iter().enumerate() {
        let samples: Vec<Vec<&str>> = lines[1..]
            .iter()
            .map(|line| line.split(',').collect::<Vec<_>>())
            .filter(|cells| cells[0] == (index + 1).to_string())
            .collect();
        assert_eq!(samples.len(), 15, "{text}");
        assert_eq!(
            (samples[0][1], samples[0][2]),
            (row["series"].as_str().unwrap(), row["algorithm"].as_str().unwrap())
        );
        assert_eq!(
            (samples[0][4], samples[14][6], samples[0][7]),
            (&*row["size_bytes"].to_string(), "15", "1")
        );
        let mut times: Vec<f64> = samples.iter().map(|cells| cells[8].parse().unwrap()).collect();
        times.sort_by(f64::total_cmp);
        assert!((times[7] - number(row, "time_p50_us")).abs() < 1e-9 * times[7], "{row}");
    }
    let words = ["--json and --dump both name -"];
    perf("1", &["all-reduce", "-J", "-", "--dump", "-"]).exited(2).says(&words);
}

#[test]
fn both_directions_at_once() {
    for arguments in [
        &["put", "--bidirectional"][..],
        &["get", "--bidirectional"],
        &["write", "-t", "CudaIpc", "-p", "bidirectional"],
        &["write", "-t", "Ethernet", "-m", "host", "-p", "bidirectional", "-q", "2"],
        &["read", "-t", "CudaIpc", "-p", "bidirectional"],
    ] {
        let file = measured("2", &[arguments, &["-b", "5000", "-e", "5000", "-n", "3"]].concat());
        let row = file.rows.iter().find(|row| row["series"] == "measured").unwrap();
        // A direction in which nothing moved would leave the guard's bytes at its target.
        assert_eq!(row["wrong"], 0, "{row}");
        let ratio = number(row, "bus_bandwidth_gb_s") / number(row, "algorithm_bandwidth_gb_s");
        assert!((ratio - 2.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn reads_of_a_connection() {
    for (ranks, arguments) in [
        ("2", &["-m", "device"][..]),
        ("2", &["-m", "host", "-q", "3", "-W", "5"]),
        ("3", &["-p", "all-to-all", "-q", "2"]),
        ("2", &["-m", "device", "--peer-memory", "host"]),
    ] {
        let read = ["read", "-t", "CudaIpc", "-b", "100", "-e", "10000", "-f", "100", "-n", "2"];
        let file = measured(ranks, &[&read[..], arguments].concat());
        let (ours, bare): (Vec<_>, Vec<_>) = file.rows.iter().partition(|row| row["series"] == "measured");
        assert_eq!((ours.len(), bare.len()), (2, 2));
        assert!(ours.iter().all(|row| row["wrong"] == 0 && number(row, "time_p50_us") > 0.0), "{file:?}");
    }
}

#[test]
fn several_sizes_over_several_connections() {
    for transport in ["CudaIpc", "Ethernet"] {
        for operation in ["write", "read"] {
            let mix = ["-t", transport, "-q", "2", "--mix", "64,4K,1000", "-W", "7", "-n", "3"];
            let file = measured("2", &[&[operation], &mix[..]].concat());
            let row = &file.rows[0];
            assert_eq!((&row["sizes"], &row["size_bytes"]), (&"64+4096+1000".into(), &5160.into()));
            assert_eq!(
                (&row["count"], &row["window"], &row["calls_per_sample"]),
                (&21.into(), &7.into(), &7.into())
            );
            assert_eq!(row["wrong"], 0, "{row}");
            let bandwidth = 5160.0 / number(row, "time_p50_us") / 1e3;
            assert!((number(row, "algorithm_bandwidth_gb_s") / bandwidth - 1.0).abs() < 1e-9, "{row}");
        }
    }
    let outcome = perf("2", &["write", "-t", "CudaIpc", "--mix", "64,4K", "-n", "1"]).exited(0);
    outcome.prints(&["# size, time: of one write of each of 64, 4096 B"]);
    let nothing = ["write", "-t", "CudaIpc", "--mix", "0,0"];
    perf("2", &nothing).exited(2).says(&["--mix: all sizes are 0, so there is nothing to measure"]);
    run(&mut aqueduct(&["perf", "write", "-t", "CudaIpc", "--mix", "64", "-b", "8"]))
        .exited(2)
        .says(&["cannot be used with"]);
    for sizes in
        ["16777216T,1", "9223372036854775808,9223372036854775808", "17179869183G,1G", "281474976710656,1"]
    {
        let words = if sizes.contains('T') {
            "unknown suffix T"
        } else {
            "--mix: the sizes are together more than any"
        };
        let refused = run(&mut aqueduct(&["perf", "write", "-t", "CudaIpc", "--mix", sizes])).exited(2);
        refused.says(&[words]);
    }
}

/// The software device computes on the CPU, so its time must show.
#[test]
fn cpu_time_is_that_of_all_ranks_and_threads() {
    let file = measured("2", &["all-reduce", "-b", "1M", "-e", "1M", "-n", "20", "-c", "0"]);
    for row in &file.rows {
        assert!(number(row, "cpu_user_s") > 0.0 && number(row, "cpu_system_s") >= 0.0, "{row}");
        assert!(number(row, "wall_s") > 0.0, "{row}");
    }
}

#[test]
fn help_lists_types_reductions_and_defaults() {
    let outcome = run(&mut aqueduct(&["perf", "--help"])).exited(0);
    let types = "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2";
    let outcome = outcome
        .prints(&["[possible values: sum, prod, min, max, avg]", &format!("[possible values: {types}]")]);
    outcome.prints(&["[default: 200 up to 1 MiB, 20 above"]);
    run(&mut aqueduct(&["perf", "all-reduce", "-d", "quad"])).exited(2).says(&["'quad'", types]);
    run(&mut aqueduct(&["perf", "all-reduce", "-o", "xor"]))
        .exited(2)
        .says(&["'xor'", "sum, prod, min, max, avg"]);
    // The other usual names are accepted, too.
    for name in ["f32", "float16", "bf16", "int", "f64", "u8", "fp8_e4m3"] {
        perf("1", &["all-reduce", "-b", "8", "-e", "8", "-n", "1", "-d", name]).exited(0);
    }
}
