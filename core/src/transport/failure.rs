//! Whether a connection has failed, and why.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The first failure of a connection. Checking costs one load until there is one.
#[derive(Debug, Default)]
pub(super) struct Failure {
    failed: AtomicBool,
    why: Mutex<Option<Error>>,
    /// A caller was given the error.
    told: AtomicBool,
}

impl Failure {
    /// Sets the cause, unless there is one; whether it was set.
    pub(super) fn set(&self, why: impl FnOnce() -> Error) -> bool {
        let mut cause = lock(&self.why);
        if cause.is_some() {
            return false;
        }
        *cause = Some(why());
        self.failed.store(true, Ordering::Release);
        true
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// `Ok` until there is a failure, then the failure.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        if self.has_failed() { self.tell() } else { Ok(()) }
    }

    #[cold]
    fn tell(&self) -> Result<()> {
        self.told.store(true, Ordering::Release);
        lock(&self.why).clone().map_or(Ok(()), Err)
    }

    /// The failure, if no caller was ever given it.
    pub(super) fn untold(&self) -> Option<Error> {
        if self.told.load(Ordering::Acquire) { None } else { lock(&self.why).clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_first_cause_stays_and_is_untold_until_a_caller_has_it() {
        let failure = Failure::default();
        assert!(failure.check().is_ok() && failure.untold().is_none());
        assert!(failure.set(|| Error::new(ErrorKind::Remote, "write", "first")));
        assert!(!failure.set(|| unreachable!("there is a cause")));
        assert_eq!(failure.untold().unwrap().message(), "first");
        assert_eq!(failure.check().unwrap_err().message(), "first");
        assert!(failure.untold().is_none());
    }
}
