//! `aqueduct run`: output, exit codes, and that no process survives it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::support::{LIMIT, aqueduct, nap, run, script, sleepers, start, wait_for_sleepers, wait_until};

/// Time to end ranks by SIGTERM and then SIGKILL on a busy machine. Much shorter than a nap.
const PROMPT: Duration = Duration::from_secs(60);

#[test]
fn lines_are_prefixed_and_whole() {
    let script = r#"echo "out $AQUEDUCT_RANK of $AQUEDUCT_WORLD_SIZE"; echo "err $AQUEDUCT_LOCAL_RANK" >&2; printf tail"#;
    let outcome = run(&mut aqueduct(&["run", "-n", "3", "--", "sh", "-c", script])).exited(0);
    for (text, expected) in [
        (
            &outcome.stdout,
            vec!["[0] out 0 of 3", "[0] tail", "[1] out 1 of 3", "[1] tail", "[2] out 2 of 3", "[2] tail"],
        ),
        (&outcome.stderr, vec!["[0] err 0", "[1] err 1", "[2] err 2"]),
    ] {
        let mut lines: Vec<&str> = text.lines().collect();
        // A stable sort keeps each rank's lines in order.
        lines.sort_by_key(|line| line.as_bytes()[1]);
        assert_eq!(lines, expected);
    }
    let plain = run(&mut aqueduct(&["run", "-n", "1", "--no-prefix", "--", "echo", "as it is"])).exited(0);
    assert_eq!(plain.stdout, "as it is\n");
}

#[test]
fn long_output_arrives_completely() {
    let script = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done";
    let outcome = run(&mut aqueduct(&["run", "-n", "2", "--", "sh", "-c", script])).exited(0);
    for rank in ["[0] ", "[1] "] {
        let lines: Vec<&str> = outcome.stdout.lines().filter_map(|line| line.strip_prefix(rank)).collect();
        let expected: Vec<String> = (0..5000).map(|i| format!("line {i}")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_failing_rank_gives_its_code_and_ends_the_others() {
    let nap = nap();
    let script = format!("if [ $AQUEDUCT_RANK = 1 ]; then exit 7; fi; exec sleep {nap}");
    let outcome = run(&mut aqueduct(&["run", "-n", "4", "--", "sh", "-c", &script]));
    let outcome = outcome.exited(7).says(&["rank 1 exited with code 7; ending the others"]);
    assert_eq!(outcome.last(), "aqueduct run: rank 1 failed first: it exited with code 7");
    assert!(outcome.time < PROMPT, "{:?}", outcome.time);
    assert_eq!(sleepers(&nap), 0);
}

/// Rank 2 notes that it has failed, as the command's own ranks do, and takes longer to end than rank 0, which fails after it.
#[test]
fn a_rank_that_failed_first_may_end_later() {
    let script = "case $AQUEDUCT_RANK in
        2) echo 2 >> $AQUEDUCT_FAILURES; sleep 1; exit 3;;
        0) until grep -q 2 $AQUEDUCT_FAILURES; do sleep 0.01; done; echo 0 >> $AQUEDUCT_FAILURES; exit 4;;
        1) echo 1 >> $AQUEDUCT_FAILURES; exit 0;;
        esac";
    let outcome = run(&mut aqueduct(&["run", "-n", "3", "--", "sh", "-c", script])).exited(3);
    let words = "aqueduct run: rank 2 failed first: it exited with code 3; rank 0 failed after it";
    assert_eq!(outcome.last(), words, "{outcome:#?}");
}

/// Ranks write to the launcher's file only, whatever a user has set.
#[test]
fn a_file_of_the_users_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine");
    std::fs::write(&file, "mine").unwrap();
    let mut command = aqueduct(&["perf", "put"]);
    command.env("AQUEDUCT_FAILURES", &file).env("AQUEDUCT_RANK", "0").env("AQUEDUCT_WORLD_SIZE", "1");
    run(&mut command).exited(2);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn the_rank_that_failed_first_is_named_last() {
    // The others fail when they are told to end, and say so.
    let folder = tempfile::tempdir().unwrap();
    let script = "cd $0; trap 'echo I failed, too >&2; exit 9' TERM; touch $AQUEDUCT_RANK
        while [ $AQUEDUCT_RANK != 1 ] || [ ! -e 0 ] || [ ! -e 2 ]; do sleep 0.1; done; exit 7";
    let folder = folder.path().to_str().unwrap();
    let outcome = run(&mut aqueduct(&["run", "-n", "3", "--", "sh", "-c", script, folder])).exited(7);
    let words = "aqueduct run: rank 1 failed first: it exited with code 7; ranks 0, 2 failed after it";
    assert_eq!(outcome.last(), words, "{outcome:#?}");
    assert_eq!(outcome.stderr.matches("I failed, too").count(), 2, "{outcome:#?}");
}

