//! `aqueduct run -n N -- CMD`: starts N ranks of a command on this machine.
//!
//! Every line of a rank's output is prefixed with its number. When one rank fails, or a signal arrives, the launcher
//! ends all: first SIGTERM, or the signal that arrived, to each rank's process group, then SIGKILL. Processes that a rank
//! leaves behind in its group end the same way. No rank outlives the launcher: the kernel sends SIGKILL to the children of
//! a launcher that dies (`PR_SET_PDEATHSIG`).

mod failures;
mod forward;
mod groups;
mod input;
mod job;
pub(crate) mod signals;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aqueduct::internals::env;

use crate::perf::AT_A_TERMINAL;
use crate::program;
pub(crate) use failures::Failures;
use forward::Forwarders;
use job::Job;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// Print the ranks' output without the rank in front of each line
    #[arg(long)]
    no_prefix: bool,
    /// End the job after this time: seconds, or with a unit, such as 500ms, 5s or 2m
    #[arg(long, value_name = "TIME", value_parser = env::time)]
    timeout: Option<Duration>,
    /// The command each rank runs; `aqueduct` means this program
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let launch = Launch {
        ranks: args.ranks,
        command: args.command.clone(),
        prefix: !args.no_prefix,
        timeout: args.timeout,
        input: true,
    };
    launch.run()
}

/// The job to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) ranks: u32,
    pub(crate) command: Vec<OsString>,
    pub(crate) prefix: bool,
    pub(crate) timeout: Option<Duration>,
    /// Whether rank 0 reads this process's standard input.
    pub(crate) input: bool,
}

impl Launch {
    /// Starts all ranks and waits for them. The exit code is that of the rank that failed first.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let rendezvous = aqueduct::bootstrap::Rendezvous::start(Some(self.ranks))?;
        let id = rendezvous.unique_id().to_text();
        signals::catch();
        // A limit beyond what the clock can count is none.
        let failures = Failures::new()?;
        let place = failures.path();
        let mut job = Job::new(self.timeout.and_then(|limit| Instant::now().checked_add(limit)), failures);
        let forwarders = Forwarders::new();
        let started = (0..self.ranks).try_for_each(|rank| {
            let mut child = self.spawn(rank, id.expose(), &place)?;
            let label = if self.prefix { format!("[{rank}] ") } else { String::new() };
            if let Some(pipe) = child.stdout.take() {
                forwarders.output(pipe, label.clone())?;
            }
            if let Some(pipe) = child.stderr.take() {
                forwarders.errors(pipe, label)?;
            }
            if let Some(pipe) = child.stdin.take() {
                input::from_terminal(pipe)?;
            }
            job.add(child)
        });
        job.run(started, forwarders)
    }

    fn spawn(&self, rank: u32, id: &str, failures: &str) -> Result<Child> {
        let (program, arguments) = self.command.split_first().context("no command to run")?;
        let mut command =
            if program == "aqueduct" { Command::new(program::path()?) } else { Command::new(program) };
        let cannot_start = |error| {
            aqueduct::Error::system(
                "run",
                format!("cannot start rank {rank}: `{}`", program.display()),
                error,
            )
        };
        command
            .args(arguments)
            .env("AQUEDUCT_RANK", rank.to_string())
            .env("AQUEDUCT_WORLD_SIZE", self.ranks.to_string())
            .env("AQUEDUCT_LOCAL_RANK", rank.to_string())
            .env("AQUEDUCT_UNIQUE_ID", id)
            .env("AQUEDUCT_LAUNCHER", "aqueduct run")
            .env(failures::PATH, failures)
            // Wherever this launcher's own launcher writes to.
            .env_remove(AT_A_TERMINAL)
            .envs(std::io::stderr().is_terminal().then_some((AT_A_TERMINAL, "lines")))
            .stdin(input::of_rank(rank, self.input).map_err(cannot_start)?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let launcher = std::process::id();
        // SAFETY: the closure calls only prctl(2) and getppid(2), which are async-signal-safe, and allocates nothing.
        unsafe { command.pre_exec(move || end_with(launcher)) };
        // On the main thread: the kernel sends the signal when the thread that forked ends.
        Ok(command.spawn().map_err(cannot_start)?)
    }
}

/// Asks the kernel to kill this process when its parent thread, of the process `launcher`, ends.
fn end_with(launcher: u32) -> std::io::Result<()> {
    // SAFETY: no pointers are passed.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // The launcher may have died before prctl(2) was called.
    if std::os::unix::process::parent_id() != launcher {
        return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}
