//! Folders that are missing, full or read-only. What needs one says which, and how to name another.
//!
//! Most of these tests mount folders, in a namespace of their own: the lane `namespaces` of ci/test.sh runs them.

use std::path::Path;
use std::process::Command;

use crate::support::{Outcome, command, run, script};

const JOB: &str = "aqueduct run -n 2 -- aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0";
const SOCKETS: &str = "cannot create a directory for sockets in";

/// Runs a script for sh(1) in a mount namespace of its own, as root of that.
fn mounted(text: &str) -> Outcome {
    // SAFETY: no arguments, cannot fail.
    let unshare = if unsafe { libc::geteuid() } == 0 { "unshare -m" } else { "unshare -rm" };
    run(&mut script(&format!("{unshare} sh -ec '{text}'")))
}

#[test]
#[ignore = "needs a mount namespace: the lane `namespaces` of ci/test.sh runs it"]
fn full_or_read_only() {
    let within = |options: &str, what: &str| {
        mounted(&format!(
            "mount -t tmpfs -o mode=700,{options} none /mnt || exit 77; XDG_RUNTIME_DIR=/mnt {what}"
        ))
    };
    within("ro", "true").exited(0);
    within("nr_inodes=100", JOB).exited(0);
    for (options, remedy) in [("ro", "it is read-only"), ("nr_inodes=1", "free space there")] {
        let folder = format!("{SOCKETS} /mnt; set XDG_RUNTIME_DIR to a directory");
        within(options, JOB).exited(1).says(&[&folder, remedy]).says_each_cause_once();
        let meeting =
            "AQUEDUCT_RENDEZVOUS_FILE=/mnt/meeting AQUEDUCT_RANK=0 AQUEDUCT_WORLD_SIZE=2 aqueduct perf put";
        let words = [
            "cannot write /mnt/meeting",
            "choose another path (AQUEDUCT_RENDEZVOUS_FILE under a launcher)",
            remedy,
        ];
        within(options, meeting).exited(1).says(&words).says_each_cause_once();
    }
}

/// The current folder and `/tmp` are read-only: a job needs neither if there is another folder for its sockets.
#[test]
#[ignore = "needs a mount namespace: the lane `namespaces` of ci/test.sh runs it"]
fn read_only_where_people_start_jobs() {
    let read_only = "mount -t tmpfs -o ro none /tmp; mount -t tmpfs -o mode=700 none /mnt; cd /tmp; unset XDG_RUNTIME_DIR";
    let folder = format!("{SOCKETS} /tmp; set XDG_RUNTIME_DIR to a directory");
    mounted(&format!("{read_only}; {JOB}"))
        .exited(1)
        .says(&[&folder, "it is read-only"])
        .says_each_cause_once();
    mounted(&format!("{read_only}; XDG_RUNTIME_DIR=/mnt {JOB}")).exited(0);
    mounted(&format!("{read_only}; aqueduct info")).exited(0);
    let log = mounted(&format!("{read_only}; AQUEDUCT_LOG_FILE=log aqueduct info")).exited(0);
    log.says(&["cannot open AQUEDUCT_LOG_FILE=log (it is read-only)"]).says_each_cause_once();
}

/// Shared memory of this library has no name in the file system.
#[test]
#[ignore = "needs a mount namespace: the lane `namespaces` of ci/test.sh runs it"]
fn shared_memory_folder_full_or_missing() {
    for shm in [
        "mount -t tmpfs -o size=4k none /dev/shm; head -c 4096 /dev/zero > /dev/shm/full",
        "mount -t tmpfs none /dev; touch /dev/null; chmod 666 /dev/null",
    ] {
        mounted(&format!("{shm}; {JOB}")).exited(0);
        mounted(&format!("{shm}; aqueduct selftest --quick")).exited(0);
    }
}

/// A script that makes a root folder `$root` with this program, a shell and cat(1), and nothing else.
fn bare_root() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_aqueduct")).to_str().expect("a path in UTF-8");
    format!(
        "root=$(mktemp -d); mount -t tmpfs none $root || exit 77; mkdir $root/bin
        for file in {own} /bin/sh /bin/cat $(ldd {own} /bin/sh /bin/cat | grep -o \"/[^ ]*\\.so[^ ]*\" | sort -u); do
            mkdir -p $root$(dirname $file); touch $root$file; mount --bind $(readlink -f $file) $root$file
        done
        ln -s {own} $root/bin/aqueduct"
    )
}

#[test]
#[ignore = "needs a mount namespace: the lane `namespaces` of ci/test.sh runs it"]
fn a_root_without_dev_proc_and_tmp() {
    let within = |made: &str, what: &str| {
        mounted(&format!(
            "{}\n{made}\nexec chroot $root /bin/sh -c \"export PATH=/bin; {what}\"",
            bare_root()
        ))
    };
    within("", "aqueduct info")
        .exited(0)
        .prints(&["device 0: aqueduct software device", "jobs use: software"]);
    within("", "aqueduct perf all-reduce -b 8 -e 8 -n 1 -w 0").exited(0);
    // Without /proc the launcher finds itself by the path that it was called by, and other ranks read nothing.
    let echo = within("", "echo line | aqueduct run -n 2 -- cat").exited(0);
    assert_eq!(echo.stdout, "[0] line\n");
    let folder = format!("{SOCKETS} /tmp; set XDG_RUNTIME_DIR to a directory");
    within("", JOB).exited(1).says(&[&folder, "No such file or directory"]).says_each_cause_once();
    // All that a job needs.
    within("mkdir $root/tmp", JOB).exited(0);
    within("mkdir -m 700 $root/run", &format!("XDG_RUNTIME_DIR=/run {JOB}")).exited(0);
    // The software device gives legacy handles by way of /proc.
    let legacy = within("mkdir $root/tmp", &format!("AQUEDUCT_HANDLE=ipc {JOB}")).exited(1);
    let words = [
        "cuIpcGetMemHandle returned CUDA_ERROR_OPERATING_SYSTEM",
        "that the container has /dev/nvidia* and /proc",
    ];
    assert!(!legacy.stderr.contains("memory of a pool"), "{legacy:#?}");
    legacy.says(&words).says_each_cause_once();
    within(
        "mkdir $root/tmp $root/proc; mount -t proc proc $root/proc",
        &format!("AQUEDUCT_HANDLE=ipc {JOB}"),
    )
    .exited(0);
}

/// Rank 0 of a job that torchrun has started on this host, whose other rank never comes.
fn alone_under_torchrun() -> Command {
    let mut rank = command(env!("CARGO_BIN_EXE_aqueduct"));
    rank.args(["perf", "put"]).env("AQUEDUCT_TIMEOUT", "2");
    for (name, value) in [
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "0"),
        ("TORCHELASTIC_RUN_ID", "folders"),
    ] {
        rank.env(name, value);
    }
    rank
}

#[test]
fn a_folder_for_meeting_that_is_not_there() {
    let words = [
        "cannot write /nonexistent/aqueduct-",
        "set TMPDIR to another directory",
        "No such file or directory",
    ];
    run(alone_under_torchrun().env("TMPDIR", "/nonexistent")).exited(1).says(&words).says_each_cause_once();
    // Unset and empty mean /tmp.
    for unset in [true, false] {
        let mut rank = alone_under_torchrun();
        if unset {
            rank.env_remove("TMPDIR")
        } else {
            rank.env("TMPDIR", "")
        };
        run(&mut rank).exited(1).says(&["rank 1 of 2 did not arrive in time"]);
    }
}
