//! The running ranks of a job: waits for them, ends them, and says which one failed first.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::failures::Failures;
use super::forward::{Forwarders, State};
use super::{groups, signals};
use crate::job::OTHER_RANK_FAILED;
use crate::stderr::say;
use crate::stdout;

/// Time between the first signal and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Interval at which the launcher looks for signals, its time limit and failed output.
const LOOK: Duration = Duration::from_millis(50);

/// How long the launcher waits, when a rank blames another one, for that one to exit.
const SETTLE: Duration = Duration::from_secs(2);

/// Why the launcher ends the job.
#[derive(Clone, Copy)]
enum Cause {
    /// This rank failed before any other.
    Rank(usize, ExitStatus),
    Signal(i32),
    Timeout,
    /// Standard output cannot be written.
    Output,
}

/// A rank's process. Only [`Job::run`] reaps it, at its end; until then its pid, and that of its group, is not reused.
struct Rank {
    child: Child,
    status: Option<ExitStatus>,
}

/// A rank's number and how it exited.
type Ending = (usize, std::io::Result<ExitStatus>);

pub(super) struct Job {
    ranks: Vec<Rank>,
    deadline: Option<Instant>,
    cause: Option<Cause>,
    /// Ranks that failed, in the order in which they were found.
    failed: Vec<(usize, ExitStatus)>,
    /// The order in which they say that they failed.
    noted: Failures,
    /// When the first of them counts as the cause even though it says that another rank is.
    settled_at: Option<Instant>,
    kill_at: Option<Instant>,
    /// Number of signals that the launcher has acted upon.
    signals: u32,
    ended: mpsc::Sender<Ending>,
    endings: mpsc::Receiver<Ending>,
}

impl Job {
    pub(super) fn new(deadline: Option<Instant>, noted: Failures) -> Self {
        let (ended, endings) = mpsc::channel();
        Self {
            ranks: Vec::new(),
            deadline,
            cause: None,
            failed: Vec::new(),
            noted,
            settled_at: None,
            kill_at: None,
            signals: 0,
            ended,
            endings,
        }
    }

    /// Adds the next rank.
    pub(super) fn add(&mut self, child: Child) -> Result<()> {
        let (rank, pid, ended) = (self.ranks.len(), child.id(), self.ended.clone());
        self.ranks.push(Rank { child, status: None });
        let wait = move || {
            // Fails only if the launcher is about to exit.
            let _ = ended.send((rank, wait_for(pid, 0)));
        };
        std::thread::Builder::new().name("run-wait".to_owned()).spawn(wait)?;
        Ok(())
    }

    /// Waits for all ranks, or ends them if not all could be `started`, and for all they have printed.
    pub(super) fn run(mut self, started: Result<()>, forwarders: Forwarders) -> Result<ExitCode> {
        let (output, drained) = forwarders.watch();
        let waited = started.and_then(|()| self.wait(&output));
        // Ends what ranks have left behind in their groups.
        self.signal(libc::SIGTERM);
        self.wait_for_groups(&output, &drained);
        self.signal(libc::SIGKILL);
        output.ranks_are_dead();
        self.drain(&output, &drained);
        for rank in &mut self.ranks {
            let _ = rank.child.wait();
        }
        waited?;
        self.look(&output);
        Ok(self.verdict(&output))
    }

    /// Waits until nobody lives in the ranks' process groups, at most for [`GRACE`] or until a signal arrives.
    fn wait_for_groups(&mut self, output: &State, drained: &mpsc::Receiver<Infallible>) {
        let (since, signals) = (Instant::now(), self.signals);
        let numbers: BTreeSet<u32> = self.ranks.iter().map(|rank| rank.child.id()).collect();
        let closed = || matches!(drained.try_recv(), Err(mpsc::TryRecvError::Disconnected));
        // Without /proc, closed pipes count as an empty group.
        while groups::live(&numbers).unwrap_or_else(|| !closed()) && since.elapsed() < GRACE {
            std::thread::sleep(LOOK / 5);
            self.look(output);
            if self.signals > signals {
                return;
            }
        }
    }

