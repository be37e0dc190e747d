//! Copies and fills that are done when they return, with a deadline.
//!
//! The driver's synchronous copies are no use here: they run on the legacy default stream, with which our streams do
//! not synchronise, they may return before pageable data has reached the device, and they wait without bound. So data
//! goes through a pinned block and a stream of the context's own.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cuda_driver_sys::{CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUstream, CUstream_flags};

use super::context::Context;
use super::disposal::Users;
use super::driver::{Driver, call};
use super::keep::KeepAlive;
use super::query::{is_idle, poll_until};
use super::unfinished::LastWork;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::sync::{Mutex, lock_until};

/// Bytes copied at a time.
const BLOCK: usize = 1 << 20;

/// A pinned block and a stream of a context, which holds them and is therefore not held by them.
struct Staging {
    stream: CUstream,
    block: NonNull<u8>,
    driver: Driver,
}

/// The one of a context, once it has been needed. Locked while a copy is under way.
#[derive(Default)]
struct Slot(Mutex<Option<Staging>>);

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
            (Ok(()), Some(block)) => Ok(Self { stream, block, driver: driver.clone() }),
            (made, _) => {
                // SAFETY: allocated above and used by nobody.
                driver.note_drop(unsafe { call!(driver, cuMemFreeHost(block)) });
                Err(made.err().unwrap_or_else(|| driver.lacks("pinned memory")))
            }
        }
    }

    fn finish(&self, op: &'static str, deadline: Deadline) -> Result<()> {
        poll_until(op, "a copy", deadline, || is_idle(&self.driver, self.stream))
    }

    /// Both handles, for somebody else to free.
    fn into_raw(self) -> (CUstream, NonNull<u8>) {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the field is read once and `this` is not dropped after.
        drop(unsafe { ptr::read(&raw mut this.driver) });
        (this.stream, this.block)
    }
}

/// Frees both: the stream is idle, and the context current, as for everything in a slot.
impl Drop for Staging {
    fn drop(&mut self) {
        let driver = &self.driver;
        if driver.forked() {
            return;
        }
        // SAFETY: ours, idle, destroyed once.
        driver.note_drop(unsafe { call!(driver, cuStreamDestroy_v2(self.stream)) });
        // SAFETY: ours, no longer used by the stream, freed once.
        driver.note_drop(unsafe { call!(driver, cuMemFreeHost(self.block.as_ptr().cast())) });
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
        self.context.dispose(
            Users::All,
            Box::new(move |driver| {
                // SAFETY: allocated by `Staging::new`, whose stream is idle and has left it to us; freed once.
                unsafe { call!(driver, cuMemFreeHost(ptr::with_exposed_provenance_mut(block))) }
            }),
        );
    }
}

impl Context {
    /// Copies `data` to `dst`, which the caller has checked to be memory of `owner`.
    pub(super) fn upload(
        &self,
        dst: CUdeviceptr,
        data: &[u8],
        owner: &KeepAlive,
        deadline: Deadline,
    ) -> Result<()> {
        self.staged("upload", owner, deadline, |staging| {
            for (i, part) in data.chunks(BLOCK).enumerate() {
                // SAFETY: the block has BLOCK bytes, and nothing on the stream uses it: each round waits.
                unsafe { ptr::copy_nonoverlapping(part.as_ptr(), staging.block.as_ptr(), part.len()) };
                let (to, from) = (dst + (i * BLOCK) as u64, staging.block.as_ptr().cast());
                // SAFETY: `staged` keeps `dst` and the block as long as the stream is busy.
                unsafe {
                    call!(&staging.driver, cuMemcpyHtoDAsync_v2(to, from, part.len(), staging.stream))
                }?;
                staging.finish("upload", deadline)?;
            }
            Ok(())
        })
    }

    /// Copies what is at `src`, which the caller has checked to be memory of `owner`, into `data`.
    pub(super) fn download(
        &self,
        data: &mut [u8],
        src: CUdeviceptr,
        owner: &KeepAlive,
        deadline: Deadline,
    ) -> Result<()> {
        self.staged("download", owner, deadline, |staging| {
            for (i, part) in data.chunks_mut(BLOCK).enumerate() {
                let (to, from) = (staging.block.as_ptr().cast(), src + (i * BLOCK) as u64);
                // SAFETY: `staged` keeps `src` and the block as long as the stream is busy.
                unsafe {
                    call!(&staging.driver, cuMemcpyDtoHAsync_v2(to, from, part.len(), staging.stream))
                }?;
                staging.finish("download", deadline)?;
                // SAFETY: the copy into the block is done; `part` is at most BLOCK bytes.
                unsafe { ptr::copy_nonoverlapping(staging.block.as_ptr(), part.as_mut_ptr(), part.len()) };
            }
            Ok(())
        })
    }

    /// Sets `len` bytes at `dst`, which the caller has checked to be memory of `owner`, to `value`.
    pub(super) fn fill(
        &self,
        dst: CUdeviceptr,
        len: usize,
        value: u8,
        owner: &KeepAlive,
        deadline: Deadline,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.staged("fill", owner, deadline, |staging| {
            // SAFETY: `staged` keeps the range as long as the stream is busy.
            unsafe { call!(&staging.driver, cuMemsetD8Async(dst, value, len, staging.stream)) }?;
            staging.finish("fill", deadline)
        })
    }

    /// Does `work` with the block and the stream. If the stream is still busy afterwards, both are kept until it is
    /// done, and so is `owner`, whose memory may belong to a device that knows nothing of this stream.
    fn staged(
        &self,
        op: &'static str,
        owner: &KeepAlive,
        deadline: Deadline,
        work: impl FnOnce(&Staging) -> Result<()>,
    ) -> Result<()> {
        let driver = self.driver();
        let _entered = self.enter()?;
        let mut slot = lock_until(&self.slot::<Slot>().0, deadline, op, "a copy of another thread")?;
        let staging = match slot.take() {
            Some(staging) => staging,
            None => self.noted(Staging::new(driver))?,
        };
        let result = work(&staging);
        if result.is_ok() || is_idle(driver, staging.stream).unwrap_or(false) {
            *slot = Some(staging);
        } else {
            drop(slot);
            self.abandon(staging, op, Arc::clone(owner));
        }
        self.noted(result)
    }

    /// Leaves a stream that did not finish to the reaper, with everything that the device may still use.
    fn abandon(&self, staging: Staging, op: &str, owner: KeepAlive) {
        log::warn!("{op} did not finish; its memory and {BLOCK} bytes for staging are kept until it has");
        let (stream, block) = staging.into_raw();
        let block = Abandoned { context: self.clone(), block: block.as_ptr().expose_provenance() };
        let kept: Vec<KeepAlive> = vec![Arc::new(block), owner];
        self.retire(LastWork::of_stream(self, stream), kept);
    }
}
