//! Runs the command with a time limit and finds processes that it left behind.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aqueduct_tests::process::{Ended, Process};
use serde_json::Value;

/// Time limit of one command, much longer than any correct one takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code, or `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) time: Duration,
}

impl Outcome {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn exited(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts that standard error has all of `words`.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in standard error of {self:#?}");
        }
        self
    }

    /// The last line of standard error.
    pub(crate) fn last(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// Asserts that no line of standard error repeats a cause.
    #[track_caller]
    pub(crate) fn says_each_cause_once(&self) {
        for line in self.stderr.lines() {
            let parts: Vec<&str> = line.split(": ").collect();
            assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "repeated in: {line}");
        }
    }

    /// Asserts that standard output has all of `words`.
    #[track_caller]
    pub(crate) fn prints(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stdout.contains(word), "`{word}` is not in standard output of {self:#?}");
        }
        self
    }
}

/// The command with `arguments`, as on a machine without an NVIDIA driver, with no variable of ours but those set here.
pub(crate) fn aqueduct(arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_aqueduct"));
    command.args(arguments);
    command
}

/// Runs `aqueduct run -n RANKS --no-prefix -- aqueduct perf ARGUMENTS`.
pub(crate) fn perf(ranks: &str, arguments: &[&str]) -> Outcome {
    run(&mut perf_command(ranks, arguments))
}

/// The command of [`perf`].
pub(crate) fn perf_command(ranks: &str, arguments: &[&str]) -> Command {
    let launch = ["run", "-n", ranks, "--no-prefix", "--", "aqueduct", "perf"];
    aqueduct(&[&launch[..], arguments].concat())
}

/// The rows of a table, split into words.
pub(crate) fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_whitespace().collect()).collect()
}

/// The parsed output of `aqueduct perf -J`.
#[derive(Debug)]
pub(crate) struct PerfFile {
    pub(crate) header: Value,
    pub(crate) rows: Vec<Value>,
    /// Missing if the run was interrupted.
    pub(crate) footer: Option<Value>,
}

impl PerfFile {
    /// Asserts that every line is an object, the first one the header, and the last one, if it is whole, the footer.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let mut lines: Vec<Value> = text
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?} of {text:?}"))
            })
            .collect();
        assert!(!lines.is_empty(), "an empty file");
        let header = lines.remove(0);
        assert_eq!(header["record"], "header", "{text}");
        let footer = lines.pop_if(|last| last["record"] == "footer");
        assert!(lines.iter().all(|line| line["record"] == "row"), "{text}");
        Self { header, rows: lines, footer }
    }
}

/// A path in the temporary directory that no other test uses.
pub(crate) fn temporary(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("aqueduct-command-test-{}-{number}-{name}", std::process::id()))
}

/// A script for sh(1) that finds the command in PATH; otherwise like [`aqueduct`].
pub(crate) fn script(text: &str) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_aqueduct")).parent().expect("a file is in a folder");
    let mut path = folder.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("PATH") {
        path.push(":");
        path.push(others);
    }
    let mut command = command("sh");
    command.args(["-c", text]).env("PATH", path);
    command
}

/// `program`, with the environment of [`aqueduct`].
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AQUEDUCT_") {
            command.env_remove(name);
        }
    }
    command.env("AQUEDUCT_CUDA_LIBRARY", "/nonexistent/libcuda.so.1").env("AQUEDUCT_SOCKET_IFNAME", "=lo");
    command
}

/// Starts the command with both outputs captured and nothing to read.
pub(crate) fn start(command: &mut Command) -> Running {
    start_with(command.stdin(Stdio::null()), Stdio::piped())
}

/// Starts the command with its standard input as it is set, and `output` as its standard output.
pub(crate) fn start_with(command: &mut Command, output: impl Into<Stdio>) -> Running {
    start_by(Process::start, command, output.into())
}

/// Starts a command that makes itself the leader of a session; otherwise like [`start_with`].
pub(crate) fn start_session(command: &mut Command, output: impl Into<Stdio>) -> Running {
    start_by(Process::start_leader, command, output.into())
}

fn start_by(start: fn(&mut Command) -> Process, command: &mut Command, output: Stdio) -> Running {
    let process = start(command.stdout(output).stderr(Stdio::piped()));
    // A pipe given as `output` has to be closed here, too.
    command.stdout(Stdio::null());
    Running(process)
}

/// Runs the command to its end.
pub(crate) fn run(command: &mut Command) -> Outcome {
    start(command).finish()
}

/// Runs a command that takes longer, to its end.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Outcome {
    start(command).finish_within(limit)
}

/// A running command.
pub(crate) struct Running(Process);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.0.signal(signal);
    }

    /// Waits until the command exits and its output is closed. Fails after [`LIMIT`].
    #[track_caller]
    pub(crate) fn finish(self) -> Outcome {
        self.finish_within(LIMIT)
    }

    /// Waits until the command exits and its output is closed. Fails after `limit`, and kills its process group then.
    #[track_caller]
    pub(crate) fn finish_within(self, limit: Duration) -> Outcome {
        let Ended { status, stdout, stderr, time, late } = self.0.wait(Instant::now() + limit);
        let outcome = Outcome { code: status.code(), stdout, stderr, time };
        assert!(!late, "it did not end within {limit:?}: {outcome:#?}");
        outcome
    }
}

/// A new terminal: the end of its user, and the end for programs.
pub(crate) fn terminal() -> (File, OwnedFd) {
    let (mut user, mut program) = (-1, -1);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both descriptors are live outputs; the other arguments may be null.
    let status = unsafe { libc::openpty(&raw mut user, &raw mut program, name, settings, size) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty(3) has opened both for this process, and nothing else owns them.
    unsafe { (File::from_raw_fd(user), OwnedFd::from_raw_fd(program)) }
}

/// An argument for sleep(1), about 1000 seconds, that no other process uses.
pub(crate) fn nap() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("1000.{}{:02}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Number of processes on this machine that run `sleep nap`.
pub(crate) fn sleepers(nap: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("proc is mounted");
    let sleeps = |entry: std::fs::DirEntry| {
        // A process that has exited meanwhile has no command line.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&b| b == 0).collect();
        words.first().is_some_and(|program| program.ends_with(b"sleep"))
            && words.get(1) == Some(&nap.as_bytes())
    };
    processes.flatten().map(sleeps).filter(|&yes| yes).count()
}

/// Waits until `count` processes run `sleep nap`.
#[track_caller]
pub(crate) fn wait_for_sleepers(nap: &str, count: usize) {
    wait_until(&format!("{count} processes run sleep {nap}"), || sleepers(nap) == count);
}

/// Waits until `what` is true.
#[track_caller]
pub(crate) fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_true() {
        assert!(since.elapsed() < LIMIT / 2, "not true after {:?}: {what}", since.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
}
