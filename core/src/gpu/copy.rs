//! Asynchronous copies, fills and value operations on a stream.

use std::sync::Arc;

use cuda_driver_sys::{CUdeviceptr, CUstreamWaitValue_flags, CUstreamWriteValue_flags};

use super::driver::call;
use super::gate::Gate;
use super::keep::KeepAlive;
use super::slice::DeviceSlice;
use super::stream::Stream;
use crate::error::{Error, Result};

impl Stream {
    /// Enqueues a copy of `src` to `dst`, of the same length, in any direction between the host and memory that this stream's device can
    /// access: its own, or a peer's that a communicator has mapped. A `GpuBuffer` of another device of this process is mapped for that device
    /// only; exchange it between the ranks first. The stream retains both.
    ///
    /// # Errors
    /// Invalid usage if the lengths differ; a driver error.
    pub fn copy(&self, dst: &DeviceSlice, src: &DeviceSlice) -> Result<()> {
        if dst.len() != src.len() {
            let message = format!("the destination has {} bytes, the source {}", dst.len(), src.len());
            return Err(Error::usage("copy", message));
        }
        let keep = [dst, src].map(|slice| Arc::clone(slice.keep_alive()));
        // SAFETY: each slice names memory that its owner keeps accessible, and both owners are retained until the work
        // is done.
        unsafe { self.copy_keeping(dst.ptr(), src.ptr(), dst.len(), keep) }
    }

