//! Signals that end a self-test early. The launcher sends one when a rank was killed; an operator may send another. The report
//! still names the check that was running, and ends with the summary.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lockstep::Verdict;
use super::summary::{self, Row, print_row};
use crate::job::Rank;
use crate::run::signals;
use crate::stdout;

/// How long the checks get to end by themselves after a signal: less than the launcher waits before it kills.
const PATIENCE: Duration = Duration::from_secs(1);

const LOOK: Duration = Duration::from_millis(20);

/// The report so far, of which a thread that waits for signals knows as well.
#[derive(Default)]
pub(super) struct Report(Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    pub(super) rows: Vec<Row>,
    /// The check that is running, and since when.
    pub(super) running: Option<(String, Instant)>,
    over: bool,
}

impl Report {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `checks`. If a signal arrives and they do not end soon, prints what there is to print and ends the process.
    pub(super) fn guard<T>(&self, rank: &Rank, checks: impl FnOnce() -> T) -> T {
        signals::catch();
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch(rank));
            let result = checks();
            self.state().over = true;
            result
        })
    }

    fn watch(&self, rank: &Rank) {
        let mut since = None;
        loop {
            std::thread::sleep(LOOK);
            let (signal, count) = signals::caught();
            let mut state = self.state();
            if state.over {
                return;
            }
            if count == 0 || since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                continue;
            }
            if reporter(first_lost(rank)) == rank.bootstrap.rank() {
                if let Some((name, started)) = state.running.take() {
                    let verdict = Verdict::Failed(format!("ended by signal {signal} during this check"));
                    state.rows.push(Row { name, verdict, time: started.elapsed() });
                    // No one is left to be told of an output that cannot be written.
                    let _ = state.rows.last().map(print_row);
                }
                let _ = summary::print(rank, &state.rows).and_then(|_| Ok(stdout::finish()?));
            }
            std::process::exit(128 + signal);
        }
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
