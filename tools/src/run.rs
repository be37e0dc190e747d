//! `aqueduct run -n N -- CMD`: starts N ranks of a command on this machine.
//!
//! Every line of a rank's output is prefixed with its number. When one rank fails, or a signal arrives, the launcher
//! ends all: first SIGTERM to each rank's process group, then SIGKILL. Processes that a rank leaves behind in its group
//! end the same way. No rank outlives the launcher: the kernel sends SIGKILL to the children of a launcher that dies
//! (`PR_SET_PDEATHSIG`).

use std::convert::Infallible;
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

/// The job to start.
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
        let id = rendezvous.unique_id().to_text();
        catch_signals();

        let (ended, endings) = mpsc::channel();
        // Nothing is sent on this channel. It disconnects when the last pipe reaches its end.
        let (open, drained) = mpsc::channel();
        let mut job = Job::default();
        let started = (0..self.ranks).try_for_each(|rank| {
            let mut child = self.spawn(rank, id.expose())?;
            if let Some(pipe) = child.stdout.take() {
                forward(pipe, std::io::stdout(), self.label(rank), open.clone());
            }
            if let Some(pipe) = child.stderr.take() {
                forward(pipe, std::io::stderr(), self.label(rank), open.clone());
            }
            let (pid, ended) = (child.id(), ended.clone());
            job.ranks.push(Started { child, running: true });
            std::thread::spawn(move || {
                // Fails only if the launcher is about to exit.
                let _ = ended.send((rank, exit_of(pid)));
            });
            Ok(())
        });
        drop(open);
        let verdict = started.and_then(|()| job.wait(&endings, self.timeout.map(|t| Instant::now() + t)));
        job.finish(&drained);
        verdict
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
                // The launcher may have died before prctl(2) was called.
                if libc::getppid() != launcher {
                    return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        command.spawn().with_context(|| format!("cannot start rank {rank}: `{program}`"))
    }
}

/// A rank's process. Only [`Job::finish`] reaps it, so until then its pid, and that of its group, cannot be reused.
struct Started {
    child: Child,
    running: bool,
}

/// The running ranks, and the job's exit code once it is decided.
#[derive(Default)]
struct Job {
    ranks: Vec<Started>,
    verdict: Option<ExitCode>,
    kill_at: Option<Instant>,
}

impl Job {
    fn wait(
        &mut self,
        endings: &mpsc::Receiver<(u32, std::io::Result<ExitStatus>)>,
        deadline: Option<Instant>,
    ) -> Result<ExitCode> {
        while self.ranks.iter().any(|rank| rank.running) {
            match endings.recv_timeout(Duration::from_millis(50)) {
                Ok((rank, status)) => {
                    self.ranks[rank as usize].running = false;
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
                eprintln!("aqueduct run: --timeout expired; ending all ranks");
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

    /// Ends what is left of the ranks' process groups, forwards the last output, and reaps the ranks.
    fn finish(&mut self, drained: &mpsc::Receiver<Infallible>) {
        self.signal(libc::SIGTERM);
        // Returns when all pipes are closed, or after the grace period.
        let _ = drained.recv_timeout(GRACE);
        self.signal(libc::SIGKILL);
        // A process that left its rank's group may keep a pipe open for ever, so wait only for a limited time.
        let _ = drained.recv_timeout(GRACE);
        for rank in &mut self.ranks {
            let _ = rank.child.wait();
        }
    }

    /// Signals the process group of every rank.
    fn signal(&self, signal: i32) {
        for rank in &self.ranks {
            if let Ok(group) = i32::try_from(rank.child.id()) {
                // SAFETY: kill(2) touches no memory; the group was created for a child that this process has not
                // reaped yet, so its number cannot have been reused.
                unsafe { libc::kill(-group, signal) };
            }
        }
    }
}

/// Waits until the child `pid` has exited, without reaping it.
fn exit_of(pid: u32) -> std::io::Result<ExitStatus> {
    // SAFETY: siginfo_t is plain data, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a live output.
    while unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT) } != 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: waitid(2) has filled in the fields for a child.
    let status = unsafe { info.si_status() };
    // Encoded as wait(2) encodes it.
    Ok(ExitStatus::from_raw(if info.si_code == libc::CLD_EXITED { status << 8 } else { status }))
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

/// Copies `from` to `to`, each line in one write with `label` in front. Holds `open` until
/// `from` ends.
fn forward(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    label: Option<String>,
    open: mpsc::Sender<Infallible>,
) {
    std::thread::spawn(move || {
        let _open = open;
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
            // Ignore a closed terminal: the ranks go on, and their exit codes still count.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
    });
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
