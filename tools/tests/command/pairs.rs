//! Operations of pairs, and jobs in which a rank has no partner.

use std::time::Duration;

use crate::support::{aqueduct, perf, run, temporary};

/// Every operation of pairs, with the options that it needs.
const OPERATIONS: [&[&str]; 11] = [
    &["put"],
    &["get", "--bidirectional"],
    &["ll8"],
    &["ll16"],
    &["ll128"],
    &["signal"],
    &["write", "-t", "Ethernet"],
    &["read", "-t", "CudaIpc", "-p", "bidirectional"],
    &["write-lat", "-t", "Ethernet"],
    &["flush", "-t", "Ethernet"],
    &["port-put", "-t", "CudaIpc"],
];

/// As under a launcher that leaves ranks to themselves: this one is started, and the others never are. It neither waits for
/// them nor prints or creates anything.
#[test]
fn a_rank_of_an_odd_job_says_so_at_once() {
    for operation in OPERATIONS {
        let path = temporary("odd.jsonl");
        let mut command = aqueduct(&[&["perf"], operation, &["-J", path.to_str().unwrap()]].concat());
        command.env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "3");
        let name = operation[0];
        let words =
            [&format!("perf {name} works on pairs"), "run an even number of ranks", "`aqueduct run -n 2"];
        let outcome = run(&mut command).exited(2).says(&words);
        assert_eq!((outcome.stdout.as_str(), path.exists()), ("", false), "{outcome:#?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
        assert!(outcome.time < Duration::from_secs(10), "{outcome:#?}");
    }
}

#[test]
fn all_to_all_needs_no_pairs_and_not_one_rank() {
    let command = ["write", "-t", "Ethernet", "-p", "all-to-all", "-b", "64", "-e", "64", "-n", "1"];
    perf("1", &command).exited(2).says(&["perf write works between ranks: run two or more"]);
    perf("3", &command).exited(0);
}

#[test]
fn nothing_is_printed_before_the_refusal() {
    let outcome = perf("3", &["signal"]).exited(2).says(&["perf signal works on pairs"]);
    assert_eq!(outcome.stdout, "");
}
