//! A point in time after which a wait gives up.
//!
//! Every call that waits for another rank, or for work on a device, takes a [`Deadline`], or its documentation names the limit.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The moment at which a wait ends with [`ErrorKind::Timeout`](crate::ErrorKind::Timeout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// Long enough for every wait, and still representable.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Deadline {
    /// The moment `timeout` from now; a duration too long to represent counts as a hundred years.
    pub fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self(now.checked_add(timeout.min(FAR)).unwrap_or(now))
    }

    /// The time left; zero once the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Half of the time left from now.
    pub(crate) fn half(self) -> Self {
        Self::after(self.remaining() / 2)
    }

    /// Whether the deadline has passed.
    pub fn expired(self) -> bool {
        self.remaining().is_zero()
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The remaining time in whole milliseconds, rounded up, for `poll(2)` and `epoll_wait(2)`.
    pub(crate) fn poll_ms(self) -> i32 {
        let left = self.remaining();
        i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    }

    /// `Ok` while time is left, otherwise a timeout error of `op` about `what`.
    pub fn check(self, op: &'static str, what: &str) -> Result<()> {
        if self.expired() {
            Err(Error::timeout(op, format!("deadline passed while waiting for {what}")))
        } else {
            Ok(())
        }
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Self::after(timeout)
    }
}

/// Paces the polling of a condition that cannot wake this thread: first yields to other threads, then sleeps for
/// growing times, up to half a millisecond.
#[derive(Debug)]
pub(crate) struct Backoff {
    yields: u32,
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { yields: 200, pause: Duration::from_micros(10) }
    }

    /// Yields to other threads during the first calls. Returns whether it did.
    pub(crate) fn give_way(&mut self) -> bool {
        let Some(left) = self.yields.checked_sub(1) else { return false };
        self.yields = left;
        std::thread::yield_now();
        true
    }

    pub(crate) fn pause(&mut self, deadline: Deadline) {
        if !self.give_way() {
            std::thread::sleep(self.pause.min(deadline.remaining()));
            self.pause = (self.pause * 2).min(Duration::from_micros(500));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_overflows_and_expires() {
        assert!(!Deadline::after(Duration::MAX).expired());
        let now = Deadline::after(Duration::ZERO);
        assert!(now.expired());
        assert_eq!(now.poll_ms(), 0);
        assert!(now.check("wait", "nothing").is_err());
    }
}
