//! Jobs that run on one machine at the same time: of one user, and of two.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use crate::support::{Outcome, aqueduct, command, start};

/// The user id of `nobody` on Linux.
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
fn jobs_of_one_user_run_at_the_same_time_and_one_may_be_killed() {
    let jobs = [start(&mut aqueduct(&JOB)), start(&mut aqueduct(&JOB))];
    let long = [&JOB[..12], &["-n", "100000"]].concat();
    let victim = start(&mut aqueduct(&long));
    std::thread::sleep(std::time::Duration::from_millis(400));
    victim.signal(libc::SIGKILL);
    jobs.into_iter().for_each(|job| right(job.finish()));
    assert_eq!(victim.finish().code, None);
}

#[test]
#[ignore = "needs root, which alone can start a job as another user"]
fn jobs_of_two_users_run_at_the_same_time() {
    // Use a copy that other users can reach: the checkout may be inside a private home directory.
    let folder = std::env::temp_dir().join(format!("aqueduct-neighbours-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let copy = folder.join("aqueduct");
    std::fs::copy(env!("CARGO_BIN_EXE_aqueduct"), &copy).unwrap();
    let mut theirs = command(&copy);
    theirs.args(JOB).uid(NOBODY).gid(NOBODY).env("HOME", "/").current_dir("/");
    theirs.env_remove("XDG_RUNTIME_DIR");
    let jobs = [start(&mut aqueduct(&JOB)), start(&mut theirs)];
    let outcomes = jobs.map(|job| job.finish());
    std::fs::remove_dir_all(&folder).unwrap();
    outcomes.into_iter().for_each(right);
}