    /// As [`copy`](Self::copy), between addresses. The stream [retains](Stream::retain) each of `keep` for the copy.
    ///
    /// # Safety
    /// Both ranges must stay accessible until the copy is done; `keep` may see to that.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) unsafe fn copy_keeping(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        len: usize,
        keep: impl IntoIterator<Item = KeepAlive>,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller vouches for both ranges, and the stream is alive.
        self.enqueue(keep, || unsafe {
            call!(self.context().driver(), cuMemcpyAsync(to, from, len, self.handle()))
        })
    }

    /// As [`copy_keeping`](Self::copy_keeping) without anything to keep, for callers who must not wait. False, and nothing has happened, while
    /// memory of the context is being freed.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) unsafe fn try_copy(&self, to: CUdeviceptr, from: CUdeviceptr, len: usize) -> Result<bool> {
        // Held across the call, so that the copy passes the gate at once.
        let Some(_enqueuing) = self.context().slot::<Arc<Gate>>().try_enqueue() else { return Ok(false) };
        // SAFETY: the caller's.
        unsafe { self.copy_keeping(to, from, len, []) }.map(|()| true)
    }

    /// Enqueues setting every byte of `dst` to `value`. The stream retains `dst`.
    ///
    /// # Errors
    /// A driver error.
    pub fn fill(&self, dst: &DeviceSlice, value: u8) -> Result<()> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice's owner keeps the range accessible and is retained until the work is done.
        self.enqueue([Arc::clone(dst.keep_alive())], || unsafe {
            call!(self.context().driver(), cuMemsetD8Async(dst.ptr(), value, dst.len(), self.raw()))
        })
    }

    /// Enqueues setting every aligned 32-bit word of `dst` to `value`. The stream retains `dst`.
    ///
    /// # Errors
    /// Invalid usage if address or length is not a multiple of 4; a driver error.
    pub fn fill_u32(&self, dst: &DeviceSlice, value: u32) -> Result<()> {
        if !dst.ptr().is_multiple_of(4) || !dst.len().is_multiple_of(4) {
            return Err(Error::usage("fill_u32", "address and length must be multiples of 4"));
        }
        if dst.is_empty() {
            return Ok(());
        }
        let words = dst.len() / 4;
        // SAFETY: as in `fill`, and the address is aligned.
        self.enqueue([Arc::clone(dst.keep_alive())], || unsafe {
            call!(self.context().driver(), cuMemsetD32Async(dst.ptr(), value, words, self.raw()))
        })
    }

    /// Enqueues writing `value` to the 8 bytes of `dst`, after all earlier work of the stream is visible to every
    /// device and the host. The stream retains `dst`.
    ///
    /// # Errors
    /// Invalid usage unless `dst` is 8 aligned bytes; unsupported before CUDA 11.7 or where the device cannot.
    pub fn write_value64(&self, dst: &DeviceSlice, value: u64) -> Result<()> {
        let address = word("write_value64", dst, 8)?;
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT.0;
        // SAFETY: an aligned word of memory that is kept accessible until the work is done.
        self.enqueue([Arc::clone(dst.keep_alive())], || unsafe {
            call!(self.context().driver(), optional cuStreamWriteValue64_v2(self.raw(), address, value, flags))
        })
    }

    /// As [`Stream::write_value64`], for 4 bytes.
    ///
    /// # Errors
    /// Invalid usage unless `dst` is 4 aligned bytes; unsupported before CUDA 11.7.
    pub fn write_value32(&self, dst: &DeviceSlice, value: u32) -> Result<()> {
        let address = word("write_value32", dst, 4)?;
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT.0;
        // SAFETY: as for 8 bytes.
        self.enqueue([Arc::clone(dst.keep_alive())], || unsafe {
            call!(self.context().driver(), optional cuStreamWriteValue32_v2(self.handle(), address, value, flags))
        })
    }

    /// Lets later work of the stream begin only when the 8 bytes of `src` are at least `value`, counted cyclically
    /// (their difference taken as signed is not negative). The stream retains `src`.
    ///
    /// The stream waits for as long as nobody writes the value; only the writer can end it.
    ///
    /// # Errors
    /// Invalid usage unless `src` is 8 aligned bytes; unsupported before CUDA 11.7 or where the device cannot.
    pub fn wait_value64(&self, src: &DeviceSlice, value: u64) -> Result<()> {
        let address = word("wait_value64", src, 8)?;
        let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ.0;
        // SAFETY: an aligned word of memory that is kept accessible until the work is done.
        self.enqueue([Arc::clone(src.keep_alive())], || unsafe {
            call!(self.context().driver(), optional cuStreamWaitValue64_v2(self.raw(), address, value, flags))
        })
    }

    /// As [`Stream::wait_value64`], for 4 bytes, until a bit of `src` is set: then the wait needs no number that belongs to one call, which a graph
    /// would repeat.
    ///
    /// # Errors
    /// As for [`Stream::wait_value64`].
    pub(crate) fn wait_any_bit32(&self, src: &DeviceSlice) -> Result<()> {
        let address = word("wait_any_bit32", src, 4)?;
        let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND.0;
        // SAFETY: as for `wait_value64`.
        self.enqueue([Arc::clone(src.keep_alive())], || unsafe {
            call!(
                self.context().driver(),
                optional cuStreamWaitValue32_v2(self.handle(), address, u32::MAX, flags)
            )
        })
    }

    /// As [`Stream::wait_value64`], for 4 bytes.
    ///
    /// # Errors
    /// Invalid usage unless `src` is 4 aligned bytes; unsupported before CUDA 11.7.
    pub fn wait_value32(&self, src: &DeviceSlice, value: u32) -> Result<()> {
        let address = word("wait_value32", src, 4)?;
        let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ.0;
        // SAFETY: as for 8 bytes.
        self.enqueue([Arc::clone(src.keep_alive())], || unsafe {
            call!(self.context().driver(), optional cuStreamWaitValue32_v2(self.raw(), address, value, flags))
        })
    }
}

/// The address of a slice that is one aligned word of `size` bytes.
fn word(op: &'static str, slice: &DeviceSlice, size: usize) -> Result<CUdeviceptr> {
    if slice.len() == size && slice.ptr().is_multiple_of(size as u64) {
        Ok(slice.ptr())
    } else {
        let message = format!("{slice:?} is not one aligned word of {size} bytes");
        Err(Error::usage(op, message))
    }
}
