//! Work that begins and ends late, with `AQUEDUCT_SOFT_UNKIND`.
//!
//! The driver API promises an order of operations and no time. A software device that copies during the call hides every
//! program that forgets to wait. Here an operation that could begin waits for a while, and so does the news that it has ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::op::Op;
use crate::config;

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Its work begins.
    Begin,
    /// Others learn that it has ended.
    End,
}

/// Steps that are put off.
pub(super) struct Late {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    random: fastrand::Rng,
    on_time_until: Instant,
    /// The next to come is on top. The number keeps steps of one moment in the order in which they were put off.
    due: BinaryHeap<Reverse<(Instant, u64, Step, Waiting)>>,
    count: u64,
}

/// An operation that takes no part in the order of the heap.
struct Waiting(Arc<Op>);

impl Late {
    /// The one of this process, if the configuration asks for it.
    pub(super) fn get() -> Option<&'static Self> {
        static LATE: OnceLock<Option<Late>> = OnceLock::new();
        LATE.get_or_init(|| {
            let seed = config::current().ok()?.unkind?;
            let state = State {
                random: fastrand::Rng::with_seed(seed),
                on_time_until: Instant::now(),
                due: BinaryHeap::new(),
                count: 0,
            };
            Some(Self { state: Mutex::new(state), more: Condvar::new() })
        })
        .as_ref()
    }

    /// Puts a step off, or returns false: it is to be made now.
    pub(super) fn puts_off(&'static self, op: &Arc<Op>, step: Step) -> bool {
        let mut state = self.state.lock();
        let Some(delay) = state.delay() else { return false };
        if state.count == 0 {
            // It runs as long as the process, as the streams may.
            let thread = std::thread::Builder::new().name("cuda-soft-late".into()).spawn(|| self.run());
            if thread.is_err() {
                return false;
            }
        }
        state.count += 1;
        let count = state.count;
        state.due.push(Reverse((Instant::now() + delay, count, step, Waiting(Arc::clone(op)))));
        self.more.notify_one();
        true
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            match state.due.peek() {
                None => self.more.wait(&mut state),
                Some(Reverse((at, ..))) if *at > Instant::now() => {
                    let at = *at;
                    self.more.wait_until(&mut state, at);
                }
                Some(_) => {
                    let Some(Reverse((_, _, step, Waiting(op)))) = state.due.pop() else { continue };
                    parking_lot::MutexGuard::unlocked(&mut state, || op.make(step));
                }
            }
        }
    }
}

impl State {
    /// How long a step is put off: half of them not, most others for microseconds, some for longer than a wait spins. After
    /// each comes a time without, or a stream that is filled without pause would fall behind for ever.
    fn delay(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now < self.on_time_until {
            return None;
        }
        let delay = match self.random.u32(..200) {
            0..100 => return None,
            100 | 101 => Duration::from_millis(self.random.u64(5..20)),
            _ => Duration::from_micros(1 << self.random.u32(..11)),
        };
        self.on_time_until = now + 4 * delay;
        Some(delay)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}
