//! The memory of a device, as a number of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use crate::abi::Result;

/// The size of a device's memory and the bytes of it in use.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    used: Arc<AtomicU64>,
}

/// Bytes of a device's memory in use. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, used: Arc::default() }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Takes bytes of the memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.total);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Charge { used: Arc::clone(&self.used), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
