//! Decides which thread polls a socket: the service thread, or a user thread that waits for it again and again.
//!
//! Telling the service thread before and after each wait which thread reads costs two system calls, and the service
//! thread often wakes in between for data that the user thread is about to receive. So after a run of waits in close
//! succession, user threads keep polling the socket between their waits, too. The service thread looks every [`TERM`]
//! and takes over again when nobody has waited since: then, and only after such a run, data may lie unread for as
//! long.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How often the service thread looks.
const TERM: Duration = Duration::from_millis(1);
/// Waits that follow each other within this time belong to one run.
const CLOSE: Duration = Duration::from_micros(100);
/// Waits in a run before user threads keep polling.
const RUN: u32 = if cfg!(loom) { 1 } else { 32 };

#[derive(Debug)]
pub(super) struct Poller {
    user: AtomicBool,
    /// Waits so far, and how many there were when the service thread last looked.
    waits: AtomicU64,
    seen: AtomicU64,
    run: AtomicU32,
    /// When the latest wait ended, in microseconds since `epoch`.
    ended: AtomicU64,
    epoch: Instant,
}

/// The thread that polls after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The service thread, once it is told so.
    Service,
    /// User threads from now on; the service thread has to be told, so that it begins to look.
    NowUser,
    /// User threads, as before.
    StillUser,
}

impl Default for Poller {
    fn default() -> Self {
        Self {
            user: AtomicBool::new(false),
            waits: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            run: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }
}

impl Poller {
    /// Whether user threads poll, not the service thread.
    pub(super) fn is_user(&self) -> bool {
        self.user.load(Ordering::Acquire)
    }

    /// Begins a wait; one at a time. True if user threads poll already.
    pub(super) fn begin(&self) -> bool {
        self.waits.fetch_add(1, Ordering::AcqRel);
        if self.is_user() {
            return true;
        }
        let since = self.now().saturating_sub(self.ended.load(Ordering::Relaxed));
        if u128::from(since) > CLOSE.as_micros() {
            self.run.store(0, Ordering::Relaxed);
        }
        false
    }

    /// Ends the wait started by `begin`. Pass `idle = false` if work remains that only another turn can advance.
    pub(super) fn end(&self, idle: bool) -> End {
        if !idle {
            self.user.store(false, Ordering::Release);
        } else if self.is_user() {
            // The service thread may take over meanwhile. Then it reads from now on, and nothing is lost.
            return End::StillUser;
        }
        // While user threads poll, nobody asks when a wait ended, nor how long the run is.
        self.ended.store(self.now(), Ordering::Relaxed);
        let run = self.run.fetch_add(1, Ordering::Relaxed);
        if idle && run >= RUN {
            self.user.store(true, Ordering::Release);
            End::NowUser
        } else {
            End::Service
        }
    }

    /// A look of the service thread: when to look again, if user threads go on polling.
    pub(super) fn check(&self) -> Option<Instant> {
        if !self.is_user() {
            return None;
        }
        let waits = self.waits.load(Ordering::Acquire);
        if self.seen.swap(waits, Ordering::AcqRel) != waits {
            return Some(Instant::now() + TERM);
        }
        self.user.store(false, Ordering::Release);
        None
    }

    /// The service thread has received something: the next run of waits has to prove itself again.
    pub(super) fn disturb(&self) {
        self.run.store(0, Ordering::Relaxed);
    }

    /// Loom has no clock: all waits of a model follow each other closely.
    fn now(&self) -> u64 {
        if cfg!(loom) { 0 } else { self.epoch.elapsed().as_micros() as u64 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn wait(poller: &Poller) -> (bool, End) {
        (poller.begin(), poller.end(true))
    }

    #[test]
    fn a_run_of_waits_keeps_the_socket_until_nobody_waits() {
        let poller = Poller::default();
        let mut waits = 0;
        while wait(&poller).1 != End::NowUser {
            waits += 1;
            assert!(waits < 100_000 && poller.check().is_none());
        }
        assert!(waits >= RUN);
        assert_eq!(wait(&poller), (true, End::StillUser));
        let before = Instant::now();
        assert!(poller.check().is_some_and(|next| next >= before + TERM), "somebody has waited");
        assert!(poller.check().is_none() && !poller.is_user(), "nobody has since");
        poller.disturb();
        assert_eq!(wait(&poller), (false, End::Service), "a new run is needed");
    }

    #[test]
    fn waits_far_apart_are_no_run() {
        let poller = Poller::default();
        for _ in 0..2 * RUN {
            assert_eq!(wait(&poller), (false, End::Service));
            std::thread::sleep(2 * CLOSE);
        }
    }
}
