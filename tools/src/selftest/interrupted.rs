//! Signals that end a self-test early. The launcher sends one when a rank was killed; an operator may send another. The report
//! still names the check that was running, and ends with the summary.
//!
//! Ranks end in an order that does not depend on time: each tells the others of its signal, the rank that reports prints once
//! all have answered, and the others leave after it. A rank that is gone without a word was lost, and then the checks end by
//! themselves and name it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::last_words::{self, Ending, Peer, Word, others};
use super::lockstep::Verdict;
use super::summary::{self, Row, print_row};
use crate::job::{OTHER_RANK_FAILED, Rank};
use crate::run::signals;
use crate::stdout;

/// How long the reporting rank waits for a rank that neither answers nor is gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it waits for checks to end by themselves where a rank was lost: almost as long as the launcher waits before it kills,
/// because only then the report says which checks were not run.
const LOST: Duration = Duration::from_millis(1700);

/// How long the other ranks wait for the report. They leave earlier if the reporting rank is gone; only one that hangs is
/// left behind, and the launcher has killed that one by then.
const LONGEST: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(20);

/// The report so far, of which a thread that waits for signals knows as well.
pub(super) struct Report(Mutex<State>);

pub(super) struct State {
    pub(super) rows: Vec<Row>,
    /// The check that is running, and since when.
    pub(super) running: Option<(String, Instant)>,
    over: bool,
    /// The words of the ranks, by rank.
    peers: Vec<Peer>,
}

impl Report {
    pub(super) fn new(ranks: u32) -> Self {
        let peers = vec![Peer::default(); ranks as usize];
        Self(Mutex::new(State { rows: Vec::new(), running: None, over: false, peers }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `checks`. If a signal arrives at a rank and they do not end soon, prints what there is to print and ends the process.
    pub(super) fn guard<T>(&self, rank: &Rank, checks: impl FnOnce() -> T) -> T {
        signals::catch();
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch(rank));
            let result = checks();
            self.state().over = true;
            result
        })
    }

