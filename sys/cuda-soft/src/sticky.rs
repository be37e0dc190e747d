//! The sticky error of a context.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::CUresult;

use crate::abi::Result;

/// The first error of a context, which every later call returns until the context is destroyed.
#[derive(Debug, Default)]
pub(crate) struct StickyError(AtomicU32);

impl StickyError {
    /// # Errors
    /// The sticky error, if there is one.
    pub(crate) fn check(&self) -> Result {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Makes the context fail with `code` from now on. An earlier error stays.
    pub(crate) fn set(&self, code: CUresult) {
        let _ = self.0.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Clears the error, for a new context.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}