/// Peers learn of a failure at once, and some exit before the rank that failed.
#[test]
fn a_rank_that_failed_because_of_another_is_not_named() {
    let own = env!("CARGO_BIN_EXE_aqueduct");
    let job = "exec \"$0\" perf all-reduce -b 8 -e 8 -n 1000000";
    let killed = format!("if [ $AQUEDUCT_RANK = 2 ]; then (sleep 1; kill -9 $$) & fi; {job}");
    // So many calls later that all ranks have control links, over which they tell each other the cause.
    let failing = format!(
        "if [ $AQUEDUCT_RANK = 2 ]; then export AQUEDUCT_FAULTS=driver:lost:10000=ECC_UNCORRECTABLE; fi; {job}"
    );
    for (script, code, words, cause) in [
        (killed, 128 + 9, "it was killed by signal 9", "rank 2 was lost: "),
        (failing, 1, "it exited with code 1", "rank 2"),
    ] {
        let outcome = run(&mut aqueduct(&["run", "-n", "4", "--", "sh", "-c", &script, own])).exited(code);
        let first = format!("aqueduct run: rank 2 failed first: {words}");
        assert!(outcome.last().starts_with(&first), "{outcome:#?}");
        let others = outcome.stderr.lines().filter(|line| line.contains("] aqueduct: "));
        for line in others.filter(|line| !line.starts_with("[2]")) {
            assert!(line.contains(cause), "{line} in {outcome:#?}");
        }
    }
    // Nothing but the network has failed: no rank says that it was the first.
    let mut command = aqueduct(&["run", "-n", "2", "--", "sh", "-c", job, own]);
    let outcome = run(command.env("AQUEDUCT_FAULTS", "net:from=1:on=control:frames=4:drop"));
    outcome.exited(75).says(&["rank 0 was lost: ", "rank 1 was lost: ", "it exited with code 75"]);
}

/// The launcher waits a moment for the rank that is blamed, and not for ever.
#[test]
fn a_rank_that_blames_one_that_goes_on_ends_the_job() {
    let nap = nap();
    let script = format!("if [ $AQUEDUCT_RANK = 0 ]; then exit 75; fi; exec sleep {nap}");
    let outcome = run(&mut aqueduct(&["run", "-n", "2", "--", "sh", "-c", &script])).exited(75);
    assert_eq!(outcome.last(), "aqueduct run: rank 0 failed first: it exited with code 75");
    assert!(outcome.time < PROMPT, "{:?}", outcome.time);
    assert_eq!(sleepers(&nap), 0);
}

#[test]
fn a_killed_rank_counts_as_shells_count_it() {
    let outcome = run(&mut aqueduct(&["run", "-n", "1", "--", "sh", "-c", "kill -9 $$"]));
    outcome.exited(128 + 9).says(&["rank 0 was killed by signal 9"]);
}

#[test]
fn a_rank_that_ignores_the_first_signal_is_ended_by_the_second() {
    let nap = nap();
    // The sleep inherits the ignored SIGTERM.
    let script = format!(
        "trap '' TERM; if [ $AQUEDUCT_RANK = 0 ]; then sleep 1; exit 5; fi; sleep {nap}; sleep {nap}"
    );
    let outcome = run(&mut aqueduct(&["run", "-n", "2", "--", "sh", "-c", &script])).exited(5);
    assert!(outcome.time < PROMPT, "{:?}", outcome.time);
    wait_for_sleepers(&nap, 0);
}

#[test]
fn processes_that_a_rank_leaves_running_are_ended() {
    // Once with the rank's pipes open and a failing rank, and once with closed pipes and a successful one.
    for (code, redirect) in [(3, ""), (0, ">/dev/null 2>&1 ")] {
        let nap = nap();
        let script = format!("sleep {nap} {redirect}& exit {code}");
        let outcome = run(&mut aqueduct(&["run", "-n", "2", "--", "sh", "-c", &script])).exited(code);
        assert!(outcome.time < PROMPT, "{:?}", outcome.time);
        wait_for_sleepers(&nap, 0);
    }
}

