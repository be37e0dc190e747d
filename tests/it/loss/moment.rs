//! One moment: runs a job and kills or stops a random rank at a random time of some phase.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use aqueduct_tests::ranks;

use super::job::{GO_ON, LAST, MARK, PHASES};
use super::leftovers::Baseline;
use super::{IN_TIME, MORE_TIME, Random};
use crate::group::start_rendezvous;

/// Time limit for the victim to reach its phase.
const START: Duration = Duration::from_secs(60);

/// The victim, the signal it gets, and when.
#[derive(Debug)]
pub(super) struct Moment {
    ranks: u32,
    victim: u32,
    pub(super) signal: libc::c_int,
    phase: usize,
    /// Time after the victim printed that it reached the phase.
    delay: Duration,
    /// Whether the others go on without it.
    go_on: bool,
    /// Whether a stopped victim is continued at the end. Otherwise it is killed.
    continued: bool,
}

/// The result of one moment.
#[derive(Default)]
pub(super) struct Outcome {
    /// Time from the signal until each other rank had ended or noticed the loss.
    pub(super) noticed: Vec<Duration>,
    pub(super) failures: Vec<String>,
    finished_before: bool,
}

/// A rank, as the test sees it.
struct Rank {
    child: Child,
    phase: Option<usize>,
    /// The end that it printed, and the time of that line.
    end: Option<(String, Instant)>,
    memory: Option<String>,
    /// When it noticed the loss, if it goes on.
    lost: Option<Instant>,
    /// Number of its outputs that are still open.
    open: u32,
    log: VecDeque<String>,
}

impl Rank {
    fn is_gone(&self) -> bool {
        self.open == 0
    }
}

struct Line {
    rank: usize,
    at: Instant,
    /// `None` at the end of an output.
    text: Option<String>,
}

/// Whether `end` says that `rank` was lost, with any reason of several words.
fn names(end: &str, rank: u32) -> bool {
    let lost = format!("PeerLost {rank} ");
    end.starts_with(&lost) && end.len() > lost.len() + 20
}

impl Moment {
    pub(super) fn choose(number: u64, ranks: u32, random: &mut Random) -> Self {
        // Phases and signals alternate, so that a few moments cover all of them. The rest is random.
        let phase = number as usize % PHASES.len();
        let longest = [20_000, 200_000, 250_000, 30_000, 10_000, 1_000][phase];
        Self {
            ranks,
            victim: random.below(ranks as usize) as u32,
            signal: if (number + number / PHASES.len() as u64).is_multiple_of(2) {
                libc::SIGKILL
            } else {
                libc::SIGSTOP
            },
            phase,
            delay: Duration::from_micros(random.below(longest) as u64),
            go_on: random.below(2) == 0,
            continued: random.below(2) == 0,
        }
    }

    /// Rank 1 of four is killed between all-reduces, and the others go on.
    pub(super) fn in_the_middle() -> Self {
        let (ranks, victim, phase, delay) = (4, 1, LAST - 2, Duration::from_millis(100));
        Self { ranks, victim, signal: libc::SIGKILL, phase, delay, go_on: true, continued: false }
    }

