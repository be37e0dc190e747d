//! Why something has failed: the first reason stays, and every later call is told it.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// A failure that has happened, or not. Asking costs one load until it has.
#[derive(Debug)]
pub(crate) struct Failure {
    failed: AtomicBool,
    why: Mutex<Option<Error>>,
}

impl Default for Failure {
    fn default() -> Self {
        Self { failed: AtomicBool::new(false), why: Mutex::new(None) }
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

    /// `Ok` while nothing has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire) { self.reason().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// The first reason.
    #[cold]
    pub(crate) fn reason(&self) -> Option<Error> {
        lock(&self.why).clone()
    }
}

/// Says how work ended that waits for somebody else. Kernels that gave up a wait end like all others as far as the
/// driver knows; this is how a wait for their stream learns of it.
pub(crate) trait Outcome: std::fmt::Debug + Send + Sync {
    /// `Ok` unless waits may have been given up; otherwise why.
    ///
    /// # Errors
    /// Why, as an error of `op`.
    fn outcome(&self, op: &'static str) -> Result<()>;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let failure = Failure::default();
        assert!(failure.check().is_ok() && failure.reason().is_none());
        assert!(failure.set(Error::usage("write", "first")));
        assert!(!failure.set(Error::usage("write", "second")));
        assert_eq!(failure.check().unwrap_err().message(), "first");
    }
}
