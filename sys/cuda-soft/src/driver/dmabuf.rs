//! Device memory as a file descriptor for the drivers of other devices.
//!
//! On hardware the descriptor is a dma-buf of exactly the range. Here it is the memfd of the allocation: other
//! processes can map it, but no kernel driver accepts it. Because a memfd always begins at the start of the allocation,
//! ranges that begin elsewhere are refused.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

use cuda_driver_sys::{CUdeviceptr, CUmemRangeHandleType, CUresult};

use super::{INVALID_VALUE, context, entries};
use crate::machine::machine;

entries! {
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        dptr: CUdeviceptr,
        size: usize,
        handle_type: CUmemRangeHandleType,
        flags: c_ulonglong,
    ) {
        let machine = machine()?;
        context::current(machine)?;
        let known = handle_type == CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        if handle.is_null() || !known || flags != 0 || size == 0 {
            return Err(INVALID_VALUE);
        }
        let found = machine.allocations.find(dptr).filter(|a| !a.is_host()).ok_or(INVALID_VALUE)?;
        let object = found.backing.object().ok_or(INVALID_VALUE)?;
        // The object may be longer than the allocation: its size is rounded up to pages.
        if (dptr - found.base).checked_add(size as u64).is_none_or(|end| end > object.size() as u64) {
            return Err(INVALID_VALUE);
        }
        if dptr != found.base {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let fd = object.fd().try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: not null, and for this handle type valid for one descriptor number.
        unsafe { handle.cast::<c_int>().write(fd.into_raw_fd()) };
        Ok(())
    }
}
