//! `aqueduct tune`, and collectives that read the table which it writes.

use std::fs;
use std::path::Path;

use crate::support::{Outcome, aqueduct, run};

/// Two ranks of `aqueduct ARGUMENTS`.
fn ranks(arguments: &[&str], table: Option<&Path>) -> Outcome {
    let mut command = aqueduct(&["run", "--no-prefix", "-n", "2", "--", "aqueduct"]);
    command.args(arguments);
    if let Some(table) = table {
        command.env("AQUEDUCT_TUNING", table);
    }
    run(&mut command)
}

fn explained(table: &Path) -> Outcome {
    ranks(&["perf", "all-reduce", "--explain", "-b", "4K", "-e", "16K", "-f", "4", "-n", "1"], Some(table))
}

#[test]
fn a_table_is_measured_written_and_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("mine.tuning");
    let path = table.to_str().expect("a path in UTF-8");
    let tune =
        |operation: &str| ranks(&["tune", operation, "-o", path, "-e", "2K", "-n", "1", "-G", "2"], None);
    tune("all-reduce").exited(0).prints(&[
        "# all-reduce: packets up to ",
        "LL128 packets up to ",
        "by copy engines",
        "mine.tuning written",
    ]);
    tune("send-recv").exited(0);
    let text = fs::read_to_string(&table).expect("the table was written");
    assert!(
        text.starts_with("aqueduct-tuning 3\ndevice aqueduct software device\nmultiprocessors 16\n"),
        "{text}"
    );
    assert!(text.contains("\nall-reduce 2 "), "a later run keeps the lines of others: {text}");
    assert!(text.contains("\nsend-recv 2 "), "{text}");
    explained(&table)
        .exited(0)
        .prints(&[&format!("(measured: table {path})"), "# Out of bounds values : 0 OK"]);
}

/// Sizes are rounded to what the ranks can share out: three do not divide a power of two.
#[test]
fn three_ranks_are_measured_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("three.tuning");
    let path = table.to_str().expect("a path in UTF-8");
    let tune = ["tune", "reduce-scatter", "all-gather", "-o", path, "-e", "2K", "-n", "1", "-G", "2"];
    run(aqueduct(&["run", "--no-prefix", "-n", "3", "--", "aqueduct"]).args(tune)).exited(0);
    let text = fs::read_to_string(&table).expect("the table was written");
    assert!(text.contains("\nreduce-scatter 3 ") && text.contains("\nall-gather 3 "), "{text}");
}

#[test]
fn the_table_decides_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("t");
    let with = |device: &str, lines: &str| {
        fs::write(&table, format!("aqueduct-tuning 3\ndevice {device}\nmultiprocessors 16\n{lines}\n"))
            .expect("room");
        explained(&table)
    };
    let soft = "aqueduct software device";
    let chosen = with(soft, "all-reduce 2 4096 0 2 1 0").exited(0);
    chosen.prints(&[
        "4096 bytes are at most 4096",
        "out of place from 16384 B: zero-copy",
        "1 blocks",
        " 0 OK",
    ]);
    let none = with(soft, "all-reduce 2 0 0 2 2 0").exited(0);
    assert!(!none.stdout.contains(": packets:"), "{}", none.stdout);
    let lines = with(soft, "all-reduce 2 4096 16384 2 1 0").exited(0);
    lines.prints(&[
        "16384 B: lines: 16384 bytes are more than 4096 and at most 16384: LL128 packets",
        " 0 OK",
    ]);
    let copied = with(soft, "all-reduce 2 4096 0 2 1 16384").exited(0);
    copied.prints(&[
        "16384 B: copy-engine: 16384 bytes are at least 16384",
        "copy engines move them (measured",
        " 0 OK",
    ]);
    with(soft, "all-reduce 4 4096 0 2 1 0")
        .exited(0)
        .prints(&["a rule; table", "has no line for allreduce of 2 ranks"]);
    // Of another machine: right results, the next best choice, and both places say so.
    let other = with("NVIDIA H300", "all-reduce 2 4096 0 2 1 0").exited(0);
    other.prints(&["a rule; the table", "is for NVIDIA H300", " 0 OK"]).says(&["it is passed over"]);
    let smaller =
        "aqueduct-tuning 3\ndevice aqueduct software device\nmultiprocessors 15\nall-reduce 2 4096 0 2 1 0\n";
    fs::write(&table, smaller).expect("room");
    let other = explained(&table).exited(0);
    other.prints(&["a rule; the table", "with 15 multiprocessors", " 0 OK"]).says(&["it is passed over"]);
    // Of another version, and nonsense.
    fs::write(&table, "aqueduct-tuning 2\n").expect("room");
    explained(&table).exited(2).says(&["line 1", "make it anew with `aqueduct tune`"]);
    ranks(&["tune", "-e", "512"], None).exited(2).says(&["messages from 1024 bytes on are measured"]);
    with(soft, "all-reduce 2 many 0 2 2 0").exited(2).says(&["line 4: all-reduce needs ranks"]);
    fs::remove_file(&table).expect("it was there");
    explained(&table).exited(2).says(&["cannot read"]);
}

