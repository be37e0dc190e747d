//! The ranks of one process, a thread each. They start when a line arrives on standard input.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::bootstrap::{Bootstrap, TcpBootstrap, UniqueId};
use aqueduct::comm::CommunicatorConfig;
use aqueduct::internals::control::Introduction;
use serde::{Deserialize, Serialize};

use crate::job::names_another;
use crate::stderr::say;
use crate::stdout::Stdout;

/// The phases that are timed separately, in order.
pub(super) const PHASES: [&str; 5] = ["rendezvous", "exchange", "control links", "barrier", "teardown"];

/// Descriptors that a process needs besides those of its ranks.
const SPARE_FILES: u64 = 64;

/// Times and bytes sent of one rank, by phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) seconds: [f64; PHASES.len()],
    /// Bytes sent in frames. Handshakes have a fixed size and are not counted.
    pub(super) bytes: [u64; PHASES.len()],
    /// Number of bootstrap connections and of control links at this rank.
    pub(super) links: [usize; 2],
}

/// Ranks `first .. first + count` of `size`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalRanks {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) size: u32,
    pub(super) timeout: Duration,
}

/// How many ranks of a job of `size` ranks fit into one process under the limit on open files.
pub(super) fn ranks_per_process(size: u32) -> Result<u32> {
    let files = raise_open_files()?;
    let fit = files.saturating_sub(SPARE_FILES) / files_per_rank(size);
    if fit == 0 {
        bail!(
            "one of {size} ranks needs {} open files, but a process may open only {files}; raise the limit with `ulimit -n`",
            files_per_rank(size) + SPARE_FILES
        );
    }
    Ok(u32::try_from(fit).unwrap_or(u32::MAX).min(size))
}

/// Descriptors of one rank: those of both service threads and the listeners, and about log2(`size`) connections out and
/// in for bootstrap and for control links. In small groups every rank is linked to every other.
fn files_per_rank(size: u32) -> u64 {
    let rounds = u64::from(size.next_power_of_two().trailing_zeros());
    16 + 2 * rounds + (2 * rounds).max(15)
}

/// Raises the soft limit on open files to the hard limit and returns it.
fn raise_open_files() -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live output.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(std::io::Error::last_os_error()).context("getrlimit(RLIMIT_NOFILE)");
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a live input.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(std::io::Error::last_os_error()).context("setrlimit(RLIMIT_NOFILE)");
    }
    Ok(limit.rlim_cur)
}

impl LocalRanks {
    /// Starts the threads, prints "ready", waits for a line of input, and prints the samples as one line of JSON.
    pub(super) fn execute(self) -> Result<ExitCode> {
        raise_open_files()?;
        let id: UniqueId = std::env::var("AQUEDUCT_UNIQUE_ID").context("AQUEDUCT_UNIQUE_ID")?.parse()?;
        let begin = Barrier::new(self.count as usize + 1);
        let samples: Vec<Result<Sample>> = std::thread::scope(|scope| {
            let run = |rank| {
                let (id, begin) = (&id, &begin);
                std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, move || {
                    begin.wait();
                    self.rank(rank, id).with_context(|| format!("rank {rank}"))
                })
            };
            let ranks: Vec<_> = (self.first..self.first + self.count)
                .map(run)
                .collect::<std::io::Result<_>>()
                .unwrap_or_else(
                    // Threads that already started wait for the missing ones, so the process cannot clean up: exit.
                    |error| exit(&format!("cannot start {} threads: {error}", self.count)),
                );
            if let Err(error) = writeln!(Stdout, "ready") {
                exit(&error.to_string());
            }
            let mut line = String::new();
            match std::io::stdin().lock().read_line(&mut line) {
                Ok(read) if read > 0 => {}
                _ => exit("the measuring process has exited"),
            }
            begin.wait();
            ranks.into_iter().map(join).collect()
        });
        let samples = self.all_or_cause(samples)?;
        writeln!(Stdout, "{}", serde_json::to_string(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The samples, or the error of a rank that failed by itself: the others only report that they lost it.
    fn all_or_cause(&self, mut samples: Vec<Result<Sample>>) -> Result<Vec<Sample>> {
        let own = |(rank, sample): (u32, &Result<Sample>)| {
            sample.as_ref().is_err_and(|error| !names_another(error, rank))
        };
        if let Some(cause) = (self.first..).zip(&samples).position(own) {
            samples.swap(0, cause);
        }
        samples.into_iter().collect()
    }

    /// Runs one rank through all phases.
    fn rank(&self, rank: u32, id: &UniqueId) -> Result<Sample> {
        let deadline = Deadline::after(self.timeout);
        let mut clock = Clock { sample: Sample::default(), since: Instant::now(), phase: 0, sent: 0 };
        let bootstrap = TcpBootstrap::new(rank, self.size, id, deadline)?;
        clock.lap(bootstrap.traffic().1);
        // The interface that the environment sets for the bootstrap.
        let config =
            CommunicatorConfig::from_env()?.with_local_address(bootstrap.local_ip()).with_peer_timeout(None);
        let met = Introduction::new(&bootstrap, None, &config, deadline)?;
        clock.lap(bootstrap.traffic().1);
        let links = met.link(deadline)?;
        let (count, bytes) = links.traffic();
        clock.lap(bootstrap.traffic().1 + bytes);
        bootstrap.barrier(deadline)?;
        clock.lap(bootstrap.traffic().1 + bytes);
        let connections = bootstrap.traffic().0;
        links.leave(deadline)?;
        let sent = links.traffic().1 + bootstrap.traffic().1;
        drop(links);
        drop(bootstrap);
        clock.lap(sent);
        Ok(Sample { links: [connections, count], ..clock.sample })
    }
}

struct Clock {
    sample: Sample,
    since: Instant,
    phase: usize,
    sent: u64,
}

impl Clock {
    /// Ends a phase. `sent` is the total number of bytes sent so far.
    fn lap(&mut self, sent: u64) {
        let now = Instant::now();
        self.sample.seconds[self.phase] = (now - self.since).as_secs_f64();
        // The total shrinks when peers close links, because closed links are no longer counted.
        self.sample.bytes[self.phase] = sent.saturating_sub(self.sent);
        (self.since, self.sent, self.phase) = (now, sent.max(self.sent), self.phase + 1);
    }
}

fn join(thread: std::thread::ScopedJoinHandle<'_, Result<Sample>>) -> Result<Sample> {
    thread.join().unwrap_or_else(|_| bail!("a rank's thread panicked"))
}

fn exit(message: &str) -> ! {
    say(format!("aqueduct: {message}"));
    std::process::exit(1);
}
