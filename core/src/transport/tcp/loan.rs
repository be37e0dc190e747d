//! The socket lent to a user that waits for it again and again.
//!
//! Telling the service thread before and after each wait who reads costs two system calls, and it often wakes in between
//! for what the user is about to wait for. After a run of waits that follow each other closely, the socket stays with the
//! user. The service thread looks after it every [`TERM`] and takes it back when nobody has waited since: then, and only
//! after such a run, something that arrives may lie for as long.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How often the service thread looks.
const TERM: Duration = Duration::from_millis(1);
/// Waits that follow each other within this time belong to one run.
const CLOSE: Duration = Duration::from_micros(100);
/// Waits in a run before the socket stays.
const RUN: u32 = 32;

#[derive(Debug)]
pub(super) struct Loan {
    lent: AtomicBool,
    /// Waits so far, and how many there were when the service thread last looked.
    waits: AtomicU64,
    seen: AtomicU64,
    run: AtomicU32,
    /// When the latest wait ended, in microseconds since `epoch`.
    ended: AtomicU64,
    epoch: Instant,
}

/// Who reads after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The service thread, once it is told so.
    GivenBack,
    /// The next to wait; the service thread has to be told, so that it begins to look.
    NewlyLent,
    /// The next to wait, as before.
    StillLent,
}

impl Default for Loan {
    fn default() -> Self {
        Self {
            lent: AtomicBool::new(false),
            waits: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            run: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }
}

impl Loan {
    pub(super) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    /// A wait begins; one at a time. Whether the service thread does not read already.
    pub(super) fn begin(&self) -> bool {
        self.waits.fetch_add(1, Ordering::AcqRel);
        if self.is_lent() {
            return true;
        }
        let since = self.now().saturating_sub(self.ended.load(Ordering::Relaxed));
        if u128::from(since) > CLOSE.as_micros() {
            self.run.store(0, Ordering::Relaxed);
        }
        false
    }

    /// The wait that began last ends; `idle` unless something is left that only looking again brings on.
    pub(super) fn end(&self, idle: bool) -> End {
        if !idle {
            self.lent.store(false, Ordering::Release);
        } else if self.is_lent() {
            // The service thread may take it back meanwhile. Then it reads from now on, and nothing is lost.
            return End::StillLent;
        }
        // While the socket is lent nobody asks when a wait ended, nor how long the run is.
        self.ended.store(self.now(), Ordering::Relaxed);
        let run = self.run.fetch_add(1, Ordering::Relaxed);
        if idle && run >= RUN {
            self.lent.store(true, Ordering::Release);
            End::NewlyLent
        } else {
            End::GivenBack
        }
    }

    /// The service thread looks: when to look again, if the socket stays lent.
    pub(super) fn check(&self) -> Option<Instant> {
        if !self.is_lent() {
            return None;
        }
        let waits = self.waits.load(Ordering::Acquire);
        if self.seen.swap(waits, Ordering::AcqRel) != waits {
            return Some(Instant::now() + TERM);
        }
        self.lent.store(false, Ordering::Release);
        None
    }

    /// The service thread has received something: the next run of waits has to prove itself again.
    pub(super) fn disturb(&self) {
        self.run.store(0, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(loan: &Loan) -> (bool, End) {
        (loan.begin(), loan.end(true))
    }

    #[test]
    fn a_run_of_waits_keeps_the_socket_until_nobody_waits() {
        let loan = Loan::default();
        let mut waits = 0;
        while wait(&loan).1 != End::NewlyLent {
            waits += 1;
            assert!(waits < 100_000 && loan.check().is_none());
        }
        assert!(waits >= RUN);
        assert_eq!(wait(&loan), (true, End::StillLent));
        assert!(loan.check().is_some(), "somebody has waited");
        assert!(loan.check().is_none() && !loan.is_lent(), "nobody has since");
        loan.disturb();
        assert_eq!(wait(&loan), (false, End::GivenBack), "a new run is needed");
    }

    #[test]
    fn waits_far_apart_are_no_run() {
        let loan = Loan::default();
        for _ in 0..2 * RUN {
            assert_eq!(wait(&loan), (false, End::GivenBack));
            std::thread::sleep(2 * CLOSE);
        }
    }
}
