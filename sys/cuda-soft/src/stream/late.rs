//! Work that begins and ends late, with `AQUEDUCT_SOFT_UNKIND`.
//!
//! The driver API promises an order of operations and no time. A software device that copies during the call hides every
//! program that forgets to wait. Here an operation that could begin waits for a while, and so does the news that it has ended,
//! unless the host already waits for it: a host that waits does not see when work began.

use std::collections::BTreeMap;
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
    /// Up to when the delays so far use up time, if each uses [`SHARE`] times as much as it lasts.
    spent_until: Instant,
    /// The next to come is the first.
    due: BTreeMap<Ticket, Action>,
    count: u64,
}

/// When a step is due. The number orders those of one moment as they were put off.
pub(super) type Ticket = (Instant, u64);

/// In the long run all delays together last for this part of the time, or a stream that is filled without pause, and that nobody waits
/// for, would fall behind for ever.
const SHARE: u32 = 8;
/// So far ahead may time be used up.
const AHEAD: Duration = Duration::from_millis(160);

impl Late {
    /// The one of this process, if the configuration asks for it.
    pub(super) fn get() -> Option<&'static Self> {
        static LATE: OnceLock<Option<Late>> = OnceLock::new();
        LATE.get_or_init(|| {
            let seed = config::current().ok()?.unkind?;
            let state = State {
                random: fastrand::Rng::with_seed(seed),
                spent_until: Instant::now(),
                due: BTreeMap::new(),
                count: 0,
            };
            Some(Self { state: Mutex::new(state), more: Condvar::new() })
        })
        .as_ref()
    }

    /// Puts every other step off: most for less than 2 ms, some for longer than a wait spins. Then `action` is done by a thread of
    /// its own, unless it is [taken](Self::take) before.
    pub(super) fn put_off(&'static self, action: impl FnOnce() + Send + 'static) -> Option<Ticket> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let delay = match state.random.u32(..200) {
            0..100 => return None,
            100 | 101 => Duration::from_millis(state.random.u64(5..20)),
            _ => Duration::from_micros(64 << state.random.u32(..6)),
        };
        if state.spent_until > now + AHEAD {
            return None;
        }
        state.spent_until = state.spent_until.max(now) + SHARE * delay;
        if state.count == 0 {
            // It runs as long as the process, as the streams may.
            let thread = std::thread::Builder::new().name("cuda-soft-late".into());
            thread.spawn(|| self.run()).expect("a machine that is asked to be late has a thread for it");
        }
        state.count += 1;
        let ticket = (now + delay, state.count);
        state.due.insert(ticket, Box::new(action));
        self.more.notify_one();
        Some(ticket)
    }

    /// Takes what was put off, if it is not done yet.
    pub(super) fn take(&self, ticket: Ticket) -> Option<Action> {
        let mut state = self.state.lock();
        let action = state.due.remove(&ticket)?;
        let unused = ticket.0.saturating_duration_since(Instant::now());
        state.spent_until -= SHARE * unused;
        Some(action)
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            match state.due.first_key_value().map(|((at, _), _)| *at) {
                None => self.more.wait(&mut state),
                Some(at) if at > Instant::now() => {
                    self.more.wait_until(&mut state, at);
                }
                Some(_) => {
                    let due = state.due.pop_first();
                    MutexGuard::unlocked(&mut state, || due.map(|(_, action)| action()));
                }
            }
        }
    }
}
