//! Operations: pieces of work that begin when the operations they depend on have ended.
//!
//! The order of a stream, events, the implicit order of the legacy stream, and the edges of a graph are all
//! dependencies between operations.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::late::{Late, Ticket};
use crate::check::Past;

/// One submitted piece of work.
pub(crate) struct Op {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    /// Unfinished operations that this one waits for, plus one while it is being submitted.
    waits_for: usize,
    begin: Option<Begin>,
    dependents: Vec<Arc<Op>>,
    ended_at: Option<Instant>,
    /// Events before the end, for the race detector.
    past: Option<Past>,
    hurry: Hurry,
}

/// The state of an operation on a machine that is [`Late`].
#[derive(Default)]
struct Hurry {
    /// Unfinished operations that this one waits for.
    before: Vec<Arc<Op>>,
    /// The step that was put off last.
    put_off: Option<Ticket>,
    /// How often the host has asked in vain whether the operation has ended.
    asked: u32,
    /// The host waits for the operation: it is late no more.
    hurried: bool,
}

/// A host that has asked so often in vain waits.
const PATIENCE: u32 = 2;

/// A step of an operation that can be put off.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The work begins.
    Begin,
    /// Others learn that it has ended.
    End,
}

/// Begins the work of an operation. Returns true if the work is already over; otherwise [`Op::end`] is called later.
type Begin = Box<dyn FnOnce(&Arc<Op>) -> bool + Send>;

impl Op {
    /// Submits an operation. `begin` is called when all of `after` have ended; it begins the work and returns true if
    /// the work is already over. Otherwise the work calls [`end`](Self::end) later.
    pub(crate) fn submit<'a>(
        after: impl IntoIterator<Item = &'a Arc<Op>>,
        begin: impl FnOnce(&Arc<Op>) -> bool + Send + 'static,
    ) -> Arc<Op> {
        let begin: Begin = Box::new(begin);
        let state = State {
            waits_for: 1,
            begin: Some(begin),
            dependents: Vec::new(),
            ended_at: None,
            past: None,
            hurry: Hurry::default(),
        };
        let op = Arc::new(Op { state: Mutex::new(state), ended: Condvar::new() });
        for earlier in after {
            let mut its = earlier.state.lock();
            if its.ended_at.is_none() {
                let mut state = op.state.lock();
                state.waits_for += 1;
                its.dependents.push(Arc::clone(&op));
                if Late::get().is_some() {
                    state.hurry.before.push(Arc::clone(earlier));
                }
            }
        }
        run_ready(VecDeque::from([Arc::clone(&op)]));
        op
    }

    /// When the operation ended, if it has.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.state.lock().ended_at
    }

    /// Asks on behalf of the host.
    pub(crate) fn is_done(&self) -> bool {
        let done = self.ended_at().is_some();
        if done {
            self.tell_host();
        } else if let Some(late) = Late::get() {
            let asked = {
                let mut state = self.state.lock();
                state.hurry.asked += 1;
                state.hurry.asked
            };
            if asked == PATIENCE {
                self.hurry(late);
            }
        }
        done
    }

    /// Waits until the operation has ended.
    pub(crate) fn wait(&self) {
        if let Some(late) = Late::get() {
            self.hurry(late);
        }
        let mut state = self.state.lock();
        while state.ended_at.is_none() {
            self.ended.wait(&mut state);
        }
        drop(state);
        self.tell_host();
    }

    /// Makes the steps now that were put off, of this operation and of all that it waits for, and puts none off from now on.
    fn hurry(&self, late: &Late) {
        let mut all = self.hurry_alone(late);
        while let Some(op) = all.pop() {
            all.extend(op.hurry_alone(late));
        }
    }

    /// Returns the operations that this one waits for.
    fn hurry_alone(&self, late: &Late) -> Vec<Arc<Op>> {
        let mut state = self.state.lock();
        if state.ended_at.is_some() || state.hurry.hurried {
            return Vec::new();
        }
        state.hurry.hurried = true;
        let (before, ticket) = (std::mem::take(&mut state.hurry.before), state.hurry.put_off.take());
        drop(state);
        if let Some(step) = ticket.and_then(|ticket| late.take(ticket)) {
            step();
        }
        before
    }

    /// Events before the end of the operation, if it has ended and the race detector is on.
    pub(super) fn past(&self) -> Option<Past> {
        self.state.lock().past.clone()
    }

    /// Sets what [`past`](Self::past) returns. Call it before the operation ends.
    pub(super) fn set_past(&self, past: Past) {
        self.state.lock().past = Some(past);
    }

    fn tell_host(&self) {
        if let Some(past) = self.past() {
            past.seen_by_host();
        }
    }

    /// Ends the operation and begins those that waited only for it. Called once, when the work is over.
    pub(super) fn end(self: &Arc<Self>) {
        if !put_off(self, Step::End) {
            self.make(Step::End);
        }
    }

    fn make(self: &Arc<Self>, step: Step) {
        match step {
            Step::Begin => {
                if self.begin() {
                    self.end();
                }
            }
            Step::End => run_ready(self.finish().into()),
        }
    }

    /// Begins the work. Returns true if it is already over.
    fn begin(self: &Arc<Self>) -> bool {
        let begin = self.state.lock().begin.take();
        begin.is_none_or(|begin| begin(self))
    }

    /// Marks the operation as ended. Returns its dependents, which still count it.
    fn finish(&self) -> Vec<Arc<Op>> {
        let mut state = self.state.lock();
        debug_assert!(state.ended_at.is_none(), "an operation ends once");
        state.ended_at = Some(Instant::now());
        state.hurry.before.clear();
        self.ended.notify_all();
        std::mem::take(&mut state.dependents)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Op")
            .field("waits_for", &state.waits_for)
            .field("ended_at", &state.ended_at)
            .finish_non_exhaustive()
    }
}

/// Decrements the count of each operation and begins those whose count reaches zero. Uses a queue instead of recursion,
/// because chains of operations that end at once can be long.
fn run_ready(mut queue: VecDeque<Arc<Op>>) {
    while let Some(op) = queue.pop_front() {
        {
            let mut state = op.state.lock();
            state.waits_for -= 1;
            if state.waits_for > 0 {
                continue;
            }
        }
        if !put_off(&op, Step::Begin) && op.begin() && !put_off(&op, Step::End) {
            queue.extend(op.finish());
        }
    }
}

/// Puts a step off if the configuration asks for that; otherwise returns false, and it is to be made now.
fn put_off(op: &Arc<Op>, step: Step) -> bool {
    let Some(late) = Late::get() else { return false };
    let mut state = op.state.lock();
    if state.hurry.hurried {
        return false;
    }
    let same = Arc::clone(op);
    state.hurry.put_off = late.put_off(move || same.make(step));
    state.hurry.put_off.is_some()
}
