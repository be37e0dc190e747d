//! Why something has failed: the first reason stays, and every later call is told it.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// A failure that has happened, or not. Asking costs one load until it has.
#[derive(Debug)]
pub(crate) struct Failure {
    failed: AtomicBool,
    why: Mutex<Option<Error>>,
    /// A caller was given the reason.
    told: AtomicBool,
}

impl Default for Failure {
    fn default() -> Self {
        Self { failed: AtomicBool::new(false), why: Mutex::new(None), told: AtomicBool::new(false) }
    }
}

impl Failure {
    /// Fails for the reason `error`; false if an earlier reason stands.
    pub(crate) fn set(&self, error: Error) -> bool {
        let mut why = lock(&self.why);
        let first = why.is_none();
        why.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        first
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// `Ok` while nothing has failed, then the first reason. From then on a caller has been told.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.has_failed() { self.tell() } else { Ok(()) }
    }

    /// As [`check`](Self::check), for a thread that works for callers: none of them has been told.
    pub(crate) fn look(&self) -> Result<()> {
        if self.has_failed() { lock(&self.why).clone().map_or(Ok(()), Err) } else { Ok(()) }
    }

    #[cold]
    fn tell(&self) -> Result<()> {
        self.told.store(true, Ordering::Release);
        lock(&self.why).clone().map_or(Ok(()), Err)
    }

    /// The first reason, unless [`check`](Self::check) has given it to a caller.
    pub(crate) fn untold(&self) -> Option<Error> {
        if self.told.load(Ordering::Acquire) { None } else { lock(&self.why).clone() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_is_untold_until_a_caller_has_it() {
        let failure = Failure::default();
        assert!(failure.check().is_ok() && failure.untold().is_none() && !failure.has_failed());
        assert!(failure.set(Error::usage("write", "first")));
        assert!(!failure.set(Error::usage("write", "second")));
        assert!(failure.has_failed());
        assert_eq!(failure.untold().unwrap().message(), "first");
        assert_eq!(failure.look().unwrap_err().message(), "first");
        assert!(failure.untold().is_some());
        assert_eq!(failure.check().unwrap_err().message(), "first");
        assert!(failure.untold().is_none());
    }
}
