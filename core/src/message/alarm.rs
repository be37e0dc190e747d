//! Wakes the threads of a messenger that sleep, and its outer event loop.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{Error, Result};
use crate::fork::Creator;
use crate::net::ready::EventFd;
use crate::sync::{AtomicUsize, Mutex, Ordering, fence, lock};

/// A descriptor that is readable from a call of [`wake`](Self::wake) until all who slept at that moment are awake. A thread that is not
/// asleep cannot take that from those who are.
pub(super) struct Alarm {
    event: EventFd,
    /// Threads that sleep, or are about to; and an outer event loop that has armed the messenger. Changed with `calls` locked.
    sleepers: AtomicUsize,
    calls: Mutex<Calls>,
    creator: Creator,
}

/// Calls of [`Alarm::wake`].
#[derive(Default)]
struct Calls {
    count: u64,
    /// Sleepers that a call has reached and that are not awake yet.
    woken: usize,
}

/// One who sleeps, by the number of calls before that.
#[must_use = "whoever has announced its sleep has to say when it is awake"]
pub(super) struct Sleeper(u64);

impl Alarm {
    pub(super) fn new() -> Result<Self> {
        let event =
            EventFd::new().map_err(|error| Error::system("Messenger", "cannot make an eventfd", error))?;
        let creator = Creator::current();
        Ok(Self { event, sleepers: AtomicUsize::new(0), calls: Mutex::default(), creator })
    }

    /// Announces a sleeper. The sleeper sees a change that is published before it looks again; a later one wakes it.
    pub(super) fn fall_asleep(&self) -> Sleeper {
        let calls = lock(&self.calls);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Sleeper(calls.count)
    }

    /// Ends a sleep. The caller looks at what woke it afterwards.
    pub(super) fn awake(&self, Sleeper(before): Sleeper) {
        let mut calls = lock(&self.calls);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if calls.count != before {
            calls.woken -= 1;
            if calls.woken == 0 {
                self.event.clear();
            }
        }
    }

    /// Whether somebody has announced its sleep, as far as the caller is ordered behind that.
    #[inline]
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Whether somebody sleeps, to be asked after publishing.
    pub(super) fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_sleepers()
    }

    /// Wakes whoever sleeps. Nobody does in a forked child, whose descriptor is its parent's, too.
    pub(super) fn wake(&self) {
        if !self.is_asleep() || self.creator.forked() {
            return;
        }
        let mut calls = lock(&self.calls);
        let sleepers = self.sleepers.load(Ordering::Relaxed);
        // Those whom earlier calls have reached look at what is published only after they are awake.
        if calls.woken < sleepers {
            calls.woken = sleepers;
            calls.count += 1;
            self.event.notify();
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::deadline::Deadline;
    use crate::net::ready::wait_readable;

    fn is_readable(alarm: &Alarm) -> bool {
        wait_readable(alarm.as_fd(), Deadline::after(std::time::Duration::ZERO)).unwrap()
    }

    #[test]
    fn a_wake_lasts_until_all_who_slept_are_awake() {
        let alarm = Alarm::new().unwrap();
        alarm.wake();
        assert!(!is_readable(&alarm), "nobody sleeps");
        let [first, second] = [alarm.fall_asleep(), alarm.fall_asleep()];
        assert!(!is_readable(&alarm), "nothing has happened");
        alarm.wake();
        // Whoever falls asleep later has seen what the call was for.
        let late = alarm.fall_asleep();
        alarm.awake(first);
        assert!(is_readable(&alarm), "the second one sleeps");
        alarm.awake(second);
        assert!(!is_readable(&alarm), "the late one sleeps, and nothing has happened since");
        alarm.wake();
        assert!(is_readable(&alarm));
        alarm.awake(late);
        assert!(!is_readable(&alarm) && !alarm.is_asleep());
    }

    #[test]
    fn a_second_wake_reaches_those_who_fell_asleep_after_the_first() {
        let alarm = Alarm::new().unwrap();
        let first = alarm.fall_asleep();
        alarm.wake();
        let second = alarm.fall_asleep();
        alarm.wake();
        alarm.awake(first);
        assert!(is_readable(&alarm), "the second one sleeps");
        alarm.awake(second);
        assert!(!is_readable(&alarm));
    }
}
