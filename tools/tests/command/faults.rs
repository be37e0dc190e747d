//! Injected faults in the unchanged command.

use crate::support::{run, script};

/// The warning of every rank when `AQUEDUCT_FAULTS` is set.
const WARNING: &str = "AQUEDUCT_FAULTS is set: this process fails on purpose";

#[test]
fn the_documented_faults() {
    let document = include_str!("../../../docs/faults.md");
    let ends = [
        (
            1,
            "cuMemCreate returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; the software device's memory is used up",
        ),
        // Every rank says that another one has failed.
        (75, "was lost: "),
    ];
    let mut examples = document.lines().filter(|line| line.starts_with("AQUEDUCT_FAULTS="));
    for (code, end) in ends {
        let example = examples.next().expect("an example for each end");
        let outcome = run(&mut script(example)).says(&[end, WARNING]);
        // Rank 1 loses its links, and accuses the others as they accuse it. A rank that hears first that it was given up fails for
        // a reason of its own, and the launcher says so.
        let given_up = outcome.stderr.split("others have given up this process, which is rank ").nth(1);
        let given_up = given_up.and_then(|rest| rest.split(':').next()).map(str::to_owned);
        let outcome = match given_up {
            Some(rank) if code == 75 => outcome
                .exited(1)
                .says(&[&format!("aqueduct run: rank {rank} failed first: it exited with code 1")]),
            _ => outcome.exited(code),
        };
        outcome.says_each_cause_once();
    }
    assert_eq!(examples.next(), None, "how does it end?");
}

#[test]
fn every_kind_of_rule() {
    let job = "aqueduct run -n 2 -- aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0";
    for (rules, code, words) in [
        (
            "driver:cuStreamCreate:1+=NOT_PERMITTED",
            1,
            &["cuStreamCreate returned CUDA_ERROR_NOT_PERMITTED"][..],
        ),
        ("driver:allocation:2=2", 1, &["CUDA_ERROR_OUT_OF_MEMORY"]),
        ("driver:lost:200=ECC_UNCORRECTABLE", 1, &["CUDA_ERROR_ECC_UNCORRECTABLE"]),
        ("driver:memory:1000", 1, &["CUDA_ERROR_OUT_OF_MEMORY"]),
        ("net:from=1:on=rendezvous:drop", 1, &["was lost: "]),
        // Delayed, but correct.
        ("seed=3;net:on=control:delay=20", 0, &[]),
        (
            "net:from=1:sometimes",
            2,
            &["`net:from=1:sometimes` in AQUEDUCT_FAULTS", "drop, truncate", "docs/faults.md"],
        ),
        ("driver:cuMemCreate:0=2", 2, &["`driver:cuMemCreate:0=2` in AQUEDUCT_FAULTS", "docs/faults.md"]),
    ] {
        let mut command = script(job);
        let outcome =
            run(command.env("AQUEDUCT_FAULTS", rules).env("AQUEDUCT_TIMEOUT", "20")).exited(code).says(words);
        outcome.says_each_cause_once();
        let refused = outcome.stderr.contains("docs/faults.md");
        assert!(refused || outcome.stderr.contains(WARNING), "{rules}: {outcome:#?}");
    }
}

/// `perf startup` joins step by step. A rank that fails in it names the cause for all.
#[test]
fn a_start_that_fails_at_one_rank_is_blamed_on_it() {
    // Kernels are loaded, or linked where there are processors for several threads.
    let rules = "driver:cuModuleLoadDataEx:1+=OUT_OF_MEMORY;driver:cuLinkCreate_v2:1+=OUT_OF_MEMORY";
    // Rank 0 says how it ended; the launcher would end it by SIGTERM.
    let job = r#"aqueduct run -n 2 -- sh -c '
        if [ $AQUEDUCT_RANK = 1 ]; then AQUEDUCT_FAULTS="$RULES" exec aqueduct perf startup; fi
        trap "" TERM; aqueduct perf startup; code=$?; echo "rank 0 exited with $code"; exit $code'"#;
    let outcome = run(script(job).env("RULES", rules)).exited(1).prints(&["rank 0 exited with 75"]);
    let said = |rank: &str| {
        outcome.stderr.lines().any(|line| line.starts_with(rank) && line.contains("CUDA_ERROR_OUT_OF_MEMORY"))
    };
    assert!(said("[0]") && said("[1]"), "{outcome:#?}");
    assert!(outcome.last().contains("rank 1 failed first"), "{outcome:#?}");
}