    fn wait(&mut self, output: &State) -> Result<()> {
        while self.ranks.iter().any(|rank| rank.status.is_none()) {
            // Never disconnected: `self` has a sender as well.
            if let Ok(ending) = self.endings.recv_timeout(LOOK) {
                self.note(ending)?;
            }
            self.judge();
            self.look(output);
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.kill_at = None;
                self.signal(libc::SIGKILL);
            }
        }
        Ok(())
    }

    /// Notes that a rank has exited, and all others that have exited as well: the threads that wait for them may be late.
    fn note(&mut self, ending: Ending) -> Result<()> {
        let mut endings: Vec<Ending> = std::iter::once(ending).chain(self.endings.try_iter()).collect();
        let known = |rank| endings.iter().any(|(other, _)| *other == rank);
        let late =
            self.ranks.iter().enumerate().filter(|(number, rank)| rank.status.is_none() && !known(*number));
        let late: Vec<Ending> = late
            .map(|(number, rank)| (number, wait_for(rank.child.id(), libc::WNOHANG)))
            .filter(|(_, status)| {
                !status.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            })
            .collect();
        endings.extend(late);
        for (rank, status) in endings {
            let status = status.with_context(|| format!("cannot wait for rank {rank}"))?;
            if self.ranks[rank].status.replace(status).is_none() && !status.success() {
                self.failed.push((rank, status));
            }
        }
        Ok(())
    }

    /// Ends the job if a rank has failed and it is known which one was first.
    fn judge(&mut self) {
        let ended = |rank: usize| self.ranks.get(rank).is_none_or(|rank| rank.status.is_some());
        let Some((rank, status, sure)) = first(&self.failed, &self.noted.order(), ended) else { return };
        let running = self.ranks.iter().any(|rank| rank.status.is_none());
        let settled_at = *self.settled_at.get_or_insert_with(|| Instant::now() + SETTLE);
        if self.cause.is_some() || (running && !sure && Instant::now() < settled_at) {
            return;
        }
        if running {
            say(format_args!("aqueduct run: rank {rank} {}; ending the others", describe(status)));
        }
        self.end(Cause::Rank(rank, status), libc::SIGTERM);
    }

    /// Looks for whatever else ends the job.
    fn look(&mut self, output: &State) {
        let (signal, count) = signals::caught();
        let mut unheeded = count - self.signals;
        self.signals = count;
        if unheeded > 0 && self.cause.is_none() {
            say(format_args!("aqueduct run: caught signal {signal}; ending all ranks"));
            self.end(Cause::Signal(signal), signal);
            unheeded -= 1;
        }
        if unheeded > 0 {
            // A second signal: stop waiting and kill.
            say(format_args!("aqueduct run: caught signal {signal}; killing all ranks"));
            self.kill_at = Some(Instant::now());
        }
        if self.cause.is_some() {
            return;
        }
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            say("aqueduct run: --timeout expired; ending all ranks");
            self.end(Cause::Timeout, libc::SIGTERM);
        } else if let Some(error) = output.unwritable() {
            if !stdout::is_closed_pipe(error) {
                say(format_args!("aqueduct run: {error}; ending all ranks"));
            }
            self.end(Cause::Output, libc::SIGTERM);
        }
    }

    fn end(&mut self, cause: Cause, signal: i32) {
        self.cause = Some(cause);
        self.kill_at = Some(Instant::now() + GRACE);
        self.signal(signal);
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

    /// Waits until all that dead ranks have printed is written, however slowly it is read. A process that has left its
    /// rank's group may keep a pipe open for ever; for that one the launcher does not wait.
    fn drain(&mut self, output: &State, drained: &mpsc::Receiver<Infallible>) {
        let (mut seen, mut since) = (output.progress(), Instant::now());
        let signals = self.signals;
        while drained.recv_timeout(LOOK) != Err(mpsc::RecvTimeoutError::Disconnected) {
            self.look(output);
            let progress = output.progress();
            let hurried = matches!(self.cause, Some(Cause::Signal(_) | Cause::Timeout));
            if !hurried && (progress.0 > 0 || progress != seen) {
                (seen, since) = (progress, Instant::now());
            }
            if self.signals > signals || since.elapsed() >= GRACE {
                return;
            }
        }
    }

    /// The job's exit code. Names the rank that failed first, as the last line of all.
    fn verdict(&self, output: &State) -> ExitCode {
        match self.cause {
            None => ExitCode::SUCCESS,
            Some(Cause::Rank(rank, status)) => {
                let failed = |(number, other): (usize, &Rank)| {
                    let ours = [Some(libc::SIGTERM), Some(libc::SIGKILL)];
                    let failed = other.status.is_some_and(|s| !s.success() && !ours.contains(&s.signal()));
                    (failed && number != rank).then(|| number.to_string())
                };
                let others: Vec<String> = self.ranks.iter().enumerate().filter_map(failed).collect();
                let others = match others.as_slice() {
                    [] => String::new(),
                    [one] => format!("; rank {one} failed after it"),
                    all => format!("; ranks {} failed after it", all.join(", ")),
                };
                let how = describe(status);
                if self.ranks.len() == 1 {
                    say(format_args!("aqueduct run: rank {rank} {how}"));
                } else {
                    say(format_args!("aqueduct run: rank {rank} failed first: it {how}{others}"));
                }
                code_of(status)
            }
            Some(Cause::Signal(signal)) => ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)),
            Some(Cause::Timeout) => ExitCode::from(124),
            Some(Cause::Output) if output.unwritable().is_some_and(stdout::is_closed_pipe) => {
                ExitCode::from(stdout::PIPE_CLOSED)
            }
            Some(Cause::Output) => ExitCode::FAILURE,
        }
    }
}

