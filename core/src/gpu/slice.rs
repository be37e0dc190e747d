//! A range of memory that the device can access, with what keeps it alive.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use cuda_driver_sys::CUdeviceptr;

use super::context::Context;
use super::keep::KeepAlive;
use super::pod::{Pod, bytes_of, bytes_of_mut};
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// A range of device-accessible memory: device memory, a mapping of a peer's, or pinned host memory.
///
/// It holds its owner, so asynchronous work on it is safe: the stream retains the owner. It promises nothing about the
/// bytes, which devices and peers may write at any moment.
#[derive(Clone)]
pub struct DeviceSlice {
    ptr: CUdeviceptr,
    len: usize,
    context: Context,
    keep: KeepAlive,
}

impl DeviceSlice {
    /// A slice over memory that somebody else manages.
    ///
    /// # Safety
    /// `ptr .. ptr + len` must be readable and writable by `context`'s device, and remain so until `keep` is dropped.
    pub unsafe fn from_raw(context: &Context, ptr: CUdeviceptr, len: usize, keep: KeepAlive) -> Self {
        Self { ptr, len, context: context.clone(), keep }
    }

    /// The same, which keeps `more` alive as well.
    pub(crate) fn keeping(self, more: KeepAlive) -> Self {
        Self { keep: std::sync::Arc::new((self.keep, more)), ..self }
    }

    /// The device address.
    pub fn ptr(&self) -> CUdeviceptr {
        self.ptr
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The context whose device can access it.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Checks, for `op`, that it can be given to kernels of `context`.
    pub(crate) fn check_context(&self, op: &'static str, context: &Context) -> Result<()> {
        if self.context == *context {
            return Ok(());
        }
        let message = format!(
            "{self:?} belongs to another context than the kernel, which runs on device {}; allocate it there",
            context.device().ordinal()
        );
        Err(Error::usage(op, message))
    }

    /// The owner that keeps the memory alive.
    pub fn keep_alive(&self) -> &KeepAlive {
        &self.keep
    }

    /// A part of it, in bytes from its start.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = resolve(self.len, range)?;
        Ok(Self { ptr: self.ptr + start as u64, len, ..self.clone() })
    }

    /// Copies `data` to byte `offset` and waits until it is there.
    ///
    /// # Errors
    /// Invalid usage if it does not fit; timeout; a driver error.
    pub fn upload<T: Pod>(&self, offset: usize, data: &[T], deadline: impl Into<Deadline>) -> Result<()> {
        let data = bytes_of(data);
        check(self.len, offset, data.len())?;
        self.context.upload(self.ptr + offset as u64, data, &self.keep, deadline.into())
    }

    /// Copies what is at byte `offset` into `data`.
    ///
    /// # Errors
    /// Invalid usage if there is not as much; timeout; a driver error.
    pub fn download<T: Pod>(
        &self,
        offset: usize,
        data: &mut [T],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let data = bytes_of_mut(data);
        check(self.len, offset, data.len())?;
        self.context.download(data, self.ptr + offset as u64, &self.keep, deadline.into())
    }

    /// Sets every byte to `value` and waits until that is done.
    ///
    /// # Errors
    /// Timeout, or a driver error.
    pub fn fill(&self, value: u8, deadline: impl Into<Deadline>) -> Result<()> {
        self.context.fill(self.ptr, self.len, value, &self.keep, deadline.into())
    }
}

impl fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DeviceSlice({:#x}, {} bytes, device {})",
            self.ptr,
            self.len,
            self.context.device().ordinal()
        )
    }
}

/// Checks that `offset .. offset + len` lies within `size` bytes.
pub(super) fn check(size: usize, offset: usize, len: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => {
            Err(Error::usage("slice", format!("{len} bytes at offset {offset} do not fit into {size} bytes")))
        }
    }
}

/// Start and length of `range` within `size` bytes.
pub(super) fn resolve(size: usize, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
    let overflow = || Error::usage("slice", "the range ends beyond the address space");
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.checked_add(1).ok_or_else(overflow)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.checked_add(1).ok_or_else(overflow)?,
        Bound::Excluded(&at) => at,
        Bound::Unbounded => size,
    };
    let len = end.checked_sub(start).ok_or_else(|| {
        let text = match range.end_bound() {
            Bound::Unbounded => format!("the range begins at {start}, behind the end of {size} bytes"),
            _ => format!("the range {start}..{end} ends before it begins"),
        };
        Error::usage("slice", text)
    })?;
    check(size, start, len)?;
    Ok((start, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_with_overflow() {
        assert_eq!(resolve(10, ..).unwrap(), (0, 10));
        assert_eq!(resolve(10, 10..).unwrap(), (10, 0));
        assert_eq!(resolve(10, 2..=9).unwrap(), (2, 8));
        assert!(resolve(10, 0..11).is_err());
        let behind = resolve(10, 11..).unwrap_err();
        assert!(
            behind.message().contains("begins at 11") && behind.message().contains("10 bytes"),
            "{behind}"
        );
        #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
        let reversed = resolve(10, 5..3);
        assert!(reversed.is_err());
        assert!(resolve(10, 0..=usize::MAX).is_err());
        assert!(check(10, usize::MAX, 2).is_err());
        assert!(check(10, 9, 1).is_ok());
    }
}
