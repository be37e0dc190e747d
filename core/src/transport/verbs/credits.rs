//! Signals that wake their receiver: writes with an immediate, and the receives that these need.
//!
//! Such a write takes a receive that the peer has posted, and fails where there is none. So each end posts [`RECEIVES`]
//! before the other knows its address, and posts each again once it was taken. The sender counts the receives that it may
//! take, and is told, by an immediate of its own, when half of them are there again. That message takes a receive, too, and
//! needs no leave: it speaks of at least `SIGNALS / 2`, and so at most two of them are on their way.
#![forbid(unsafe_code)]

use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait};

/// Signals that may be on their way at a time.
const SIGNALS: u32 = 256;
/// Of how many receives the peer is told at a time.
const BUNDLE: u32 = SIGNALS / 2;
/// Receives that an end keeps posted.
pub(super) const RECEIVES: u32 = SIGNALS + SIGNALS / BUNDLE;
/// The immediate of a signal; any other gives back as many receives.
pub(super) const SIGNAL: u32 = 0;
/// In the number of every receive, and of no request.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Credits for posted receives, in both directions.
#[derive(Debug)]
pub(super) struct ReceiveCredits {
    /// Receives of the peer that signals of this end may still take.
    left: u32,
    /// Receives of this end that signals took and that are posted again, not yet reported to the peer.
    owed: u32,
}

impl ReceiveCredits {
    pub(super) fn new() -> Self {
        Self { left: SIGNALS, owed: 0 }
    }

    /// Whether a signal may be sent.
    pub(super) fn may_signal(&self) -> bool {
        self.left > 0
    }

    /// A signal was sent.
    pub(super) fn signalled(&mut self) {
        self.left -= 1;
    }

    /// The number of receives to report to the peer now; `None` while there are fewer than [`BUNDLE`].
    pub(super) fn owed(&self) -> Option<u32> {
        (self.owed >= BUNDLE).then_some(self.owed)
    }

    /// The peer was told.
    pub(super) fn told(&mut self) {
        self.owed = 0;
    }

    /// The peer took a receive, which has been posted again; whether by a signal.
    pub(super) fn arrived(&mut self, immediate: Option<u32>) -> Result<bool> {
        let excess = |message: String| Err(Error::new(ErrorKind::Remote, "connection", message));
        match immediate {
            Some(SIGNAL) if self.owed < SIGNALS => {
                self.owed += 1;
                Ok(true)
            }
            Some(SIGNAL) => excess("the peer sent more signals than it may".into()),
            Some(count) if count <= SIGNALS - self.left => {
                self.left += count;
                Ok(false)
            }
            Some(count) => excess(format!("the peer gave {count} receives back of {}", SIGNALS - self.left)),
            None => excess("the peer sent a message where only writes with an immediate are expected".into()),
        }
    }
}

/// Where those sleep who wait for a signal.
#[derive(Debug, Default)]
pub(super) struct SignalWaiters {
    count: AtomicU64,
    lock: Mutex<()>,
    more: Condvar,
}

/// An abort of the communicator wakes nobody here.
const NAP: std::time::Duration = std::time::Duration::from_millis(20);

impl SignalWaiters {
    /// How often [`notify`](Self::notify) was called.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Wakes everybody.
    pub(super) fn notify(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        // A thread that saw the old count is asleep by the time the lock is free.
        drop(lock(&self.lock));
        self.more.notify_all();
    }

    /// Returns soon if the count is no longer `seen`, else at the next notification, or a little later. Returns whether it
    /// slept: not while `backoff` gives way.
    pub(super) fn sleep(&self, seen: u64, backoff: &mut Backoff, deadline: Deadline) -> bool {
        !backoff.give_way() && self.nap(seen, deadline.min(Deadline::after(NAP)))
    }

    /// Sleeps until the next notification or `end`. Returns whether it did: not if the count is no longer `seen`.
    fn nap(&self, seen: u64, end: Deadline) -> bool {
        let guard = lock(&self.lock);
        let sleeps = self.count() == seen;
        if sleeps {
            drop(wait(&self.more, guard, end));
        }
        sleeps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Two ends, what is on its way to each, and how many receives each has posted.
    struct Ends {
        credits: [ReceiveCredits; 2],
        under_way: [VecDeque<u32>; 2],
    }

    impl Ends {
        fn send(&mut self, from: usize, immediate: u32) {
            self.under_way[1 - from].push_back(immediate);
            assert!(self.under_way[1 - from].len() <= RECEIVES as usize, "a message without a receive");
        }

        fn signal(&mut self, from: usize) -> bool {
            let may = self.credits[from].may_signal();
            if may {
                self.credits[from].signalled();
                self.send(from, SIGNAL);
            }
            may
        }

        fn receive(&mut self, at: usize) -> bool {
            let Some(immediate) = self.under_way[at].pop_front() else { return false };
            self.credits[at].arrived(Some(immediate)).unwrap();
            true
        }

        fn give_back(&mut self, from: usize) {
            if let Some(count) = self.credits[from].owed() {
                self.credits[from].told();
                self.send(from, count);
            }
        }
    }

    proptest! {
        /// Whatever the two ends do and when they look, no message finds the other without a receive, and once both have
        /// looked at everything both may signal.
        #[test]
        fn there_is_always_a_receive(steps in proptest::collection::vec((0..2_usize, 0..3_u8, 1..400_u32), 1..200)) {
            let mut ends = Ends { credits: [ReceiveCredits::new(), ReceiveCredits::new()], under_way: Default::default() };
            for (end, what, times) in steps {
                for _ in 0..times {
                    match what {
                        0 => drop(ends.signal(end)),
                        1 => drop(ends.receive(end)),
                        _ => ends.give_back(end),
                    }
                }
            }
            while ends.receive(0) || ends.receive(1) {}
            ends.give_back(0);
            ends.give_back(1);
            while ends.receive(0) || ends.receive(1) {}
            prop_assert!(ends.credits.iter().all(ReceiveCredits::may_signal));
        }
    }

    #[test]
    fn a_peer_that_does_not_keep_to_it_is_refused() {
        let mut credits = ReceiveCredits::new();
        assert!(credits.arrived(Some(1)).is_err(), "nothing was taken");
        assert!(credits.arrived(None).is_err());
        (0..SIGNALS).for_each(|_| assert!(credits.arrived(Some(SIGNAL)).unwrap()));
        assert!(credits.arrived(Some(SIGNAL)).is_err(), "it was not told of any");
        credits.signalled();
        assert!(credits.arrived(Some(2)).is_err());
        assert!(!credits.arrived(Some(1)).unwrap());
    }

    #[test]
    fn who_has_missed_it_does_not_sleep() {
        let (waiters, mut backoff) = (SignalWaiters::default(), Backoff::new());
        let seen = waiters.count();
        waiters.notify();
        assert!(!waiters.nap(seen, Deadline::after(NAP)));
        assert!(waiters.nap(waiters.count(), Deadline::after(NAP)));
        let far = Deadline::after(std::time::Duration::from_secs(3600));
        assert!(!waiters.sleep(waiters.count(), &mut backoff, far), "others run first");
        while backoff.give_way() {}
        assert!(!waiters.sleep(seen, &mut backoff, far), "it has missed one");
        // Ends by itself, though its deadline is far away.
        assert!(waiters.sleep(waiters.count(), &mut backoff, far));
    }
}
