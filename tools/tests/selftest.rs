//! `aqueduct selftest` as an operator runs it, on the software device: checks that pass, fail, and cannot run.

#[path = "command/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the other commands, which need more of it")]
mod support;

use std::process::Command;
use std::time::Duration;

use support::{Outcome, aqueduct, run};

/// Without NICs, also where there are some.
fn selftest(arguments: &[&str]) -> Command {
    let mut command = aqueduct(&[&["selftest", "--quick"], arguments].concat());
    command.env("AQUEDUCT_IB_DEVICES", "absent0");
    command
}

/// The names of what a row was printed for.
fn names<'a>(rows: &[&'a str]) -> Vec<&'a str> {
    rows.iter().map(|row| row[..30].trim_end()).collect()
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
    let [passed, failed, not_run] = counted(&outcome);
    assert!(passed >= 34 && failed == 0, "{}", outcome.stdout);
    assert_eq!(not_run, 3, "{}", outcome.stdout);
    let missing = ["memory by fabric handle", "connection verbs", "port channel verbs"];
    assert_eq!(names(&rows(&outcome, "not run")), missing, "{}", outcome.stdout);
    let ran = names(&rows(&outcome, "passed"));
    for part in [
        "channel put",
        "connection CudaIpc",
        "connection Ethernet",
        "FIFO to a proxy",
        "port channel CudaIpc",
        "port packets CudaIpc",
        "port channel Ethernet",
        "port packets Ethernet",
        "device library, channel",
        "device library, trigger",
        "all-reduce packets f32",
    ] {
        assert!(ran.contains(&part), "{part} in {ran:?}");
    }
    outcome.prints(&[
        "no NIC with an active port: ",
        "this device has no fabric handles",
        "semaphore wait on rank 1, counter at 0 of 1",
        "# software device: times say nothing about GPUs",
        "# host ",
        "software device: loaded from",
        "# rank   1 pid",
    ]);
}

/// Nothing that it does relies on an order that a rank learns of only by messages of another process.
#[test]
fn everything_passes_under_the_race_detector() {
    let outcome =
        run(selftest(&[]).envs([("AQUEDUCT_SOFT_CHECK", "races"), ("AQUEDUCT_SOFT_SMS", "2")])).exited(0);
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 34 && failed == 0, "{}", outcome.stdout);
}

/// A check of what the device lacks does not run, and so cannot fail.
#[test]
fn a_kind_of_handle_that_the_device_lacks_is_not_run() {
    for (lacks, name, why) in [
        ("ipc", "memory by legacy handle", "this device has no legacy handles"),
        ("vmm", "memory by file descriptor", "this device has no virtual memory management"),
    ] {
        let outcome = run(selftest(&[]).env("AQUEDUCT_SOFT_LACKS", lacks)).exited(0);
        assert_eq!(counted(&outcome)[1], 0, "{}", outcome.stdout);
        let not_run = rows(&outcome, "not run");
        assert!(not_run.iter().any(|row| row.starts_with(name) && row.contains(why)), "{lacks}: {not_run:?}");
    }
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
    let not_run = names(&rows(&outcome, "not run"));
    for name in [
        "channel put",
        "channel LL16 put, unpack",
        "connection CudaIpc",
        "connection Ethernet",
        "port channel CudaIpc",
        "port packets Ethernet",
        "device library, channel",
        "abort of a waiting kernel",
    ] {
        assert!(not_run.contains(&name), "{name} in {}", outcome.stdout);
    }
    let passed = names(&rows(&outcome, "passed"));
    assert!(passed.contains(&"FIFO to a proxy") && passed.contains(&"device library, trigger"), "{passed:?}");
    outcome.prints(&["needs a second rank"]);
}

/// Every check that reads data back compares it: a byte that is changed before the comparison is seen by all of them.
#[test]
fn no_check_passes_with_damaged_data() {
    let outcome = run(&mut selftest(&["--spoil"])).exited(1);
    let [_, failed, _] = counted(&outcome);
    assert!(failed >= 32, "{}", outcome.stdout);
    assert_eq!(names(&rows(&outcome, "passed")), ["set-up", "peer access"], "{}", outcome.stdout);
    let outcome = outcome.prints(&[
        "# FAILED connection Ethernet",
        "put of 1 bytes by rank 1 from 3 to 5: 1 of 98304 bytes differ, from byte 0",
        "triggers of each thread, as the proxy saw them: 1 of 76800 bytes differ",
        "the last answer of each thread: 1 of 1536 bytes differ",
    ]);
    // Checks that compare several things. Each of them alone fails the check, so each has to be named.
    for (name, complaints) in [
        ("memory by file descriptor", &["data written by rank 1", "read back from rank 1"][..]),
        ("memory by legacy handle", &["data written by rank 1", "read back from rank 1"]),
        ("channel get", &["get of 0 bytes of rank 1 from 0 to 0", "what a get has read"]),
        ("channel element read, write", &["element 0 written", "element 0 read back"]),
        (
            "connection CudaIpc",
            &[
                "write of 0 bytes by rank 1",
                "read of 0 bytes of rank 1",
                "0 bytes of rank 1 from 0 to 0, behind",
            ],
        ),
        ("connection Ethernet", &["write of 0 bytes by rank 1", "0 bytes of rank 1 from 0 to 0, behind"]),
        ("FIFO to a proxy", &["the code that a thread left with", "triggers of each thread"]),
        ("device library, channel", &["the code that the kernel left with", "parts of 4096 bytes gathered"]),
        ("device library, trigger", &["the code that a thread left with", "the last answer of each thread"]),
    ] {
        let failed = rows(&outcome, "FAILED");
        let row = failed.iter().find(|row| row.starts_with(name)).expect(name);
        for complaint in complaints {
            assert!(row.contains(complaint), "`{complaint}` is not in {row}");
        }
    }
}

