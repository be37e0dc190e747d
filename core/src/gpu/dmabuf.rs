//! Device memory as a dma-buf, for the drivers of other devices.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use cuda_driver_sys::{CUdevice_attribute, CUmemRangeHandleType};

use super::driver::call;
use super::slice::DeviceSlice;
use crate::error::Result;

/// A descriptor of the pages that hold a range of device memory.
#[derive(Debug)]
pub(crate) struct DmaBuf {
    fd: OwnedFd,
    offset: u64,
}

/// The driver exports whole pages of the host.
const PAGE: u64 = 4096;

impl DmaBuf {
    /// Exports the memory of `slice`; none if driver or device cannot (CUDA 11.7,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn export(slice: &DeviceSlice) -> Result<Option<Self>> {
        let context = slice.context();
        if !context.device().can(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? {
            return Ok(None);
        }
        let start = slice.ptr() / PAGE * PAGE;
        let len = (slice.ptr() + slice.len() as u64).next_multiple_of(PAGE) - start;
        let mut fd: libc::c_int = -1;
        let (out, kind) = (&raw mut fd, CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
        let _entered = context.enter()?;
        // SAFETY: `out` is a live output of the type that this kind of handle has; the range is allocated memory.
        context.noted(unsafe {
            call!(
                context.driver(),
                optional cuMemGetHandleForAddressRange(out.cast::<c_void>(), start, len as usize, kind, 0)
            )
        })?;
        // SAFETY: the driver made the descriptor for us; nobody else closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Some(Self { fd, offset: slice.ptr() - start }))
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where in it the slice begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}
