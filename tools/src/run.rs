//! `aqueduct run -n N -- CMD`: starts N ranks of a command on this machine.
//!
//! Every line of a rank's output is prefixed with its number. When one rank fails, or a signal arrives, all are ended:
//! first SIGTERM to each rank's process group, then SIGKILL. No rank outlives the launcher: the kernel sends SIGKILL
//! to the children of a launcher that dies (`PR_SET_PDEATHSIG`).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long ranks get between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of ranks
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// Print the ranks' output without the rank in front of each line
    #[arg(long)]
    no_prefix: bool,
    /// End the job after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// The command each rank runs; `aqueduct` means this program
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let launch = Launch {
        ranks: args.ranks,
        command: args.command.clone(),
        prefix: !args.no_prefix,
        timeout: args.timeout.map(Duration::from_secs),
    };
    launch.run()
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) ranks: u32,
    pub(crate) command: Vec<String>,
    pub(crate) prefix: bool,
    pub(crate) timeout: Option<Duration>,
}

impl Launch {
    /// Starts all ranks and waits for them. The exit code is that of the first rank that failed.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let rendezvous = aqueduct::bootstrap::Rendezvous::start(Some(self.ranks))?;
        let id = rendezvous.unique_id().to_string();
        catch_signals();

        let (ended, endings) = mpsc::channel();
        let mut job = Job::default();
        for rank in 0..self.ranks {
            let mut child = self.spawn(rank, &id)?;
            let pid = child.id();
            let pipes = [
                child.stdout.take().map(|p| forward(p, std::io::stdout(), self.label(rank))),
                child.stderr.take().map(|p| forward(p, std::io::stderr(), self.label(rank))),
            ];
            job.pids.push(Some(pid));
            let ended = ended.clone();
            std::thread::spawn(move || {
                let status = child.wait();
                pipes.into_iter().flatten().for_each(|pipe| drop(pipe.join()));
                // The receiver is gone only when the launcher itself is leaving.
                let _ = ended.send((rank, status));
            });
        }
        job.wait(&endings, self.timeout.map(|t| Instant::now() + t))
    }

    fn label(&self, rank: u32) -> Option<String> {
        self.prefix.then(|| format!("[{rank}] "))
    }

    fn spawn(&self, rank: u32, id: &str) -> Result<Child> {
        let (program, arguments) = self.command.split_first().context("no command to run")?;
        let own = std::env::current_exe().context("cannot find this program's own path")?;
        let mut command = if program == "aqueduct" { Command::new(own) } else { Command::new(program) };
        command
            .args(arguments)
            .env("AQUEDUCT_RANK", rank.to_string())
            .env("AQUEDUCT_WORLD_SIZE", self.ranks.to_string())
            .env("AQUEDUCT_LOCAL_RANK", rank.to_string())
            .env("AQUEDUCT_UNIQUE_ID", id)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // SAFETY: between fork and exec only prctl(2) and getppid(2) are called, both async-signal-safe.
        unsafe {
            let launcher = libc::getpid();
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // The launcher may have died before the request was made.
                if libc::getppid() != launcher {
                    return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        command.spawn().with_context(|| format!("cannot start rank {rank}: `{program}`"))
    }
}

/// The ranks that still run, and how the job is to end.
#[derive(Default)]
struct Job {
    pids: Vec<Option<u32>>,
    verdict: Option<ExitCode>,
    kill_at: Option<Instant>,
}

impl Job {
    fn wait(
        &mut self,
        endings: &mpsc::Receiver<(u32, std::io::Result<ExitStatus>)>,
        deadline: Option<Instant>,
    ) -> Result<ExitCode> {
        while self.pids.iter().any(Option::is_some) {
            match endings.recv_timeout(Duration::from_millis(50)) {
                Ok((rank, status)) => {
                    self.pids[rank as usize] = None;
                    let status = status.with_context(|| format!("cannot wait for rank {rank}"))?;
                    if !status.success() && self.verdict.is_none() {
                        eprintln!("aqueduct run: rank {rank} {}; ending the others", describe(status));
                        self.end(code_of(status));
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    bail!("the threads that wait for the ranks are gone")
                }
            }
            let signal = SIGNAL.load(Ordering::Relaxed);
            if signal != 0 && self.verdict.is_none() {
                eprintln!("aqueduct run: caught signal {signal}; ending all ranks");
                self.end(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)));
            }
            if deadline.is_some_and(|d| Instant::now() >= d) && self.verdict.is_none() {
                eprintln!("aqueduct run: the time given with --timeout is over; ending all ranks");
                self.end(ExitCode::from(124));
            }
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.kill_at = None;
                self.signal(libc::SIGKILL);
            }
        }
        Ok(self.verdict.unwrap_or(ExitCode::SUCCESS))
    }

    fn end(&mut self, verdict: ExitCode) {
        self.verdict = Some(verdict);
        self.kill_at = Some(Instant::now() + GRACE);
        self.signal(libc::SIGTERM);
    }

    /// Signals the process group of every rank that has not been reaped.
    fn signal(&self, signal: i32) {
        for pid in self.pids.iter().flatten() {
            if let Ok(group) = i32::try_from(*pid) {
                // SAFETY: kill(2) touches no memory; the group was created for a child that this process has not
                // reaped yet, so its number cannot have been reused.
                unsafe { libc::kill(-group, signal) };
            }
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// A rank's exit code, or 128 + the signal that killed it, as shells report it.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Copies `from` to `to` line by line, each with `label` before it; a line is written in one piece.
fn forward(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    label: Option<String>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend_from_slice(label.as_deref().unwrap_or_default().as_bytes());
            let head = line.len();
            match reader.read_until(b'\n', &mut line) {
                Ok(n) if n > 0 => {}
                _ => return,
            }
            if line.len() > head && line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // A closed terminal must not end the ranks: their exit codes still count.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
    })
}

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(i32) = note_signal;
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