/// A fault fails the checks of the broken part by name, and no others.
#[test]
fn a_broken_part_is_named() {
    for (faults, parts, words) in [
        (
            // In what rank 0 sends over each of the streams that are long enough.
            "net:from=0:on=data:after=200000:corrupt=64",
            &["connection Ethernet", "port channel Ethernet"][..],
            " of 98304 bytes differ",
        ),
        (
            "net:from=0:on=data:after=200000:drop",
            &["connection Ethernet", "port channel Ethernet"],
            "the Ethernet connection to rank 1 has failed",
        ),
        (
            "driver:cuLinkCreate_v2:1+=NOT_SUPPORTED",
            &["device library, channel", "device library, trigger"],
            "cuLinkCreate_v2 returned CUDA_ERROR_NOT_SUPPORTED",
        ),
    ] {
        let outcome = run(selftest(&[]).env("AQUEDUCT_FAULTS", faults)).exited(1);
        assert_eq!(names(&rows(&outcome, "FAILED")), parts, "{faults}: {}", outcome.stdout);
        counted(&outcome);
        outcome.prints(&[words]);
    }
}

/// All-reduce cannot be prepared; what does not need it works before and after.
#[test]
fn a_failure_is_named_and_the_rest_still_checked() {
    // Too few for the shortest slice through scratch.
    let outcome = run(selftest(&[]).env("AQUEDUCT_SCRATCH_BYTES", "100")).exited(1);
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 14, "{}", outcome.stdout);
    assert!(failed >= 11, "{}", outcome.stdout);
    assert!(
        rows(&outcome, "FAILED").iter().all(|row| row.starts_with("all-reduce ") || row.starts_with("two "))
    );
    assert!(rows(&outcome, "passed").iter().any(|row| row.starts_with("abort of a waiting kernel")));
    outcome.prints(&["# FAILED all-reduce packets f32", "set AQUEDUCT_SCRATCH_BYTES to"]);
}

/// The report is whole: it names the check and the rank, and ends with the summary, whichever rank was killed.
#[test]
fn a_killed_rank_and_the_running_check_are_named() {
    for (launched, ranks, victim, reporter) in
        [(false, "2", 1, 0), (true, "2", 0, 1), (false, "3", 0, 1), (true, "3", 2, 0)]
    {
        let own = env!("CARGO_BIN_EXE_aqueduct");
        let mut command = match launched {
            true => aqueduct(&["run", "-n", ranks, "--no-prefix", "--", own, "selftest", "--quick"]),
            false => selftest(&["-n", ranks]),
        };
        command.env("AQUEDUCT_IB_DEVICES", "absent0");
        let outcome = killing(&mut command, ranks.parse().unwrap(), victim).exited(137);
        let lost = format!("rank {victim} was lost during this check");
        let running = rows(&outcome, "FAILED");
        assert!(running.len() == 1 && running[0].ends_with(&lost), "{outcome:#?}");
        let not_run = rows(&outcome, "not run");
        assert!(not_run.iter().any(|row| row.ends_with(&format!("rank {victim} was lost"))), "{outcome:#?}");
        // Rank 0 takes what it has printed along.
        let line = outcome.stdout.lines().last().unwrap_or_default();
        assert!(line.starts_with("# selftest : ") && line.contains(" passed, 1 failed, "), "{outcome:#?}");
        if reporter == 0 {
            counted(&outcome);
        }
        let name = names(&running)[0].to_owned();
        let outcome = outcome.prints(&[&format!("# FAILED {name}\n#   {lost}\n")]);
        outcome.says(&[&format!("rank {victim} failed first: it was killed by signal 9")]);
    }
}

/// An operator's signal, too: as soon as the ranks catch it, and some checks later.
#[test]
fn an_interrupted_self_test_ends_with_its_summary() {
    for delay in [0, 1000] {
        let job = support::start(&mut selftest(&[]));
        wait_for_ranks(&job, 2);
        std::thread::sleep(Duration::from_millis(delay));
        job.signal(libc::SIGTERM);
        let outcome = job.finish().exited(143);
        let [_, failed, _] = counted(&outcome);
        assert_eq!(failed, 1, "{outcome:#?}");
        outcome.prints(&[
            "FAILED",
            "  ended by signal 15 during this check",
            "#   ended by signal 15 during this check",
        ]);
    }
}

