//! Copies and fills that are done when they return, with a deadline.
//!
//! The driver's synchronous copies are no use here: they run on the legacy default stream, with which our streams do not
//! synchronise, they may return before pageable data has reached the device, and they wait without bound. So data goes
//! through a pinned block and a stream of the context's own.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cuda_driver_sys::{CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUstream, CUstream_flags};

use super::context::Context;
use super::driver::{Driver, call};
use super::reaper::{Retired, is_idle};
use super::stream::{KeepAlive, poll_until};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::sync::{MutexGuard, lock_until};

/// Bytes copied at a time.
const BLOCK: usize = 1 << 20;

/// A pinned block and a stream. Plain handles: the context owns them and must not be held by them.
pub(super) struct Staging {
    stream: CUstream,
    block: NonNull<u8>,
}

// SAFETY: the stream is an opaque handle; the block is only touched through the mutex that holds the `Staging`.
unsafe impl Send for Staging {}

impl Staging {
    /// The context is current.
    fn new(driver: &Driver) -> Result<Self> {
        let mut block: *mut c_void = ptr::null_mut();
        // SAFETY: `block` is a live output.
        unsafe {
            call!(driver, allocate BLOCK, cuMemHostAlloc(&raw mut block, BLOCK, CU_MEMHOSTALLOC_PORTABLE))
        }?;
        let mut stream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: `stream` is a live output.
        let made = unsafe { call!(driver, cuStreamCreate(&raw mut stream, flags)) };
        match (made, NonNull::new(block.cast())) {
            (Ok(()), Some(block)) => Ok(Self { stream, block }),
            (made, _) => {
                // SAFETY: allocated above and used by nobody.
                driver.note_drop(unsafe { call!(driver, cuMemFreeHost(block)) });
                Err(made.err().unwrap_or_else(|| driver.lacks("pinned memory")))
            }
        }
    }

    /// Frees both; the stream is idle and the context current.
    pub(super) fn destroy(self, driver: &Driver) {
        // SAFETY: ours, idle, destroyed once.
        driver.note_drop(unsafe { call!(driver, cuStreamDestroy_v2(self.stream)) });
        // SAFETY: ours, no longer used by the stream, freed once.
        driver.note_drop(unsafe { call!(driver, cuMemFreeHost(self.block.as_ptr().cast())) });
    }

    fn finish(&self, driver: &Driver, op: &'static str, deadline: Deadline) -> Result<()> {
        poll_until(op, "a copy", deadline, || is_idle(driver, self.stream))
    }
}

/// The block, given by its address, of a stream that did not finish; dropped once it has.
#[derive(Debug)]
struct Abandoned {
    context: Context,
    block: usize,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        let block = self.block;
        self.context.dispose(Box::new(move |driver| {
            // SAFETY: allocated by `Staging::new`, whose stream is idle and has left it to us; freed once.
            unsafe { call!(driver, cuMemFreeHost(ptr::with_exposed_provenance_mut(block))) }
        }));
    }
}

impl Context {
    /// Copies `data` to `dst`, which the caller has checked and keeps alive.
    pub(super) fn upload(&self, dst: CUdeviceptr, data: &[u8], deadline: Deadline) -> Result<()> {
        self.staged("upload", deadline, |staging, driver| {
            for (i, part) in data.chunks(BLOCK).enumerate() {
                // SAFETY: the block has BLOCK bytes, and nothing on the stream uses it: each round waits.
                unsafe { ptr::copy_nonoverlapping(part.as_ptr(), staging.block.as_ptr(), part.len()) };
                let (to, from) = (dst + (i * BLOCK) as u64, staging.block.as_ptr().cast());
                // SAFETY: the caller vouches for `dst`; the block lives as long as the stream is busy.
                unsafe { call!(driver, cuMemcpyHtoDAsync_v2(to, from, part.len(), staging.stream)) }?;
                staging.finish(driver, "upload", deadline)?;
            }
            Ok(())
        })
    }

    /// Copies what is at `src`, which the caller has checked and keeps alive, into `data`.
    pub(super) fn download(&self, data: &mut [u8], src: CUdeviceptr, deadline: Deadline) -> Result<()> {
        self.staged("download", deadline, |staging, driver| {
            for (i, part) in data.chunks_mut(BLOCK).enumerate() {
                let (to, from) = (staging.block.as_ptr().cast(), src + (i * BLOCK) as u64);
                // SAFETY: the caller vouches for `src`; the block lives as long as the stream is busy.
                unsafe { call!(driver, cuMemcpyDtoHAsync_v2(to, from, part.len(), staging.stream)) }?;
                staging.finish(driver, "download", deadline)?;
                // SAFETY: the copy into the block is done; `part` is at most BLOCK bytes.
                unsafe { ptr::copy_nonoverlapping(staging.block.as_ptr(), part.as_mut_ptr(), part.len()) };
            }
            Ok(())
        })
    }

    /// Sets `len` bytes at `dst`, which the caller has checked and keeps alive, to `value`.
    pub(super) fn fill(&self, dst: CUdeviceptr, len: usize, value: u8, deadline: Deadline) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.staged("fill", deadline, |staging, driver| {
            // SAFETY: the caller vouches for the range.
            unsafe { call!(driver, cuMemsetD8Async(dst, value, len, staging.stream)) }?;
            staging.finish(driver, "fill", deadline)
        })
    }

    fn staged(
        &self,
        op: &'static str,
        deadline: Deadline,
        work: impl FnOnce(&Staging, &Driver) -> Result<()>,
    ) -> Result<()> {
        let driver = self.driver();
        let _entered = self.enter()?;
        let mut slot = lock_until(&self.inner.staging, deadline, op, "a copy of another thread")?;
        let staging = match slot.take() {
            Some(staging) => staging,
            None => self.noted(Staging::new(driver))?,
        };
        let result = work(&staging, driver);
        if result.is_ok() || is_idle(driver, staging.stream).unwrap_or(false) {
            *slot = Some(staging);
        } else {
            self.abandon(staging, op, slot);
        }
        self.noted(result)
    }

    /// Leaves a stream that did not finish to the reaper, with the block, which the device may still use.
    fn abandon(&self, staging: Staging, op: &str, slot: MutexGuard<'_, Option<Staging>>) {
        drop(slot);
        log::warn!("{op} did not finish; its staging block of {BLOCK} bytes is freed when it has");
        let block = Abandoned { context: self.clone(), block: staging.block.expose_provenance().get() };
        let (context, kept): (_, Vec<KeepAlive>) = (self.clone(), vec![Arc::new(block)]);
        let retired = Retired { context, stream: staging.stream, owned: true, event: None, kept };
        self.retire(retired);
    }
}
