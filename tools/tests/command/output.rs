//! Standard output that cannot be written, and standard output that nobody reads.

use std::fs::OpenOptions;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{LIMIT, Outcome, aqueduct, nap, run, script, sleepers, start_with};

/// One short run of each subcommand that prints.
const COMMANDS: [&[&str]; 8] = [
    &["info"],
    &["info", "--env"],
    &["--help"],
    &["--version"],
    &["help", "perf"],
    &["run", "-n", "2", "--", "echo", "a line"],
    &["run", "-n", "2", "--", "aqueduct", "info"],
    &["selftest", "--quick", "-n", "1"],
];

/// The exit code of a command whose reader has gone, as shells report it: 128 + SIGPIPE.
const PIPE_CLOSED: i32 = 141;

fn with_output(command: &mut Command, output: impl Into<Stdio>) -> Outcome {
    start_with(command.stdin(Stdio::null()), output).finish()
}

/// A pipe whose reader has gone.
fn closed_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

#[test]
fn a_full_file_system_is_an_error() {
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let outcome = with_output(&mut aqueduct(arguments), full).exited(1);
        let words = "cannot write standard output: No space left on device";
        assert_eq!(outcome.stderr.matches(words).count(), 1, "{arguments:?}: {outcome:#?}");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for arguments in COMMANDS {
        let outcome = with_output(&mut aqueduct(arguments), closed_pipe()).exited(PIPE_CLOSED);
        assert_eq!(outcome.stderr, "", "{arguments:?}");
    }
    // The reader has seen all it wants, and the rank would write for ever.
    let outcome = run(&mut script("aqueduct run -n 2 -- yes | head -1")).exited(0);
    assert!(["[0] y\n", "[1] y\n"].contains(&&*outcome.stdout), "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
}

/// The ranks write to their standard error as well, when they are told to end.
#[test]
fn ranks_of_a_job_that_nobody_reads_are_ended_and_not_heard() {
    let nap = nap();
    let rank =
        format!("trap 'echo why me >&2; exit 1' TERM; while :; do echo line; sleep {nap} & wait; done");
    let outcome = with_output(&mut aqueduct(&["run", "-n", "3", "--", "sh", "-c", &rank]), closed_pipe());
    assert_eq!(outcome.exited(PIPE_CLOSED).stderr, "");
    assert_eq!(sleepers(&nap), 0);
}

#[test]
fn a_closed_or_read_only_descriptor_is_an_error() {
    for (redirect, arguments) in [">&-", "1</dev/null"].into_iter().flat_map(|r| COMMANDS.map(|c| (r, c))) {
        let line = format!("aqueduct {} {redirect}", arguments.join(" "));
        let words = ["cannot write standard output: Bad file descriptor"];
        run(&mut script(&line)).exited(1).says(&words);
    }
}

/// Standard error is in the same state, so the exit code alone says it. A panic would be 101.
#[test]
fn without_any_output_the_exit_code_remains() {
    for arguments in COMMANDS {
        for (redirect, code) in [("> /dev/full 2>&1", 1), (">&- 2>&-", 1), ("2> /dev/full", 0), ("2>&-", 0)] {
            run(&mut script(&format!("aqueduct {} {redirect}", arguments.join(" ")))).exited(code);
        }
    }
    let wrong = "aqueduct run -n 2 -- sh -c 'echo oops >&2; exit 3' 2> /dev/full";
    run(&mut script(wrong)).exited(3);
}

/// Fewer lines than fill the pipe between a rank and the launcher, and more than fill the launcher's output, with labels.
const LINES: u32 = 12_000;

/// Ranks that have finished long before their output is read lose none of it.
#[test]
fn a_slow_reader_gets_everything() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let ranks = ["run", "-n", "2", "--", "seq", "1", &LINES.to_string()];
    let job = start_with(aqueduct(&ranks).stdin(Stdio::null()), writer);
    // Longer than the launcher waits for processes that ranks leave behind.
    std::thread::sleep(Duration::from_secs(5));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    job.finish().exited(0);
    for rank in ["[0] ", "[1] "] {
        let numbers: Vec<u32> =
            text.lines().filter_map(|line| line.strip_prefix(rank)?.parse().ok()).collect();
        assert!(numbers.iter().copied().eq(1..=LINES), "{rank}has {} lines", numbers.len());
    }
}

/// The output has no reader and never will: a signal and `--timeout` still end the job.
#[test]
fn a_job_that_waits_for_its_reader_can_be_ended() {
    for (signal, limit, code) in [(Some(libc::SIGTERM), "100", 143), (None, "4", 124)] {
        let (reader, writer) = std::io::pipe().unwrap();
        let ranks = ["run", "-n", "1", "--timeout", limit, "--", "seq", "1", &LINES.to_string()];
        let job = start_with(aqueduct(&ranks).stdin(Stdio::null()), writer);
        if let Some(signal) = signal {
            std::thread::sleep(Duration::from_secs(2));
            job.signal(signal);
        }
        assert!(job.finish().exited(code).time < LIMIT / 2);
        drop(reader);
    }
}

/// A terminal or pipe that another process has made non-blocking takes everything all the same.
#[test]
fn a_descriptor_that_does_not_block_gets_everything() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let job = {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open, and the call touches no memory.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let ranks = ["run", "-n", "1", "--no-prefix", "--", "seq", "1", "50000"];
        start_with(aqueduct(&ranks).stdin(Stdio::null()), writer)
    };
    std::thread::sleep(Duration::from_secs(1));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    job.finish().exited(0);
    assert!(text.lines().filter_map(|line| line.parse::<u32>().ok()).eq(1..=50_000), "{} bytes", text.len());
}
