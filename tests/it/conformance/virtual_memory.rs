//! `cuMem*`: reservation, physical memory, mapping, rights.

use aqueduct_tests::paint;
use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

/// Properties of device memory that can be exported as a POSIX file descriptor.
pub(super) fn exportable(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: on(device),
        ..Default::default()
    }
}

fn on(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

pub(super) fn granularity(d: &Dut) -> usize {
    let mut granularity = 0;
    let prop = exportable(d.device);
    ok!((d.t.cuMemGetAllocationGranularity.unwrap())(
        &raw mut granularity,
        &raw const prop,
        CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM
    ));
    granularity
}

pub(super) fn create(d: &Dut, bytes: usize) -> CUmemGenericAllocationHandle {
    let mut handle = 0;
    let prop = exportable(d.device);
    ok!((d.t.cuMemCreate.unwrap())(&raw mut handle, bytes, &raw const prop, 0));
    handle
}

pub(super) fn reserve(d: &Dut, bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!((d.t.cuMemAddressReserve.unwrap())(&raw mut pointer, bytes, 0, 0, 0));
    pointer
}

/// Maps all of `handle` at a new address with read and write access for `device`.
pub(super) fn map(
    d: &Dut,
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
    device: CUdevice,
) -> CUdeviceptr {
    let pointer = reserve(d, bytes);
    ok!((d.t.cuMemMap.unwrap())(pointer, bytes, 0, handle, 0));
    allow(d, pointer, bytes, device);
    pointer
}

fn allow(d: &Dut, pointer: CUdeviceptr, bytes: usize, device: CUdevice) {
    let access = CUmemAccessDesc {
        location: on(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    ok!((d.t.cuMemSetAccess.unwrap())(pointer, bytes, &raw const access, 1));
}

pub(super) fn unmap(d: &Dut, pointer: CUdeviceptr, bytes: usize) {
    ok!((d.t.cuMemUnmap.unwrap())(pointer, bytes));
    ok!((d.t.cuMemAddressFree.unwrap())(pointer, bytes));
}

pub(super) fn map_and_alias(d: &Dut) {
    let bytes = granularity(d);
    let handle = create(d, bytes);
    let (a, b) = (map(d, handle, bytes, d.device), map(d, handle, bytes, d.device));
    let data = paint(bytes, 4);
    d.upload(a, &data);
    assert!(d.download(b, bytes) == data, "two mappings show the same memory");
    let (mut base, mut size) = (0, 0);
    ok!((d.t.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, a + 1000));
    assert_eq!(base, a);
    let mut retained = 0;
    ok!((d.t.cuMemRetainAllocationHandle.unwrap())(&raw mut retained, a as *mut _));
    ok!((d.t.cuMemRelease.unwrap())(retained));
    let mut prop = CUmemAllocationProp::default();
    ok!((d.t.cuMemGetAllocationPropertiesFromHandle.unwrap())(&raw mut prop, handle));
    assert_eq!(
        prop.requestedHandleTypes,
        CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    );
    unmap(d, a, bytes);
    unmap(d, b, bytes);
    ok!((d.t.cuMemRelease.unwrap())(handle));
    refused!((d.t.cuMemRelease.unwrap())(handle), CUDA_ERROR_INVALID_VALUE);
}

pub(super) fn rounding_is_required(d: &Dut) {
    let bytes = granularity(d);
    let prop = exportable(d.device);
    let (mut handle, mut pointer) = (0, 0);
    refused!(
        (d.t.cuMemCreate.unwrap())(&raw mut handle, bytes + 1, &raw const prop, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    refused!(
        (d.t.cuMemAddressReserve.unwrap())(&raw mut pointer, bytes / 2 + 1, 0, 0, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    let handle = create(d, bytes);
    let pointer = reserve(d, 2 * bytes);
    refused!(
        (d.t.cuMemMap.unwrap())(pointer, 2 * bytes, 0, handle, 0),
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED
    );
    ok!((d.t.cuMemMap.unwrap())(pointer + bytes as u64, bytes, 0, handle, 0));
    ok!((d.t.cuMemUnmap.unwrap())(pointer + bytes as u64, bytes));
    ok!((d.t.cuMemAddressFree.unwrap())(pointer, 2 * bytes));
    ok!((d.t.cuMemRelease.unwrap())(handle));
}

pub(super) fn export_needs_the_handle_type(d: &Dut) {
    let bytes = granularity(d);
    let mut prop = exportable(d.device);
    prop.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    let mut handle = 0;
    ok!((d.t.cuMemCreate.unwrap())(&raw mut handle, bytes, &raw const prop, 0));
    let mut fd = -1i32;
    refused!(
        (d.t.cuMemExportToShareableHandle.unwrap())(
            (&raw mut fd).cast(),
            handle,
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            0
        ),
        CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED
    );
    ok!((d.t.cuMemRelease.unwrap())(handle));
}

pub(super) fn rights_per_device(d: &Dut) {
    let bytes = granularity(d);
    let handle = create(d, bytes);
    let pointer = reserve(d, bytes);
    ok!((d.t.cuMemMap.unwrap())(pointer, bytes, 0, handle, 0));
    let location = on(d.device);
    let mut flags = 99;
    ok!((d.t.cuMemGetAccess.unwrap())(&raw mut flags, &raw const location, pointer));
    assert_eq!(flags, u64::from(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE.0));
    allow(d, pointer, bytes, d.device);
    ok!((d.t.cuMemGetAccess.unwrap())(&raw mut flags, &raw const location, pointer));
    assert_eq!(flags, u64::from(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE.0));
    unmap(d, pointer, bytes);
    ok!((d.t.cuMemRelease.unwrap())(handle));
}

pub(super) fn memory_outlives_its_handle(d: &Dut) {
    let bytes = granularity(d);
    let handle = create(d, bytes);
    let pointer = map(d, handle, bytes, d.device);
    ok!((d.t.cuMemRelease.unwrap())(handle));
    let data = paint(4096, 5);
    d.upload(pointer, &data);
    assert!(d.download(pointer, 4096) == data);
    unmap(d, pointer, bytes);
}