/// Each rank reads the file of its own folder.
#[test]
fn ranks_with_different_tables_refuse() {
    let folder = tempfile::tempdir().expect("a folder");
    for (rank, bytes) in [(0, 4096), (1, 8192)] {
        let path = folder.path().join(rank.to_string());
        let text = format!(
            "aqueduct-tuning 3\ndevice aqueduct software device\nmultiprocessors 16\nall-reduce 2 {bytes} 0 2 2 0\n"
        );
        fs::write(path, text).expect("room");
    }
    let script = format!(
        "AQUEDUCT_TUNING={}/$AQUEDUCT_RANK exec {} perf all-reduce -b 4K -e 4K -n 1",
        folder.path().display(),
        env!("CARGO_BIN_EXE_aqueduct")
    );
    let outcome = run(&mut aqueduct(&["run", "--no-prefix", "-n", "2", "--", "sh", "-c", &script]));
    assert_ne!(outcome.code, Some(0), "{outcome:#?}");
    outcome.says(&["has another table of choices", "the same file in AQUEDUCT_TUNING"]);
    fs::write(folder.path().join("1"), "nonsense").expect("room");
    let outcome = run(&mut aqueduct(&["run", "--no-prefix", "-n", "2", "--", "sh", "-c", &script]));
    assert_ne!(outcome.code, Some(0), "{outcome:#?}");
    outcome.says(&["line 1"]);
}

#[test]
fn what_cannot_be_measured_or_kept_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t");
    let path = path.to_str().expect("a path in UTF-8");
    ranks(&["tune", "put", "-o", path], None).exited(2).says(&["put is no built-in collective"]);
    ranks(&["tune", "all-reduce", "-o", "/nowhere/t"], None).exited(1).says(&["cannot write /nowhere/t"]);
    fs::write(path, "aqueduct-tuning 3\ndevice X\nmultiprocessors 3\n").expect("room");
    ranks(&["tune", "all-reduce", "-o", path], None)
        .exited(2)
        .says(&["is for X with 3", "give another file"]);
    run(&mut aqueduct(&["tune"])).exited(2).says(&["tune works between ranks"]);
    let perf = |operation: &str| ranks(&["perf", operation, "--explain"], None);
    perf("put").exited(2).says(&["--explain does nothing in perf put"]);
    perf("all-to-all-v").exited(2).says(&["--explain does nothing in perf all-to-all-v"]);
}

/// Ranks measure the same sizes, which the scratch of the one that has least allows: here none of packets.
#[test]
fn the_rank_with_the_least_scratch_decides() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("mine.tuning");
    let script = "if [ $AQUEDUCT_RANK = 1 ]; then export AQUEDUCT_SCRATCH_BYTES=1000; fi; exec \"$@\"";
    let mut command = aqueduct(&[
        "run",
        "--no-prefix",
        "-n",
        "2",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_aqueduct"),
    ]);
    command.args(["tune", "all-reduce", "-e", "2K", "-n", "1", "-G", "2", "-o"]).arg(&table);
    run(&mut command).exited(0).prints(&["# all-reduce: no line, for want of scratch for packets"]);
}