/// The rank that failed first, of those in `failed`, which were found in this order; and whether that is sure.
///
/// A rank that was killed comes first: its peers exit with an error, but peers of a rank that exits are not killed. A rank
/// that says that another one has failed comes last: it may have exited before the one that it speaks of. Of two ranks that
/// have `noted` their failures the order of the notes counts, and one that has not `ended` yet is waited for.
fn first(
    failed: &[(usize, ExitStatus)],
    noted: &[usize],
    ended: impl Fn(usize) -> bool,
) -> Option<(usize, ExitStatus, bool)> {
    let killed = |status: ExitStatus| status.signal().is_some();
    let by_another = |status: ExitStatus| status.code() == Some(i32::from(OTHER_RANK_FAILED));
    if let Some(&(rank, status)) = failed.iter().find(|(_, status)| killed(*status)) {
        return Some((rank, status, true));
    }
    let own = failed.iter().find(|(_, status)| !by_another(*status));
    let Some(&(rank, status)) = own else {
        return failed.first().map(|&(rank, status)| (rank, status, false));
    };
    let before = noted.iter().position(|&other| other == rank).unwrap_or(0);
    for &earlier in &noted[..before] {
        match failed.iter().find(|(other, _)| *other == earlier) {
            Some(&(rank, status)) => return Some((rank, status, true)),
            None if !ended(earlier) => return Some((rank, status, false)),
            None => {}
        }
    }
    Some((rank, status, true))
}

/// Waits until the child `pid` has exited, without reaping it. With `WNOHANG` in `options`, the error is `WouldBlock` if it
/// has not.
fn wait_for(pid: u32, options: i32) -> std::io::Result<ExitStatus> {
    // SAFETY: siginfo_t is plain data, for which zeros are valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT | options;
    // SAFETY: `info` is a live output.
    while unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, options) } != 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: waitid(2) has filled in the fields for a child, or left zeros.
    let (exited, status) = unsafe { (info.si_pid() != 0, info.si_status()) };
    if !exited {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_failed_first_is_found_whatever_the_order() {
        let exited = ExitStatus::from_raw(1 << 8);
        let killed = ExitStatus::from_raw(libc::SIGSEGV);
        let by_another = ExitStatus::from_raw(i32::from(OTHER_RANK_FAILED) << 8);
        let first = |failed: &[_], noted: &[_]| first(failed, noted, |rank| rank != 4);
        assert_eq!(first(&[], &[]), None);
        assert_eq!(first(&[(0, exited), (2, exited)], &[]), Some((0, exited, true)));
        assert_eq!(first(&[(3, exited), (2, killed), (1, killed)], &[3]), Some((2, killed, true)));
        assert_eq!(first(&[(3, by_another), (0, by_another), (1, exited)], &[]), Some((1, exited, true)));
        assert_eq!(first(&[(3, by_another), (0, by_another)], &[]), Some((3, by_another, false)));
        // Rank 2 failed first, and took longer to end.
        assert_eq!(first(&[(0, exited), (2, exited)], &[2, 0]), Some((2, exited, true)));
        // So did rank 4, which still runs; but not rank 1, which ended well after its command had failed.
        assert_eq!(first(&[(0, exited), (2, exited)], &[4, 0, 2]), Some((0, exited, false)));
        assert_eq!(first(&[(0, exited), (2, exited)], &[1, 2, 0]), Some((2, exited, true)));
        // Another program, which notes nothing.
        assert_eq!(first(&[(0, exited), (2, exited)], &[2]), Some((0, exited, true)));
    }
}
