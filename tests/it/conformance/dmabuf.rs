//! Device memory as a dma-buf.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use aqueduct_tests::not_run;
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};
use super::virtual_memory::{create, granularity, map, unmap};

/// The driver exports whole pages of the host.
const PAGE: usize = 4096;

pub(super) fn memory_is_exported_to_other_drivers(d: &Dut) {
    if d.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0 {
        return not_run(d.test, "the device exports no dma-bufs (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)");
    }
    let export = d.t.cuMemGetHandleForAddressRange.expect("CUDA 11.7 or newer, because the device can");
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let bytes = granularity(d);
    let handle = create(d, bytes);
    let mapped = map(d, handle, bytes, d.device);
    let allocated = d.alloc(bytes);
    for pointer in [mapped, allocated] {
        assert!(pointer.is_multiple_of(PAGE as u64), "{pointer:#x}");
        let fds = [(); 2].map(|()| {
            let mut fd = -1i32;
            ok!(export((&raw mut fd).cast(), pointer, bytes, kind, 0));
            assert!(fd >= 0);
            // SAFETY: the driver made the descriptor for this caller, who closes it once.
            unsafe { OwnedFd::from_raw_fd(fd) }
        });
        assert_ne!(fds[0].as_raw_fd(), fds[1].as_raw_fd(), "each export makes a descriptor");
        let mut fd = -1i32;
        let out = (&raw mut fd).cast();
        refused!(
            export(out, pointer + 1, PAGE, kind, 0),
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(fd, -1, "a refused call gives nothing out");
    }
    d.free(allocated);
    unmap(d, mapped, bytes);
    ok!((d.t.cuMemRelease.unwrap())(handle));
}
