//! Jobs that share a machine: of one user, and of two.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{Outcome, aqueduct, start};

/// The number of `nobody` on every Linux.
const NOBODY: u32 = 65534;
const JOB: [&str; 14] = [
    "run",
    "-n",
    "2",
    "--no-prefix",
    "--",
    "aqueduct",
    "perf",
    "all-reduce",
    "-b",
    "4",
    "-e",
    "16K",
    "-n",
    "20",
];

fn right(outcome: Outcome) {
    let outcome = outcome.exited(0);
    assert_eq!(outcome.stdout.lines().last(), Some("# Out of bounds values : 0 OK"), "{outcome:#?}");
}

#[test]
fn jobs_of_one_user_are_right_side_by_side_and_one_may_be_killed() {
    let jobs = [start(&mut aqueduct(&JOB)), start(&mut aqueduct(&JOB))];
    let long = [&JOB[..12], &["-n", "100000"]].concat();
    let victim = start(&mut aqueduct(&long));
    std::thread::sleep(std::time::Duration::from_millis(400));
    victim.signal(libc::SIGKILL);
    jobs.into_iter().for_each(|job| right(job.finish()));
    assert_eq!(victim.finish().code, None);
}

#[test]
fn jobs_of_two_users_are_right_side_by_side() {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return println!("skipped: only root can start a job as another user");
    }
    let as_nobody = |mut command: Command| {
        command.uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR").env("HOME", "/").current_dir("/");
        command
    };
    if as_nobody(aqueduct(&["--version"])).output().is_err() {
        return println!("skipped: nobody cannot reach {}", env!("CARGO_BIN_EXE_aqueduct"));
    }
    let mut theirs = as_nobody(aqueduct(&JOB));
    let jobs = [start(&mut aqueduct(&JOB)), start(&mut theirs)];
    jobs.into_iter().for_each(|job| right(job.finish()));
}