    pub(super) fn play(&self, baseline: &Baseline, test: &str) -> Outcome {
        let (sender, lines) = channel();
        let rendezvous = start_rendezvous(Some(self.ranks));
        let ranks = (0..self.ranks).map(|rank| {
            let mut command = ranks::command(rank, test);
            command
                .env("AQUEDUCT_RANK", rank.to_string())
                .env("AQUEDUCT_WORLD_SIZE", self.ranks.to_string())
                .env("AQUEDUCT_UNIQUE_ID", rendezvous.unique_id().to_text().expose())
                .env("XDG_RUNTIME_DIR", baseline.folder.path())
                .process_group(0);
            if self.go_on {
                command.env(GO_ON, "1");
            }
            let mut child = command.spawn().expect("a rank can be started");
            listen(rank as usize, child.stdout.take(), &sender);
            listen(rank as usize, child.stderr.take(), &sender);
            Rank { child, phase: None, end: None, memory: None, lost: None, open: 2, log: VecDeque::new() }
        });
        let mut job = Job { ranks: ranks.collect(), lines };
        let mut outcome = Outcome::default();
        self.watch(&mut job, &mut outcome);
        let pids: Vec<u32> = job.ranks.iter().map(|rank| rank.child.id()).collect();
        job.end();
        // A rank killed after all others have exited leaves its socket for the next job to remove. It has none any more some
        // time after it has joined.
        let joins = ["join", "setup"].contains(&PHASES[self.phase]);
        let alone = self.signal == libc::SIGSTOP && !self.continued && joins;
        outcome
            .failures
            .extend(baseline.leftovers(&pids, !alone).into_iter().map(|what| format!("left behind: {what}")));
        if !outcome.failures.is_empty() {
            for (number, rank) in job.ranks.iter().enumerate() {
                outcome.failures.push(format!("  output of rank {number}:"));
                outcome.failures.extend(rank.log.iter().map(|line| format!("    {line}")));
            }
        }
        outcome
    }

    fn watch(&self, job: &mut Job, outcome: &mut Outcome) {
        let victim = self.victim as usize;
        let arrived = |job: &Job| job.ranks[victim].phase >= Some(self.phase) || job.ranks[victim].is_gone();
        if !job.listen_until(Instant::now() + START, arrived) {
            return outcome.failures.push(format!("the victim never reached {}", PHASES[self.phase]));
        }
        let hit = Instant::now() + self.delay;
        job.listen_until(hit, |_| false);
        let struck = Instant::now();
        job.signal(victim, self.signal);
        let others = || (0..self.ranks as usize).filter(|rank| *rank != victim);
        let ended = |job: &Job| others().all(|rank| job.ranks[rank].is_gone());
        let patience = if self.go_on { IN_TIME + MORE_TIME } else { IN_TIME };
        job.listen_until(struck + patience, ended);
        outcome.finished_before = job.ranks[victim].end.as_ref().is_some_and(|(_, at)| *at <= struck);
        let phase = job.ranks[victim].phase;
        // A rank that lost the victim before it had a communicator cannot go on with the others. It says so itself: the victim
        // may have had one already.
        let joining = |rank: usize| job.ranks[rank].phase == Some(0);
        let some_had_none = others().any(joining);
        for rank in others() {
            match &job.ranks[rank].end {
                None if job.ranks[rank].is_gone() => {
                    outcome.failures.push(format!("rank {rank} ended without printing how"));
                }
                None => outcome.failures.push(format!("rank {rank} had not ended after {patience:?}")),
                Some((end, at)) => {
                    let noticed = job.ranks[rank].lost.unwrap_or(*at).saturating_duration_since(struck);
                    outcome.noticed.push(noticed);
                    if noticed > IN_TIME {
                        outcome.failures.push(format!("rank {rank} noticed only after {noticed:?}"));
                    }
                    if !self.is_right(rank, end, phase >= Some(LAST), joining(rank), some_had_none) {
                        outcome.failures.push(format!("rank {rank} ended with: {end}"));
                    }
                    self.check_memory(rank, job, outcome);
                }
            }
        }
        if self.signal == libc::SIGSTOP && self.continued {
            job.signal(victim, libc::SIGCONT);
            job.listen_until(Instant::now() + IN_TIME, |job| job.ranks[victim].is_gone());
            match &job.ranks[victim].end {
                None => outcome.failures.push("the victim was continued and never ended".into()),
                Some((end, _)) if end == "ok" && phase < Some(LAST) => {
                    outcome.failures.push("the victim was continued and ended without an error".into());
                }
                Some(_) => self.check_memory(victim, job, outcome),
            }
        }
    }

