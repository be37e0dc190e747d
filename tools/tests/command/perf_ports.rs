//! `aqueduct perf fifo|port-put|port-lat`, between processes on the software device.

use crate::support::{Outcome, PerfFile, aqueduct, perf, run};

/// The rows of a table, split into words. The last word is the number of wrong values.
#[track_caller]
fn rows(outcome: &Outcome) -> Vec<Vec<&str>> {
    let lines = outcome.stdout.lines();
    assert_eq!(lines.clone().next(), Some("# software device: times say nothing about GPUs"), "{outcome:#?}");
    assert_eq!(lines.clone().last(), Some("# Out of bounds values : 0 OK"), "{outcome:#?}");
    let rows: Vec<Vec<&str>> = lines
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in &rows {
        assert_eq!((row.len(), row.last()), (9, Some(&"0")), "{row:?}");
        assert!(row[1].parse::<f64>().unwrap() > 0.0, "a figure in {row:?}");
    }
    rows
}

fn sizes<'a>(rows: &[Vec<&'a str>]) -> Vec<&'a str> {
    rows.iter().map(|row| row[0]).collect()
}

/// Asserts that every row has a bare figure and a ratio, or that none has.
#[track_caller]
fn has_bare(rows: &[Vec<&str>], bare: bool) {
    for row in rows {
        for figure in [row[4], row[7]] {
            assert_eq!(figure.parse::<f64>().is_ok_and(|figure| figure > 0.0), bare, "{row:?}");
        }
    }
}

#[test]
fn pushes_of_few_and_many_threads() {
    // Many more triggers than slots, from one thread, from part of a warp, and from two blocks.
    let outcome =
        run(&mut aqueduct(&["perf", "fifo", "-T", "1,33,2048", "-s", "64", "-n", "5000", "-r", "1"]));
    let outcome = outcome.exited(0).prints(&["fifo size 64", "(M/s)", "ratio"]);
    let rows = rows(&outcome);
    assert_eq!(sizes(&rows), ["1", "33", "2048"]);
    has_bare(&rows, true);
}

#[test]
fn pushes_of_several_ranks_at_once() {
    let outcome = perf("2", &["fifo", "-T", "4", "-n", "400", "-r", "2", "-J", "-"]).exited(0);
    let file = PerfFile::parse(&outcome.stdout);
    assert_eq!(file.header["operation"], "fifo");
    let [ours, bare] = &file.rows[..] else { panic!("two rows: {file:?}") };
    assert_eq!((&ours["series"], &bare["series"]), (&"measured".into(), &"comparison".into()));
    assert_eq!(
        (ours["threads"].as_u64(), ours["wrong"].as_u64(), ours["samples"].as_u64()),
        (Some(4), Some(0), Some(2))
    );
    // 400 triggers over 4 threads are a sample.
    assert_eq!(ours["calls_per_sample"], 400);
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap();
    let ratio = number(bare, "time_p50_us") / number(ours, "time_p50_us");
    assert!((number(ours, "speed_ratio") - ratio).abs() < 1e-9, "{file:?}");
    assert!((number(ours, "rate_m_s") * number(ours, "time_p50_us") - 1.0).abs() < 1e-9, "{file:?}");
}

#[test]
fn latency_of_a_port_channel() {
    let cases = [
        ("CudaIpc", true, "bare: kernel writes a word"),
        ("CudaIpc", true, "bare: kernel takes a position"),
        ("Ethernet", false, "ours: "),
    ];
    for (transport, bare, meaning) in cases {
        let mut arguments =
            vec!["port-lat", "-t", transport, "-b", "5", "-e", "5000", "-f", "30", "-n", "5", "-r", "1"];
        arguments.extend(meaning.ends_with("position").then_some("--fenced"));
        let outcome = perf("2", &arguments).exited(0).prints(&[&format!("transport {transport}"), meaning]);
        let rows = rows(&outcome);
        assert_eq!(sizes(&rows), ["0", "8", "152", "4504"]);
        has_bare(&rows, bare);
    }
}

#[test]
fn windows_of_a_port_channel() {
    for (transport, bare) in [("CudaIpc", true), ("Ethernet", false)] {
        for window in ["1", "3", "16"] {
            let arguments =
                ["port-put", "-t", transport, "-W", window, "-b", "1K", "-e", "64K", "-f", "64", "-r", "1"];
            let outcome = perf("2", &arguments).exited(0).prints(&[&format!("window {window} ")]);
            let rows = rows(&outcome);
            assert_eq!(sizes(&rows), ["1024", "65536"]);
            has_bare(&rows, bare);
        }
    }
}

/// More puts than the FIFO has slots, and two pairs.
#[test]
fn windows_larger_than_the_fifo_in_two_pairs() {
    let arguments = [
        "port-put", "-t", "CudaIpc", "-W", "700", "-b", "64", "-e", "64", "-n", "2", "-r", "1", "--csv", "-",
    ];
    let outcome = perf("4", &arguments).exited(0);
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| !line.starts_with('#')).collect();
    let [names, ours, bare] = &lines[..] else { panic!("three lines: {lines:?}") };
    let at = |name: &str| names.split(',').position(|column| column == name).unwrap();
    let cell = |row: &str, name: &str| row.split(',').nth(at(name)).unwrap().to_owned();
    assert_eq!((cell(ours, "size_bytes"), cell(ours, "wrong")), ("64".to_owned(), "0".to_owned()));
    assert_eq!((cell(bare, "series"), cell(bare, "wrong")), ("comparison".to_owned(), String::new()));
    // Two windows of 700 puts are a sample.
    assert_eq!((cell(ours, "calls_per_sample"), cell(ours, "window")), ("1400".to_owned(), "700".to_owned()));
}

#[test]
fn invalid_options_are_refused() {
    let alone = |arguments: &[&str]| run(&mut aqueduct(&[&["perf"], arguments].concat()));
    alone(&["fifo", "-s", "100", "-n", "10"])
        .exited(2)
        .says(&["100 is no power of two", "the default is 512"]);
    alone(&["fifo", "-T", "0"]).exited(2).says(&["1..=65536"]);
    alone(&["fifo", "-T", "1025"]).exited(2).says(&["--threads 1025", "use a multiple of 1024"]);
    alone(&["port-lat"]).exited(2).says(&["--transport"]);
    alone(&["port-put", "-t", "CudaIpc", "-W", "0"]).exited(2).says(&["1..=65536"]);
    alone(&["port-put", "-t", "Pigeon"]).exited(2).says(&["Pigeon"]);
    for command in ["port-lat", "port-put"] {
        let words = [format!("perf {command} works on pairs"), "aqueduct run -n 2".to_owned()];
        perf("1", &[command, "-t", "CudaIpc"]).exited(2).says(&words.each_ref().map(String::as_str));
    }
    let words = ["--min-bytes 1024 is larger than --max-bytes 512"];
    perf("2", &["port-put", "-t", "CudaIpc", "-b", "1K", "-e", "512"]).exited(2).says(&words);
    perf("2", &["port-put", "-t", "CudaIpc", "-b", "0", "-e", "0"]).exited(2).says(&["nothing to put"]);
}
