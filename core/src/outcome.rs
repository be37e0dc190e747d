//! How work ended that waits for others: kernels that gave up a wait end like all others as far as the driver knows.
#![forbid(unsafe_code)]

use crate::error::Result;

/// Tells a wait for a stream whether kernels on it may have given up a wait for somebody else.
pub(crate) trait Outcome: std::fmt::Debug + Send + Sync {
    /// `Ok` unless waits may have been given up; otherwise why.
    ///
    /// # Errors
    /// Why, as an error of `op`.
    fn outcome(&self, op: &'static str) -> Result<()>;

    /// Work begins that tells its own failures: those that a wait has been told are no longer its. For outcomes that may be good again.
    fn forget(&self) {}

    /// Whether [`outcome`](Self::outcome) would be an error.
    fn has_failed(&self) -> bool {
        self.outcome("stream").is_err()
    }
}