/// The signal reaches a single rank: the report names it, and all end at once.
#[test]
fn a_single_interrupted_rank_is_named() {
    for (ranks, victim, why) in [
        ("2", 1, "rank 1 was ended by signal 15 during this check"),
        ("3", 2, "rank 2 was ended by signal 15 during this check"),
        ("2", 0, "ended by signal 15 during this check"),
    ] {
        let job = support::start(&mut selftest(&["-n", ranks]));
        let pids = wait_for_ranks(&job, ranks.parse().unwrap());
        signal(pids[victim], libc::SIGTERM);
        let outcome = job.finish().exited(143);
        let [_, failed, _] = counted(&outcome);
        assert_eq!(failed, 1, "{outcome:#?}");
        let outcome = outcome.prints(&[&format!("#   {why}\n")]);
        outcome.says(&[&format!("rank {victim} failed first: it exited with code 143")]);
    }
}

/// A rank that waits for the report of another one does not wait for a rank that is killed: it reports itself.
#[test]
fn a_killed_reporter_is_replaced() {
    let job = support::start(&mut selftest(&[]));
    let pids = wait_for_ranks(&job, 2);
    // Stopped, it cannot report; rank 1 waits for it.
    signal(pids[0], libc::SIGSTOP);
    signal(pids[1], libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    signal(pids[0], libc::SIGKILL);
    let outcome = job.finish().exited(137);
    let lost = "rank 0 was lost during this check";
    let outcome = outcome.prints(&[&format!("#   {lost}\n"), "# selftest : 0 passed, 1 failed, "]);
    outcome.says(&["rank 0 failed first: it was killed by signal 9"]);
}

/// Runs the command and kills a rank of it after a few checks.
fn killing(command: &mut Command, ranks: usize, victim: usize) -> Outcome {
    let job = support::start(command);
    let pids = wait_for_ranks(&job, ranks);
    std::thread::sleep(Duration::from_millis(1000));
    signal(pids[victim], libc::SIGKILL);
    job.finish()
}

/// Sends `signal` to a rank that has not ended by itself.
fn signal(pid: i32, signal: i32) {
    // SAFETY: touches no memory; the launcher reaps its ranks only at its end.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Waits until the job's ranks have met and catch signals: they check. Returns their processes, in rank order.
fn wait_for_ranks(job: &support::Running, count: usize) -> Vec<i32> {
    let catching = || {
        let mut ranks = ranks_of(job.pid());
        ranks.retain(|&(_, pid)| catches_terminate(pid));
        ranks.sort_unstable();
        ranks
    };
    support::wait_until("its ranks check", || catching().len() == count);
    catching().into_iter().map(|(_, pid)| pid).collect()
}

/// Whether the process has a handler for SIGTERM.
fn catches_terminate(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (libc::SIGTERM - 1) & 1 == 1
}

/// The ranks that the launcher `pid` has started, with their processes.
fn ranks_of(pid: u32) -> Vec<(u32, i32)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.flat_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
    });
    children
        .filter_map(|child| {
            let environment = std::fs::read(format!("/proc/{child}/environ")).ok()?;
            let text = String::from_utf8_lossy(&environment).into_owned();
            let rank = text.split('\0').find_map(|variable| variable.strip_prefix("AQUEDUCT_RANK="))?;
            Some((rank.parse().ok()?, child))
        })
        .collect()
}

/// Runs the self-test of two ranks with a variable that rank 1 alone has.
fn with_rank_1(variable: &str) -> Outcome {
    let rank = format!("if [ $AQUEDUCT_RANK = 1 ]; then export {variable}; fi; exec \"$0\" selftest --quick");
    let own = env!("CARGO_BIN_EXE_aqueduct");
    let launch = ["run", "-n", "2", "--no-prefix", "--timeout", "100", "--", "sh", "-c", &rank, own];
    run(&mut aqueduct(&launch)).exited(1)
}

/// One rank fails where the other could go on: neither hangs, and both go on to the next check.
#[test]
fn one_rank_fails_and_both_go_on() {
    let outcome = with_rank_1("AQUEDUCT_SOFT_MEMORY=16M");
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 14 && failed >= 11, "{}", outcome.stdout);
    outcome.prints(&["#   rank 1: ", "the software device's memory is used up"]);
}

/// The least scratch of a rank counts for all: both say so.
#[test]
fn one_rank_has_too_little_scratch() {
    let outcome = with_rank_1("AQUEDUCT_SCRATCH_BYTES=100");
    let [passed, failed, _] = counted(&outcome);
    assert!(passed >= 14 && failed >= 11, "{}", outcome.stdout);
    outcome.prints(&["the least that a rank has left is 100; set AQUEDUCT_SCRATCH_BYTES to"]);
}