/// Their output is closed, so that the launcher cannot wait for its end.
#[test]
fn processes_that_a_rank_leaves_running_have_time_to_end() {
    let (nap, folder) = (nap(), tempfile::tempdir().unwrap());
    // Rank 0 leaves one that tidies up, rank 1 one that does not end by itself.
    let script = format!(
        "cd $0; exec >/dev/null 2>&1 </dev/null
        if [ $AQUEDUCT_RANK = 1 ]; then trap '' TERM; sleep {nap} & exit 0; fi
        (trap 'sleep 0.5; touch tidy; exit' TERM; touch ready; while :; do sleep 0.05; done) &
        while [ ! -e ready ]; do sleep 0.05; done"
    );
    let folder = folder.path();
    let outcome =
        run(&mut aqueduct(&["run", "-n", "2", "--", "sh", "-c", &script, folder.to_str().unwrap()]))
            .exited(0);
    assert!(folder.join("tidy").exists(), "{outcome:#?}");
    assert!(Duration::from_secs(2) <= outcome.time && outcome.time < PROMPT, "{:?}", outcome.time);
    wait_for_sleepers(&nap, 0);
    // No process is left, so the launcher waits for none. A busy machine may need longer for a run.
    let mut runs = (0..5).map(|_| run(&mut aqueduct(&["run", "-n", "2", "--", "true"])).exited(0).time);
    assert!(runs.any(|time| time < Duration::from_secs(2)));
}

#[test]
fn a_signal_to_the_launcher_ends_all_ranks() {
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130), (libc::SIGHUP, 129)] {
        let nap = nap();
        let job = start(&mut aqueduct(&["run", "-n", "3", "--", "sleep", &nap]));
        wait_for_sleepers(&nap, 3);
        job.signal(signal);
        let outcome = job.finish().exited(code).says(&[&format!("caught signal {signal}")]);
        assert!(outcome.time < LIMIT);
        assert_eq!(sleepers(&nap), 0);
    }
}

#[test]
fn ranks_get_the_signal_that_arrived() {
    for (signal, name) in [(libc::SIGTERM, "TERM"), (libc::SIGINT, "INT"), (libc::SIGHUP, "HUP")] {
        let nap = nap();
        let script = format!("trap 'echo got {name}; exit 1' {name}; sleep {nap} & wait");
        let job = start(&mut aqueduct(&["run", "-n", "2", "--no-prefix", "--", "sh", "-c", &script]));
        wait_for_sleepers(&nap, 2);
        job.signal(signal);
        let outcome = job.finish().exited(128 + signal);
        assert_eq!(outcome.stdout.matches(&format!("got {name}\n")).count(), 2, "{outcome:#?}");
        assert_eq!(sleepers(&nap), 0);
    }
}

#[test]
fn a_second_signal_kills() {
    let nap = nap();
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let script = format!("trap 'touch {}' INT; while :; do sleep {nap}; done", told.display());
    let job = start(&mut aqueduct(&["run", "-n", "1", "--", "sh", "-c", &script]));
    wait_for_sleepers(&nap, 1);
    job.signal(libc::SIGINT);
    wait_until("the rank has got the first signal", || told.exists());
    job.signal(libc::SIGINT);
    job.finish()
        .exited(130)
        .says(&["caught signal 2; ending all ranks", "caught signal 2; killing all ranks"]);
    wait_for_sleepers(&nap, 0);
}

/// As under nohup(1).
#[test]
fn a_signal_that_the_launcher_was_told_to_ignore_stays_ignored() {
    let nap = nap();
    let job = start(&mut script(&format!("trap '' HUP; exec aqueduct run -n 1 -- sleep {nap}")));
    wait_for_sleepers(&nap, 1);
    let status = std::fs::read_to_string(format!("/proc/{}/status", job.pid())).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        u64::from_str_radix(line.trim(), 16).expect("a mask of signals")
    };
    let bit = |signal: i32| 1 << (signal - 1);
    assert_ne!(mask("SigIgn:") & bit(libc::SIGHUP), 0, "{status}");
    assert_ne!(mask("SigCgt:") & bit(libc::SIGINT), 0, "{status}");
    job.signal(libc::SIGTERM);
    job.finish().exited(143).says(&["caught signal 15"]);
    assert_eq!(sleepers(&nap), 0);
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let nap = nap();
    let job = start(&mut aqueduct(&["run", "-n", "3", "--", "sleep", &nap]));
    wait_for_sleepers(&nap, 3);
    job.signal(libc::SIGKILL);
    assert_eq!(job.finish().code, None);
    wait_for_sleepers(&nap, 0);
}

