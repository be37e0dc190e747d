//! Notices that a connection has become idle while operations are unacknowledged.
//!
//! Operations hold memory at both ends until they are acknowledged, and most need no acknowledgement of their own: the next
//! flush covers them. For those that no flush follows, the service thread asks for one when the connection has been idle for
//! [`QUIET`]. While operations follow each other, that costs one look per [`QUIET`].
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// How long a connection is idle before the service thread asks for acknowledgements.
const QUIET: Duration = Duration::from_millis(5);

/// One per connection, under the lock of its sending half.
#[derive(Debug, Default)]
pub(super) struct IdleTimer {
    armed: bool,
    /// The position at the previous look, and when to look again.
    last: Option<(u64, Instant)>,
}

/// Result of one look at the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// The timer is off.
    Off,
    /// Operations may still follow: look again then.
    Busy(Instant),
    /// No operation has followed for [`QUIET`]. The timer is off again.
    Idle,
}

impl IdleTimer {
    /// Starts the timer. True if it was off: the service thread must be told to look.
    pub(super) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.armed, true)
    }

    /// A look of the service thread; `position` changes with every operation.
    pub(super) fn look(&mut self, position: u64, now: impl FnOnce() -> Instant) -> Activity {
        if !self.armed {
            return Activity::Off;
        }
        let now = now();
        match self.last {
            Some((_, due)) if now < due => Activity::Busy(due),
            Some((seen, _)) if seen == position => {
                *self = Self::default();
                Activity::Idle
            }
            _ => {
                let due = now + QUIET;
                self.last = Some((position, due));
                Activity::Busy(due)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_seen_once_and_only_after_a_quiet_time() {
        let (mut timer, start) = (IdleTimer::default(), Instant::now());
        assert_eq!(timer.look(0, || unreachable!("the timer is off")), Activity::Off);
        assert!(timer.arm() && !timer.arm(), "the service thread is told once");
        assert_eq!(timer.look(1, || start), Activity::Busy(start + QUIET));
        assert_eq!(timer.look(1, || start + QUIET / 2), Activity::Busy(start + QUIET));
        assert_eq!(timer.look(2, || start + QUIET), Activity::Busy(start + 2 * QUIET), "operations followed");
        assert_eq!(timer.look(2, || start + 2 * QUIET), Activity::Idle);
        assert_eq!(timer.look(2, || unreachable!("the timer is off")), Activity::Off);
        assert!(timer.arm());
    }
}
