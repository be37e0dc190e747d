//! `benches/compare.py` on files that `aqueduct perf` wrote, and on changed ones.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Outcome, PerfFile, command, perf, run, start_with, temporary};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/compare.py");

/// Whether there is an interpreter. Without one these tests cannot run, and say so.
fn python() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !found {
        // Written past the test harness: the lanes count these lines.
        let line = "NOT RUN: perf_compare: there is no python3\n";
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
    }
    found
}

fn compare(old: &Path, new: &Path, options: &[&str]) -> Outcome {
    let mut python = command("python3");
    run(python.arg(SCRIPT).arg(old).arg(new).args(options))
}

/// Files that are removed when this is dropped.
struct Files(Vec<PathBuf>);

impl Files {
    fn write(&mut self, text: &str) -> PathBuf {
        let path = temporary("compare.jsonl");
        std::fs::write(&path, text).unwrap();
        self.0.push(path.clone());
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A file with a row per size, with the given median and standard deviation, in JSON Lines.
fn file(rows: &[(u64, f64, Option<f64>)], change: impl Fn(&mut Value)) -> String {
    let mut header = json!({
        "record": "header", "schema": "aqueduct-perf", "schema_version": 1, "operation": "put",
        "aqueduct_version": "0.1.0", "time_utc": "2026-11-22T14:30:05Z", "ranks": [{}, {}],
    });
    change(&mut header);
    let mut lines = vec![header];
    for (size, median, deviation) in rows {
        let mut row = json!({
            "record": "row", "series": "measured", "algorithm": "hb", "size_bytes": size, "time_p50_us": median, "wrong": 0,
        });
        if let Some(deviation) = deviation {
            row["time_stddev_us"] = json!(deviation);
        }
        change(&mut row);
        lines.push(row);
    }
    lines.push(json!({ "record": "footer", "rows": rows.len() }));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn files_of_perf_are_read_in_both_formats() {
    if !python() {
        return;
    }
    let mut files = Files(Vec::new());
    let (json, csv) = (files.write(""), files.write(""));
    let arguments = ["all-reduce", "-b", "8", "-e", "16", "-n", "4", "-J", json.to_str().unwrap()];
    perf("2", &[&arguments[..], &["--csv", csv.to_str().unwrap()]].concat()).exited(0);
    for (old, new) in [(&json, &json), (&json, &csv), (&csv, &csv)] {
        let outcome = compare(old, new, &["--fail-above", "1.0"]).exited(0);
        let outcome =
            outcome.prints(&["# all-reduce: old ", "out-of-place, 16 B", "in-place, 8 B", "# 4 same\n"]);
        assert!(!outcome.stdout.contains("note:"), "{outcome:#?}");
    }
    // The same, made slower by much more than the spread.
    let text = std::fs::read_to_string(&json).unwrap();
    let mut slow = PerfFile::parse(&text);
    for row in &mut slow.rows {
        row["time_p50_us"] = json!(row["time_p50_us"].as_f64().unwrap() * 3.0 + 1e6);
    }
    let lines = [vec![slow.header], slow.rows].concat();
    let slow = files.write(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let outcome = compare(&csv, &slow, &["--fail-above", "1.05"]).exited(1);
    let outcome = outcome.prints(&["# 4 slower\n", "4 rows are slower than 1.05 times"]);
    let interrupted = "has no footer: the run was interrupted, and only the rows that it had finished are compared; measure";
    outcome.says(&[interrupted]);
    compare(&slow, &csv, &[]).exited(0).says(&[interrupted]).prints(&["# 4 faster\n"]);
    // Its missing rows could be of any speed.
    let outcome = compare(&slow, &csv, &["--fail-above", "1.05"]).exited(2).prints(&["# 4 faster\n"]);
    outcome.says(&[interrupted, "no verdict: ", "may lack the slowest rows; measure again"]);
    // Wrong values fail a new file also where the old one has no such row.
    let mut spoilt = PerfFile::parse(&text);
    spoilt.rows.iter_mut().filter(|row| row["size_bytes"] == 16).for_each(|row| row["wrong"] = 7.into());
    let without: String = text
        .lines()
        .filter(|line| !line.contains("\"size_bytes\":16,"))
        .map(|line| format!("{line}\n"))
        .collect();
    let lines = [vec![spoilt.header], spoilt.rows].concat();
    let spoilt = files.write(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let outcome = compare(&files.write(&without), &spoilt, &[]).exited(1);
    outcome.prints(&["# 2 rows are only in the new file\n", "# 2 rows of the new file have wrong values\n"]);
    // Nor does a new file that was interrupted pass, though none of its rows is slower.
    let rows = text.lines().filter(|line| !line.contains("\"footer\"")).map(|line| format!("{line}\n"));
    let cut = files.write(&rows.collect::<String>());
    compare(&json, &cut, &["--fail-above", "1.05"]).exited(2).says(&[interrupted, "no verdict: "]);
}

#[test]
fn a_dump_is_told_apart() {
    if !python() {
        return;
    }
    let mut files = Files(Vec::new());
    let (json, dump) = (files.write(""), files.write(""));
    let arguments = ["all-reduce", "-b", "8", "-e", "8", "-n", "4", "-J", json.to_str().unwrap()];
    perf("1", &[&arguments[..], &["--dump", dump.to_str().unwrap()]].concat()).exited(0);
    for (old, new) in [(&dump, &dump), (&json, &dump), (&dump, &json)] {
        let words =
            ["is a file of --dump, which holds samples instead of rows: give the file of -J or --csv"];
        compare(old, new, &[]).exited(2).says(&words);
    }
}

#[test]
fn rows_without_a_time_or_a_spread_are_counted() {
    if !python() {
        return;
    }
    let mut files = Files(Vec::new());
    let rows = [(8, 10.0, Some(0.1)), (64, 10.0, Some(0.1)), (512, 10.0, None)];
    let good = files.write(&file(&rows, |_| {}));
    let outcome = compare(&good, &good, &[]).exited(0).prints(&["# 2 same, 1 unknown\n"]);
    outcome.says(&[
        "1 rows have a single sample in one of the files",
        "measure with a larger -n, or with --batch 1",
    ]);
    let without = files.write(&file(&rows, |line| {
        if line["size_bytes"] == 64 {
            line.as_object_mut().unwrap().remove("time_p50_us");
        }
    }));
    for (old, new) in [(&good, &without), (&without, &good)] {
        let outcome = compare(old, new, &[]).exited(0).prints(&["# 1 same, 2 unknown\n", " - "]);
        assert!(!outcome.stdout.contains("nan  "), "{outcome:#?}");
        let words = format!(
            "{} has 1 rows without time_p50_us, which cannot be compared; measure",
            without.display()
        );
        outcome.says(&[&words]);
    }
    let nothing = files.write(&file(&rows, |line| {
        if line["record"] == "row" {
            line.as_object_mut().unwrap().remove("time_p50_us");
        }
    }));
    let limit = ["--fail-above", "1.05"];
    compare(&good, &nothing, &limit)
        .exited(2)
        .says(&["has 3 rows without time_p50_us", "no row can be judged"]);
    let infinite = files.write(&file(&[(8, 10.0, None)], |_| {}).replace("10.0", "Infinity"));
    compare(&good, &infinite, &limit).exited(2).says(&["whose time_p50_us is inf: it is no time"]);
}

#[test]
fn a_verdict_knows_the_spread() {
    if !python() {
        return;
    }
    let mut files = Files(Vec::new());
    let same = |_: &mut Value| {};
    let old = files.write(&file(&[(8, 10.0, Some(3.0)), (64, 10.0, Some(0.1)), (512, 10.0, None)], same));
    // 5 us are the spread of the first row: 3 and 4 in squares.
    let new =
        files.write(&file(&[(8, 15.0, Some(4.0)), (64, 10.8, Some(0.1)), (512, 20.0, Some(1.0))], same));
    let outcome = compare(&old, &new, &[]).exited(0).prints(&["# 1 same, 1 slower, 1 unknown\n"]);
    let rows: Vec<Vec<&str>> = outcome
        .stdout
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][..5], ["10.000", "15.000", "5.000", "1.500", "same"]);
    assert_eq!(rows[1][3..5], ["1.080", "slower"]);
    assert_eq!(rows[2][2..5], ["-", "2.000", "unknown"]);
    // 1.08 is within the first limit; the other rows are not judged.
    compare(&old, &new, &["--fail-above", "1.1"]).exited(0);
    compare(&old, &new, &["--fail-above", "1.05"])
        .exited(1)
        .prints(&["64 B, hb  <-- above the limit", "1 rows are"]);
    // A bare loop may be slower.
    let bare = |line: &mut Value| {
        if line["record"] == "row" {
            line["series"] = "comparison".into();
        }
    };
    let (old, new) = (file(&[(8, 1.0, Some(0.1))], bare), file(&[(8, 9.0, Some(0.1))], bare));
    let (old, new) = (files.write(&old), files.write(&new));
    compare(&old, &new, &["--fail-above", "1.05"]).exited(0).prints(&["# 1 slower\n"]);
    // Nothing can be judged: a limit cannot be kept.
    let single = files.write(&file(&[(8, 1.0, None)], same));
    compare(&single, &single, &["--fail-above", "1.05"]).exited(2).says(&["no row can be judged"]);
    compare(&single, &single, &[]).exited(0);
}

#[test]
fn files_that_cannot_be_compared_are_refused() {
    if !python() {
        return;
    }
    let mut files = Files(Vec::new());
    let rows = [(8, 10.0, Some(1.0))];
    let good = files.write(&file(&rows, |_| {}));
    let with = |name: &'static str, value: Value| {
        file(&rows, move |line| {
            if line["record"] == "header" {
                line[name] = value.clone();
            }
        })
    };
    for (text, words) in [
        (
            with("schema_version", json!(2)),
            "has version 2 of schema aqueduct-perf, and this script reads version 1",
        ),
        (with("schema", json!("other")), "has no header of schema aqueduct-perf"),
        (with("operation", json!("get")), "is about put and"),
        (file(&[(16, 1.0, None)], |_| {}), "have no row in common"),
        ("size,count\n8,2\n".to_owned(), "is no file of `aqueduct perf -J` or `--csv`"),
        (String::new(), "has no header of schema"),
        (
            file(&rows, |line| {
                if line["record"] == "row" {
                    line["time_p50_us"] = json!("fast");
                }
            }),
            "has a row whose time_p50_us is 'fast': it is no time",
        ),
        (file(&[(8, 0.0, None)], |_| {}), "has a row whose time_p50_us is 0.0: it is no time"),
    ] {
        let other = files.write(&text);
        compare(&good, &other, &["--fail-above", "1.05"]).exited(2).says(&["compare: ", words]);
    }
    compare(&good, Path::new("/nonexistent/file"), &[]).exited(2).says(&["cannot read /nonexistent/file"]);
    // A table that cannot be written is no verdict.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut python = command("python3");
    let running =
        start_with(python.arg(SCRIPT).args([&good, &good]).stdin(std::process::Stdio::null()), full);
    running.finish().exited(2).says(&["compare: ", "No space left on device"]);
    // Other options are told, not refused.
    let other = files.write(&with("parameters", json!({ "iterations": 3 })));
    compare(&good, &other, &[])
        .exited(0)
        .prints(&["# note: parameters differs: null and {\"iterations\": 3}"]);
    let wrong = files.write(&file(&rows, |line| {
        if line["record"] == "row" {
            line["wrong"] = json!(7);
        }
    }));
    compare(&good, &wrong, &[]).exited(1).prints(&["# 1 WRONG", "have wrong values"]);
}
