//! Work that begins and ends late, with `AQUEDUCT_SOFT_UNKIND`.
//!
//! The driver API promises an order of operations and no time. A software device that copies during the call hides every
//! program that forgets to wait. Here an operation that could begin waits for a while, and so does the news that it has ended.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::config;

/// A step of an operation that is put off.
type Action = Box<dyn FnOnce() + Send>;

/// Chooses what is late, and does it when its time has come.
pub(super) struct Late {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    random: fastrand::Rng,
    on_time_until: Instant,
    /// The next to come is on top.
    due: BinaryHeap<Due>,
    count: u64,
}

/// Orders by time, the earliest last; those of one moment in the order in which they were put off.
struct Due {
    at: Instant,
    number: u64,
    action: Action,
}

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

    /// How long the next step of an operation is put off: half of them not, most others for microseconds, some for longer than
    /// a wait spins. After each comes a time without, or a stream that is filled without pause would fall behind for ever.
    pub(super) fn delay(&self) -> Option<Duration> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        if now < state.on_time_until {
            return None;
        }
        let delay = match state.random.u32(..200) {
            0..100 => return None,
            100 | 101 => Duration::from_millis(state.random.u64(5..20)),
            _ => Duration::from_micros(1 << state.random.u32(..11)),
        };
        state.on_time_until = now + 4 * delay;
        Some(delay)
    }

    /// Runs `action` on a thread of its own after `delay`.
    pub(super) fn after(&'static self, delay: Duration, action: Action) {
        let mut state = self.state.lock();
        if state.count == 0 {
            // It runs as long as the process, as the streams may.
            let thread = std::thread::Builder::new().name("cuda-soft-late".into());
            thread.spawn(|| self.run()).expect("a machine that is asked to be late has a thread for it");
        }
        state.count += 1;
        let (at, number) = (Instant::now() + delay, state.count);
        state.due.push(Due { at, number, action });
        self.more.notify_one();
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            match state.due.peek().map(|due| due.at) {
                None => self.more.wait(&mut state),
                Some(at) if at > Instant::now() => {
                    self.more.wait_until(&mut state, at);
                }
                Some(_) => {
                    let due = state.due.pop();
                    MutexGuard::unlocked(&mut state, || due.map(|due| (due.action)()));
                }
            }
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
