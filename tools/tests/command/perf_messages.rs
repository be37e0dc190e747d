//! `aqueduct perf message`, `message-rate` and `message-read`, which start their own second process.

use crate::support::{PerfFile, aqueduct, perf, rows, run};

const OPERATIONS: [(&str, &[&str], &[u64]); 3] = [
    ("message", &["-b", "1", "-e", "8192", "-f", "8192", "-n", "50"], &[1, 8192]),
    ("message-rate", &["-b", "8", "-e", "800", "-f", "100", "-n", "2000"], &[8, 800]),
    ("message-read", &["-b", "1", "-e", "256K", "-f", "262144", "-n", "40", "-W", "4"], &[1, 1 << 18]),
];

#[test]
fn each_size_stands_beside_its_limit() {
    for (operation, arguments, sizes) in OPERATIONS {
        let outcome = run(&mut aqueduct(&[&["perf", operation][..], arguments].concat())).exited(0);
        let rows = rows(&outcome.stdout);
        let found: Vec<(u64, &str)> = rows.iter().map(|row| (row[0].parse().unwrap(), row[4])).collect();
        let limit = if operation == "message" { "flag" } else { "memcpy" };
        let ways = [["tcp", "bare"], ["shm", limit]];
        let expected: Vec<_> = ways
            .iter()
            .flat_map(|names| sizes.iter().flat_map(|size| names.map(|name| (*size, name))))
            .collect();
        assert_eq!(found, expected, "{operation}: {}", outcome.stdout);
        assert!(rows.iter().all(|row| row[5].parse::<f64>().unwrap() > 0.0), "{operation}: {rows:?}");
        assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"), "{operation}");
    }
}

/// The transport can be named; one over which the two do not meet is no measurement.
#[test]
fn one_transport_may_be_named() {
    let named = |transport: &str| run(&mut aqueduct(&["perf", "message", "-n", "20", "-t", transport]));
    let outcome = named("shm").exited(0);
    let found: Vec<&str> = rows(&outcome.stdout).iter().map(|row| row[4]).collect();
    assert_eq!(found, ["shm", "flag"], "{}", outcome.stdout);
    // No device has this name.
    let mut without = aqueduct(&["perf", "message", "-n", "20", "-t", "verbs"]);
    let outcome = run(without.env("AQUEDUCT_IB_DEVICES", "none0"));
    outcome.exited(1).says(&["met over tcp, not over verbs"]);
}

#[test]
fn percentiles_and_rates_are_in_the_files() {
    for (operation, arguments, _) in OPERATIONS {
        let command = [&["perf", operation][..], arguments, &["-J", "-"]].concat();
        let file = PerfFile::parse(&run(&mut aqueduct(&command)).exited(0).stdout);
        assert_eq!(file.header["operation"], operation);
        assert_eq!(file.footer.unwrap()["rows"], 8);
        for row in &file.rows {
            let latency = operation == "message";
            assert_eq!(row["percentiles_over"], if latency { "calls" } else { "batch-means" }, "{row}");
            assert_eq!(row["samples"], if latency { 50 } else { 10 }, "{row}");
            let [p50, p99] = ["time_p50_us", "time_p99_us"].map(|name| row[name].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p99, "{row}");
            assert_eq!(row["rate_m_s"].is_number(), operation == "message-rate", "{row}");
            assert_eq!(row["speed_ratio"].is_number(), row["series"] == "measured", "{row}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (arguments, words) in [
        (["message", "-b", "9K"], "use message-read"),
        (["message", "-e", "1M"], "use message-read"),
        (["message-rate", "-b", "0"], "perf message-rate begins at 1 B"),
        (["message-read", "-b", "0"], "perf message-read begins at 1 B"),
        (["message-read", "-e", "64000G"], "use smaller sizes (-e) or fewer reads at a time (-W)"),
    ] {
        run(&mut aqueduct(&[&["perf"][..], &arguments].concat())).exited(2).says(&[words]);
    }
    perf("2", &["message", "-n", "1"]).exited(2).says(&["starts its own second process"]);
}