#[test]
fn a_time_limit() {
    let nap = nap();
    let outcome = run(&mut aqueduct(&["run", "-n", "2", "--timeout", "500ms", "--", "sleep", &nap]));
    outcome.exited(124).says(&["--timeout expired"]);
    assert_eq!(sleepers(&nap), 0);
    let limited = |limit: &str| run(&mut aqueduct(&["run", "-n", "1", "--timeout", limit, "--", "true"]));
    for (limit, why) in [("0", "is not more than 0"), ("1d", "unknown unit d"), ("soon", "is not a time")] {
        limited(limit).exited(2).says(&[&format!("'{limit}' for '--timeout"), why]);
    }
    for limit in ["2m", "60.5"] {
        limited(limit).exited(0);
    }
    // Longer than any clock counts.
    limited(&u64::MAX.to_string()).exited(0);
}

#[test]
fn arguments_are_passed_on_whatever_their_bytes() {
    let mut command =
        aqueduct(&["run", "-n", "1", "--no-prefix", "--", "sh", "-c", "printf %s \"$0\" | wc -c"]);
    command.arg(OsStr::from_bytes(b"caf\xe9"));
    assert_eq!(run(&mut command).exited(0).stdout.trim(), "4");
    let mut command = aqueduct(&["run", "-n", "1", "--"]);
    command.arg(OsStr::from_bytes(b"no-such-caf\xe9"));
    run(&mut command).exited(1).says(&["cannot start rank 0: `no-such-caf"]);
}

#[test]
fn a_command_that_does_not_exist() {
    let outcome = run(&mut aqueduct(&["run", "-n", "2", "--", "no-such-command-here"]));
    outcome.exited(1).says(&["cannot start rank 0: `no-such-command-here`", "No such file or directory"]);
}

#[test]
fn a_stale_unique_id_is_an_error_in_time() {
    let print = ["run", "-n", "1", "--no-prefix", "--", "sh", "-c", "echo $AQUEDUCT_UNIQUE_ID"];
    let id = run(&mut aqueduct(&print)).exited(0).stdout;
    let mut command = aqueduct(&["perf", "all-reduce", "-b", "8", "-e", "8"]);
    command
        .env("AQUEDUCT_RANK", "0")
        .env("AQUEDUCT_WORLD_SIZE", "2")
        .env("AQUEDUCT_UNIQUE_ID", id.trim())
        .env("AQUEDUCT_TIMEOUT", "5");
    let words = [
        "rank 0 cannot join at the rendezvous",
        "127.0.0.1",
        "the process that made the unique id still runs",
    ];
    let outcome = run(&mut command).exited(1).says(&words);
    assert!(outcome.time < PROMPT, "{:?}", outcome.time);
    assert!(!outcome.stderr.contains(id.trim()), "the id is a secret");
    // A truncated id is refused.
    run(command.env("AQUEDUCT_UNIQUE_ID", &id[..100])).exited(2).says(&["100 characters instead of 256"]);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    // Rank 1 is not an aqueduct program and never joins.
    let script = "if [ $AQUEDUCT_RANK = 0 ]; then exec \"$0\" perf all-reduce -b 8 -e 8; fi; exec sleep 100";
    let own = env!("CARGO_BIN_EXE_aqueduct");
    let mut command = aqueduct(&["run", "-n", "2", "--", "sh", "-c", script, own]);
    run(command.env("AQUEDUCT_TIMEOUT", "4")).exited(1).says(&["rank 1 of 2 did not arrive in time"]);
}

/// Jobs that succeed, fail or are killed leave no socket and no file.
#[test]
fn nothing_is_left_in_the_file_system() {
    let folder = std::env::temp_dir().join(format!("aqueduct-command-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let job = |arguments: &[&str]| {
        let mut command = aqueduct(arguments);
        command.env("XDG_RUNTIME_DIR", &folder).env("TMPDIR", &folder);
        command
    };
    let left = || -> Vec<_> { std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect() };
    run(&mut job(&[
        "run",
        "-n",
        "2",
        "--",
        "aqueduct",
        "perf",
        "all-reduce",
        "-b",
        "8",
        "-e",
        "64",
        "-n",
        "1",
    ]))
    .exited(0);
    assert!(left().is_empty(), "after a good end: {:?}", left());
    let mut failing = job(&["run", "-n", "3", "--", "aqueduct", "perf", "all-reduce", "-b", "8", "-e", "8"]);
    run(failing.env("AQUEDUCT_SCRATCH_BYTES", "64")).exited(1);
    assert!(left().is_empty(), "after a failure: {:?}", left());
    std::fs::remove_dir_all(&folder).unwrap();
}
