//! `aqueduct bench` where there is no NCCL: ours is measured and checked, and the head says why it stands alone.

use serde_json::Value;

use crate::support::{Outcome, aqueduct, run};

fn bench(arguments: &[&str]) -> Outcome {
    let words = ["run", "--no-prefix", "-n", "2", "--", "aqueduct", "bench"];
    run(aqueduct(&words).args(arguments))
}

#[test]
fn without_nccl_ours_stands_alone() {
    let outcome = bench(&["all-gather", "-b", "1K", "-e", "4K", "-f", "4", "-J", "-"]).exited(0);
    let lines: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    let rows: Vec<&Value> = lines.iter().filter(|line| line["record"] == "row").collect();
    assert_eq!(rows.len(), 2, "{}", outcome.stdout);
    for (row, bytes) in rows.iter().zip([1024, 4096]) {
        assert_eq!(
            (&row["series"], &row["size_bytes"], &row["wrong"]),
            (&"measured".into(), &bytes.into(), &0.into())
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("plot.svg");
    let path = plot.to_str().expect("a path in UTF-8");
    let table = bench(&["all-reduce", "-b", "1K", "-e", "1K", "--plot", path]).exited(0).stdout;
    let drawn = std::fs::read_to_string(&plot).expect("rank 0 has drawn it");
    assert!(drawn.contains("all-reduce of 2 ranks") && drawn.contains("aqueduct, 1024 B: "), "{drawn}");
    assert!(table.contains("without NCCL: there is no GPU"), "{table}");
}

#[test]
fn what_nccl_lacks_and_options_without_use_are_refused() {
    let error = |words: &[&str]| bench(words).exited(2).stderr;
    let nowhere = bench(&["all-reduce", "--plot", "/nowhere/plot.svg"]).exited(1);
    nowhere.says(&["cannot write /nowhere/plot.svg"]);
    assert!(error(&["put"]).contains("put has no counterpart in NCCL"));
    assert!(error(&["all-gather", "-o", "max"]).contains("--op does nothing in bench all-gather"));
    assert!(error(&["broadcast", "-r", "2"]).contains("there are 2 ranks; use at most 1"));
}
