//! Tests with several processes: the test binary starts itself once per rank, and each runs the same test function.
//!
//! A test written for ranks begins with `let Some(me) = ranks::start(N, "path::of::the_test") else { return };`: in
//! the test process this starts the ranks, waits for all of them and returns `None`; in a rank it returns the rank.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Ended, Process};

/// Time limit for all ranks of one test.
const LIMIT: Duration = Duration::from_secs(240);

const RANK: &str = "AQUEDUCT_TEST_RANK";
/// The last line of a rank that kills itself.
const DIES: &str = "this rank kills itself";

/// Returns this process's rank, or `None` after all ranks have succeeded. Panics with their output if one failed.
pub fn start(size: u32, test: &str) -> Option<u32> {
    start_with(size, test, |_, _| {})
}

/// Like [`start`], and calls `prepare` on each rank's command before starting it.
pub fn start_with(size: u32, test: &str, prepare: impl Fn(u32, &mut Command)) -> Option<u32> {
    if let Some(rank) = rank() {
        return Some(rank);
    }
    // If one cannot be started, dropping those that have started ends them.
    let ranks: Vec<Process> = (0..size)
        .map(|rank| {
            let mut command = command(rank, test);
            prepare(rank, &mut command);
            Process::start(&mut command)
        })
        .collect();
    let deadline = Instant::now() + LIMIT;
    let outcomes: Vec<Outcome> = ranks.into_iter().map(|rank| Outcome::of(&rank.wait(deadline))).collect();
    let failed: Vec<usize> = (0..outcomes.len()).filter(|&r| !outcomes[r].success).collect();
    if !failed.is_empty() {
        for (rank, outcome) in outcomes.iter().enumerate() {
            eprintln!("---- rank {rank}, {}\n{}", outcome.end, outcome.output);
        }
        panic!("ranks {failed:?} of {test} failed; their output is above");
    }
    // Ranks of one test say the same.
    let said: std::collections::BTreeSet<&str> =
        outcomes.iter().flat_map(|outcome| outcome.output.lines()).collect();
    crate::pass_on(&Vec::from_iter(said).join("\n"));
    // A test name that matches nothing would let a rank succeed without running a test.
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert!(
            outcome.died || outcome.output.contains("1 passed"),
            "rank {rank} of {test} ran no test:\n{}",
            outcome.output
        );
    }
    None
}

/// Kills this rank. Its test counts it as having succeeded.
pub fn die() -> ! {
    println!("{DIES}");
    loop {
        // SAFETY: no pointers are passed.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}

/// This process's rank, if it is one.
pub fn rank() -> Option<u32> {
    std::env::var(RANK).ok().map(|rank| rank.parse().expect("the rank is a number"))
}

/// The command that runs this binary's `test` as `rank`, its output piped.
pub fn command(rank: u32, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
    command
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(RANK, rank.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

struct Outcome {
    success: bool,
    /// By [`die`].
    died: bool,
    /// How it ended.
    end: String,
    output: String,
}

impl Outcome {
    fn of(ended: &Ended) -> Self {
        let output = [&*ended.stdout, &*ended.stderr].concat();
        let died = !ended.late && ended.status.signal() == Some(libc::SIGKILL) && output.contains(DIES);
        let end = format!("{}{}", ended.status, if ended.late { ", because it took too long" } else { "" });
        Self { success: died || (!ended.late && ended.status.success()), died, end, output }
    }
}