    /// Returns once it is sure that `lost`, which the checks miss, is gone without a word. Otherwise this rank is to end as
    /// well: the thread that watches reports, or leaves, and ends the process meanwhile.
    pub(super) fn wait_for_last_words(&self, lost: u32) {
        let since = Instant::now();
        loop {
            let peer = self.state().peers[lost as usize];
            if peer.lost() || (peer.ending.is_none() && since.elapsed() >= PATIENCE) {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn watch(&self, rank: &Rank) {
        let mut since = None;
        loop {
            std::thread::sleep(LOOK);
            let (signal, count) = signals::caught();
            let caught = (count > 0).then_some(signal);
            let mut state = self.state();
            if state.over {
                return;
            }
            last_words::hear(rank, &mut state.peers);
            let code = caught.map_or(i32::from(OTHER_RANK_FAILED), |signal| 128 + signal);
            if state.peers.iter().any(|peer| peer.reported) {
                std::process::exit(code);
            }
            let caught = caught.map(|signal| Ending { signal, rank: rank.bootstrap.rank() });
            let told = || state.peers.iter().find_map(|peer| peer.ending);
            let Some(ending) = caught.or_else(told) else { continue };
            let waited = match since {
                Some(since) => Instant::elapsed(&since),
                None => {
                    since = Some(Instant::now());
                    drop(state);
                    last_words::tell(rank, Word::Ending(ending));
                    continue;
                }
            };
            match turn(rank.bootstrap.rank(), others(rank), &state, waited) {
                Turn::Wait => {}
                Turn::Leave => std::process::exit(code),
                Turn::Report => {
                    state.finish(rank, ending);
                    last_words::tell(rank, Word::Reported);
                    std::process::exit(code);
                }
            }
        }
    }
}

/// The reason of a failed check if `rank` is gone without a word.
pub(super) fn missing(rank: u32) -> String {
    format!("rank {rank} was lost during this check")
}

/// The next step of a rank that is to end.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Wait,
    Report,
    Leave,
}

/// Decides it for rank `me`, which has known for `waited` that it is to end.
fn turn(me: u32, mut others: impl Iterator<Item = u32>, state: &State, waited: Duration) -> Turn {
    let peer = |rank: u32| state.peers[rank as usize];
    let first = reporter(peer(0).gone.then_some(0));
    if first != me {
        return if waited >= LONGEST || peer(first).gone { Turn::Leave } else { Turn::Wait };
    }
    // Between two checks there is none to name.
    let ready = state.running.is_some() && others.all(|rank| peer(rank).ending.is_some());
    let lost = (0..).zip(&state.peers).any(|(rank, peer)| rank != me && peer.lost());
    let patience = if lost { LOST } else { PATIENCE };
    if ready || waited >= patience { Turn::Report } else { Turn::Wait }
}

impl State {
    /// Prints the row of the check that was running, and the summary. No one is left to be told of an output that cannot be
    /// written.
    fn finish(&mut self, rank: &Rank, ending: Ending) {
        if let Some((name, started)) = self.running.take() {
            let lost = others(rank).find(|&other| self.peers[other as usize].lost());
            let why = lost.map_or_else(|| ending.reason(rank.bootstrap.rank()), missing);
            self.rows.push(Row { name, verdict: Verdict::Failed(why), time: started.elapsed() });
            let _ = self.rows.last().map(print_row);
        }
        let _ = summary::print(rank, &self.rows).and_then(|_| Ok(stdout::finish()?));
    }
}

/// The rank that was lost first, as the job's communicator knows it.
pub(super) fn first_lost(rank: &Rank) -> Option<u32> {
    rank.comm.check().err().and_then(|error| error.peer()).filter(|&peer| peer != rank.bootstrap.rank())
}

/// The rank that prints the report: 0, or 1 if 0 was lost.
pub(super) fn reporter(lost: Option<u32>) -> u32 {
    u32::from(lost == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNALLED: Peer =
        Peer { ending: Some(Ending { signal: 15, rank: 1 }), reported: false, gone: false };
    const SILENT: Peer = Peer { ending: None, reported: false, gone: false };

    fn turn_of(me: u32, peers: &[Peer], running: bool, waited: Duration) -> Turn {
        let running = running.then(|| (String::new(), Instant::now()));
        let state = State { rows: Vec::new(), running, over: false, peers: peers.to_vec() };
        let others = (0..).zip(peers).map(|(rank, _)| rank).filter(|&rank| rank != me);
        turn(me, others, &state, waited)
    }

    #[test]
    fn the_report_waits_for_answers_and_the_others_for_the_report() {
        let (soon, late) = (Duration::ZERO, PATIENCE);
        let gone = |peer: Peer| Peer { gone: true, ..peer };
        assert_eq!(turn_of(0, &[SILENT], true, soon), Turn::Report, "alone");
        assert_eq!(turn_of(0, &[SILENT, SIGNALLED, SIGNALLED], true, soon), Turn::Report);
        assert_eq!(
            turn_of(0, &[SILENT, SIGNALLED, SIGNALLED], false, soon),
            Turn::Wait,
            "between two checks"
        );
        assert_eq!(turn_of(0, &[SILENT, SIGNALLED, SILENT], true, soon), Turn::Wait, "an answer is missing");
        assert_eq!(
            turn_of(0, &[SILENT, SIGNALLED, gone(SILENT)], true, soon),
            Turn::Wait,
            "the checks say so"
        );
        assert_eq!(turn_of(0, &[SILENT, SIGNALLED, gone(SILENT)], true, late), Turn::Wait);
        assert_eq!(turn_of(0, &[SILENT, SIGNALLED, gone(SILENT)], true, LOST), Turn::Report);
        assert_eq!(turn_of(0, &[SILENT, SIGNALLED, SILENT], false, late), Turn::Report);
        assert_eq!(turn_of(1, &[SIGNALLED, SILENT], true, late), Turn::Wait, "the reporter is there");
        assert_eq!(turn_of(1, &[SIGNALLED, SILENT], true, LONGEST), Turn::Leave, "it hangs");
        assert_eq!(turn_of(1, &[gone(SIGNALLED), SILENT], true, soon), Turn::Report, "its successor");
        assert_eq!(turn_of(2, &[gone(SILENT), SIGNALLED, SILENT], true, late), Turn::Wait);
        assert_eq!(turn_of(2, &[gone(SILENT), gone(SIGNALLED), SILENT], true, soon), Turn::Leave);
    }
}
