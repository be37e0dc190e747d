//! `aqueduct selftest` as an operator runs it, on the software device: what it finds right, wrong, and impossible.

#[path = "command/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the other commands, which need more of it")]
mod support;

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use support::{Outcome, aqueduct};

/// One self-test at a time: each is several processes, and one of them has a limit of time.
fn run(command: &mut Command) -> Outcome {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    support::run(command)
}

fn selftest(arguments: &[&str]) -> Command {
    aqueduct(&[&["selftest", "--quick"], arguments].concat())
}

/// The rows with `verdict`.
fn rows<'a>(outcome: &'a Outcome, verdict: &str) -> Vec<&'a str> {
    let is = |line: &&str| !line.starts_with(['#', ' ']) && line.contains(&format!(" {verdict} "));
    outcome.stdout.lines().filter(is).collect()
}

/// Asserts that the last line counts the rows above it.
#[track_caller]
fn counted(outcome: &Outcome) -> [usize; 3] {
    let counts = ["passed", "FAILED", "not run"].map(|verdict| rows(outcome, verdict).len());
    let [passed, failed, not_run] = counts;
    let line = format!("# selftest : {passed} passed, {failed} failed, {not_run} not run");
    assert_eq!(outcome.stdout.lines().last(), Some(&*line), "{}", outcome.stdout);
    counts
}

#[test]
fn everything_passes_and_what_cannot_run_says_why() {
    let outcome = run(&mut selftest(&[])).exited(0);
    assert!(outcome.time < Duration::from_secs(20), "it took {:?}", outcome.time);
    let [passed, failed, not_run] = counted(&outcome);
    assert!(passed >= 26 && failed == 0, "{}", outcome.stdout);
    assert_eq!(not_run, 1, "{}", outcome.stdout);
    assert!(rows(&outcome, "not run")[0].starts_with("memory by fabric handle"), "{}", outcome.stdout);
    outcome.prints(&[
        "this device has no fabric handles",
        "semaphore wait on rank 1, counter at 0 of 1",
        "# software device: times say nothing about GPUs",
        "# host ",
        "software device: loaded from",
        "# rank   1 pid",
    ]);
}

#[test]
fn an_odd_number_of_ranks() {
    let outcome = run(&mut selftest(&["-n", "3"])).exited(0);
    assert_eq!(counted(&outcome)[1], 0);
    outcome.prints(&["# rank   2 pid"]);
}

#[test]
fn alone_nothing_that_takes_two_is_counted_as_passed() {
    let outcome = run(&mut selftest(&["-n", "1"])).exited(0);
    let [_, failed, _] = counted(&outcome);
    assert_eq!(failed, 0, "{}", outcome.stdout);
    let not_run = rows(&outcome, "not run");
    for name in ["channel put", "channel LL16 put, unpack", "connection CudaIpc", "abort of a waiting kernel"]
    {
        assert!(not_run.iter().any(|row| row.starts_with(name)), "{name} in {}", outcome.stdout);
    }
    outcome.prints(&["needs a second rank"]);
}

/// All-reduce cannot be prepared; what does not need it works before and after.
#[test]
fn a_failure_is_named_and_the_rest_still_checked() {
    let outcome = run(selftest(&[]).env("AQUEDUCT_SCRATCH_BYTES", "4096")).exited(1);
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 14, "{}", outcome.stdout);
    assert!(failed >= 11, "{}", outcome.stdout);
    assert!(
        rows(&outcome, "FAILED").iter().all(|row| row.starts_with("all-reduce ") || row.starts_with("two "))
    );
    assert!(rows(&outcome, "passed").iter().any(|row| row.starts_with("abort of a waiting kernel")));
    outcome.prints(&["# FAILED all-reduce 1shot-ll f32", "set AQUEDUCT_SCRATCH_BYTES to"]);
}

/// One rank fails where the other could go on: neither hangs, and both go on to the next check.
#[test]
fn one_rank_fails_and_both_go_on() {
    let rank = "if [ $AQUEDUCT_RANK = 1 ]; then export AQUEDUCT_SCRATCH_BYTES=4096; fi; exec \"$0\" selftest --quick";
    let own = env!("CARGO_BIN_EXE_aqueduct");
    let launch = ["run", "-n", "2", "--no-prefix", "--timeout", "100", "--", "sh", "-c", rank, own];
    let outcome = run(&mut aqueduct(&launch)).exited(1);
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 14 && failed >= 11, "{}", outcome.stdout);
    outcome.prints(&["#   rank 1: ", "set AQUEDUCT_SCRATCH_BYTES to"]);
}