    /// Whether `rank` may end as `end` says. `late`: the victim had reached the phase in which the others may have all that they
    /// need from it; `joining`: this rank had no communicator when it ended; `some_had_none`: another one had none.
    fn is_right(&self, rank: usize, end: &str, late: bool, joining: bool, some_had_none: bool) -> bool {
        // A rank with a communicator is too few to go on alone if its peers had none and ended.
        let left_over = !joining && self.go_on && some_had_none && names(end, rank as u32);
        (names(end, self.victim) && (late || joining || !self.go_on))
            || left_over
            || (end == "ok" && (late || self.go_on))
    }

    fn check_memory(&self, rank: usize, job: &Job, outcome: &mut Outcome) {
        if let Some(memory) = job.ranks[rank].memory.as_ref().filter(|memory| *memory != "0") {
            outcome.failures.push(format!(
                "rank {rank} dropped everything, but {memory} bytes of its device memory are still in use"
            ));
        }
    }
}

/// The ranks of one job. Dropping it kills those that are left.
struct Job {
    ranks: Vec<Rank>,
    lines: Receiver<Line>,
}

impl Job {
    /// Processes the ranks' output until `done` holds or `until` has passed. Returns whether `done` holds.
    fn listen_until(&mut self, until: Instant, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.hear(line),
                Err(RecvTimeoutError::Timeout) => return done(self),
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    return done(self);
                }
            }
        }
    }

    fn hear(&mut self, Line { rank, at, text }: Line) {
        let rank = &mut self.ranks[rank];
        let Some(text) = text else {
            rank.open -= 1;
            return;
        };
        if let Some(said) = text.strip_prefix(MARK) {
            match said.split_once(' ') {
                Some(("phase", name)) => rank.phase = PHASES.iter().position(|phase| *phase == name),
                Some(("end", how)) => rank.end = Some((how.to_owned(), at)),
                Some(("lost", _)) => rank.lost = Some(at),
                Some(("memory", bytes)) => rank.memory = Some(bytes.to_owned()),
                _ => {}
            }
        }
        rank.log.push_back(text);
        if rank.log.len() > 40 {
            rank.log.pop_front();
        }
    }

    fn signal(&mut self, rank: usize, signal: libc::c_int) {
        // SAFETY: the child has not been reaped, so the number is still its own.
        unsafe { libc::kill(self.ranks[rank].child.id().cast_signed(), signal) };
    }

    /// Kills the ranks that are left, reaps all, and processes the rest of their output.
    fn end(&mut self) {
        for rank in &mut self.ranks {
            // Fails if the rank has already ended.
            let _ = rank.child.kill();
            rank.child.wait().expect("a child can be reaped");
        }
        self.listen_until(Instant::now() + Duration::from_secs(1), |job| job.ranks.iter().all(Rank::is_gone));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a thread that sends each line of `pipe` to `sender`.
fn listen(rank: usize, pipe: Option<impl Read + Send + 'static>, sender: &Sender<Line>) {
    let (sender, pipe) = (sender.clone(), pipe.expect("the output is piped"));
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines();
        loop {
            let text = lines.next().and_then(Result::ok);
            let last = text.is_none();
            if sender.send(Line { rank, at: Instant::now(), text }).is_err() || last {
                return;
            }
        }
    });
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.signal == libc::SIGKILL { "killed" } else { "stopped" };
        write!(f, "rank {} {what} {:?} into {}", self.victim, self.delay, PHASES[self.phase])?;
        if self.go_on { write!(f, ", the others go on") } else { Ok(()) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.finished_before {
            write!(f, "(it had ended before) ")?;
        }
        match self.noticed.iter().max() {
            Some(longest) => write!(f, "all noticed within {longest:?}")?,
            None => write!(f, "no rank noticed")?,
        }
        self.failures.iter().try_for_each(|failure| write!(f, "\n  {failure}"))
    }
}
