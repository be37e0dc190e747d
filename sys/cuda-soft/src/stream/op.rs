//! Operations: pieces of work that begin when those they depend on have ended.
//!
//! Streams, events, the legacy stream's implicit order and graphs are all the same thing: edges between
//! operations.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::work::{self, Work};

/// One submitted piece of work of a device.
#[derive(Debug)]
pub(crate) struct Op {
    /// The ordinal of the device whose context it belongs to.
    pub(crate) device: usize,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    /// Unfinished operations this one waits for, plus one while it is being submitted.
    waits_for: usize,
    work: Option<Work>,
    dependents: Vec<Arc<Op>>,
    ended_at: Option<Instant>,
}

impl Op {
    /// Submits `work`, which begins when all of `after` have ended.
    pub(crate) fn submit<'a>(
        device: usize,
        after: impl IntoIterator<Item = &'a Arc<Op>>,
        work: Work,
    ) -> Arc<Op> {
        let op = Arc::new(Op {
            device,
            state: Mutex::new(State {
                waits_for: 1,
                work: Some(work),
                dependents: Vec::new(),
                ended_at: None,
            }),
            ended: Condvar::new(),
        });
        for earlier in after {
            let mut earlier = earlier.state.lock();
            if earlier.ended_at.is_none() {
                op.state.lock().waits_for += 1;
                earlier.dependents.push(Arc::clone(&op));
            }
        }
        run_ready(VecDeque::from([Arc::clone(&op)]));
        op
    }

    /// When it ended, if it has.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.state.lock().ended_at
    }

    /// Whether it has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.ended_at().is_some()
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        while state.ended_at.is_none() {
            self.ended.wait(&mut state);
        }
    }

    /// Ends it and begins what waited for it. Called once, by whoever ran the work.
    pub(super) fn end(&self) {
        run_ready(self.finish().into());
    }

    /// Marks it ended and returns what waited for it, each still counting this one.
    fn finish(&self) -> Vec<Arc<Op>> {
        let mut state = self.state.lock();
        debug_assert!(state.ended_at.is_none(), "an operation ends once");
        state.ended_at = Some(Instant::now());
        self.ended.notify_all();
        std::mem::take(&mut state.dependents)
    }
}

/// Takes one count off each operation and starts those that have none left. A queue and not a recursion: chains
/// of markers can be long.
fn run_ready(mut queue: VecDeque<Arc<Op>>) {
    while let Some(op) = queue.pop_front() {
        let work = {
            let mut state = op.state.lock();
            state.waits_for -= 1;
            if state.waits_for > 0 {
                continue;
            }
            state.work.take()
        };
        if work.is_none_or(|work| work::start(&op, work)) {
            queue.extend(op.finish());
        }
    }
}
