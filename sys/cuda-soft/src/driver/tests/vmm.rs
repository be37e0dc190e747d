use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use cuda_driver_sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemRangeHandleType, CUmulticastObjectProp,
    CUresult,
};

use super::*;

const MIB2: usize = 2 << 20;
const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Exportable memory of a device.
pub(super) fn prop(device: c_int) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        ..CUmemAllocationProp::default()
    }
}

fn access(device: c_int, flags: CUmemAccess_flags) -> CUmemAccessDesc {
    CUmemAccessDesc { location: prop(device).location, flags }
}

pub(super) fn create(t: &DriverTable, device: c_int, size: usize) -> u64 {
    let mut handle = 0;
    let prop = prop(device);
    // SAFETY: pointers are to locals.
    assert_eq!(unsafe { t.cuMemCreate.expect("vmm")(&raw mut handle, size, &raw const prop, 0) }, OK);
    handle
}

pub(super) fn reserve(t: &DriverTable, size: usize) -> u64 {
    let mut p = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { t.cuMemAddressReserve.expect("vmm")(&raw mut p, size, 0, 0, 0) }, OK);
    p
}

/// Maps and gives one device all rights.
pub(super) fn map(t: &DriverTable, at: u64, size: usize, handle: u64, device: c_int) {
    let desc = access(device, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    // SAFETY: pointers are to locals.
    unsafe {
        assert_eq!(t.cuMemMap.expect("vmm")(at, size, 0, handle, 0), OK);
        assert_eq!(t.cuMemSetAccess.expect("vmm")(at, size, &raw const desc, 1), OK);
    }
}

#[test]
fn memory_lives_while_it_is_mapped_and_rights_decide() {
    let t = on(4);
    let (handle, p) = (create(&t, 4, 2 * MIB2), reserve(&t, 8 * MIB2));
    let mut same = 0;
    // SAFETY: addresses are reserved and mapped as the test goes; refused calls touch nothing.
    unsafe {
        let unmap = t.cuMemUnmap.expect("vmm");
        assert_eq!(t.cuMemMap.expect("vmm")(p, 2 * MIB2, 0, handle, 0), OK);
        assert_eq!((t.cuMemsetD8_v2)(p, 1, 16), INVALID, "nobody has rights yet");
        let read_only = access(4, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ);
        assert_eq!(t.cuMemSetAccess.expect("vmm")(p, 2 * MIB2, &raw const read_only, 1), OK);
        assert_eq!((t.cuMemsetD8_v2)(p, 1, 16), INVALID);
        assert_eq!(read::<u8>(&t, p, 4), [0; 4]);
        let all = access(4, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        assert_eq!(t.cuMemSetAccess.expect("vmm")(p, 2 * MIB2, &raw const all, 1), OK);
        write(&t, p + 100, &[1u32, 2, 3]);
        assert_eq!(t.cuMemRelease.expect("vmm")(handle), OK);
        assert_eq!(t.cuMemRelease.expect("vmm")(handle), INVALID);
        assert_eq!(read::<u32>(&t, p + 100, 3), [1, 2, 3]);
        assert_eq!(t.cuMemRetainAllocationHandle.expect("vmm")(&raw mut same, (p + 5) as *mut c_void), OK);
        assert_eq!(same, handle);
        assert_eq!(t.cuMemMap.expect("vmm")(p + 4 * MIB2 as u64, 2 * MIB2, 0, same, 0), OK);
        assert_eq!(t.cuMemRelease.expect("vmm")(same), OK);
        assert_eq!(t.cuMemAddressFree.expect("vmm")(p, 8 * MIB2), INVALID, "still mapped");
        assert_eq!(unmap(p, MIB2), INVALID, "half a mapping");
        assert_eq!(unmap(p, 2 * MIB2), OK);
        assert_eq!(unmap(p, 2 * MIB2), INVALID);
        assert_eq!(unmap(p + 4 * MIB2 as u64, 2 * MIB2), OK);
        assert_eq!(t.cuMemAddressFree.expect("vmm")(p, 8 * MIB2), OK);
    }
}

#[test]
fn an_exported_descriptor_is_the_same_memory() {
    let t = on(4);
    let handle = create(&t, 4, MIB2);
    let (mut fd, mut imported): (c_int, u64) = (-1, 0);
    let posix = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: pointers are to locals; the descriptor becomes ours.
    unsafe {
        let export = t.cuMemExportToShareableHandle.expect("vmm");
        assert_eq!(export((&raw mut fd).cast(), handle, posix, 0), OK);
        let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        assert_eq!(export((&raw mut fd).cast(), handle, fabric, 0), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let owned = OwnedFd::from_raw_fd(fd);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let import = t.cuMemImportFromShareableHandle.expect("vmm");
        assert_eq!(import(&raw mut imported, fd as usize as *mut c_void, posix), OK);
        drop(owned);
        assert_eq!(import(&raw mut imported, 99_999 as *mut c_void, posix), INVALID);
        assert_ne!(imported, handle);
        let (a, b) = (reserve(&t, MIB2), reserve(&t, MIB2));
        map(&t, a, MIB2, handle, 4);
        map(&t, b, MIB2, imported, 5);
        write(&t, a, &[0xfeed_u32]);
        on(5);
        assert_eq!(read::<u32>(&t, b, 1), [0xfeed]);
        for (at, h) in [(a, handle), (b, imported)] {
            assert_eq!(t.cuMemUnmap.expect("vmm")(at, MIB2), OK);
            assert_eq!(t.cuMemRelease.expect("vmm")(h), OK);
            assert_eq!(t.cuMemAddressFree.expect("vmm")(at, MIB2), OK);
        }
    }
}

#[test]
fn a_descriptor_of_a_range_is_the_same_memory() {
    let t = on(4);
    let (p, kind) = (alloc(&t, 10_000), CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
    write(&t, p, &[0xbeef_u32]);
    let get = t.cuMemGetHandleForAddressRange.expect("dma_buf");
    let mut fd: c_int = -1;
    let out = (&raw mut fd).cast();
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    // SAFETY: pointers are to locals; the descriptor becomes ours, and what is read is mapped.
    unsafe {
        assert_eq!(get(out, p + 4096, 4096, kind, 0), unsupported, "a memfd begins where its memory does");
        assert_eq!(get(out, p, 1 << 20, kind, 0), INVALID, "longer than the memory");
        assert_eq!(get(out, p, 4096, CUmemRangeHandleType(2), 0), INVALID);
        assert_eq!(get(out, p, 12_288, kind, 0), OK, "whole pages");
        let owned = OwnedFd::from_raw_fd(fd);
        let map = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        drop(owned);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(map.cast::<u32>().read(), 0xbeef);
        libc::munmap(map, 4096);
        assert_eq!((t.cuMemFree_v2)(p), OK);
    }
}

#[test]
fn unmapping_waits_for_work_that_may_use_the_range() {
    let t = on(4);
    let (handle, p, s) = (create(&t, 4, MIB2), reserve(&t, MIB2), stream(&t));
    map(&t, p, MIB2, handle, 4);
    let (gate, other) = (alloc(&t, 8), stream(&t));
    write(&t, gate, &[0_u64]);
    let unmap = t.cuMemUnmap.expect("vmm");
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(s, gate, 1, 0), OK);
        assert_eq!((t.cuMemsetD8Async)(p, 7, MIB2, s), OK);
        std::thread::scope(|scope| {
            let unmapping = scope.spawn(move || unmap(p, MIB2));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!unmapping.is_finished(), "a memset is to come");
            assert_eq!(t.cuStreamWriteValue64_v2.expect("ops")(other, gate, 1, 0), OK);
            assert_eq!(unmapping.join().expect("unmaps"), OK);
        });
        assert_eq!((t.cuStreamSynchronize)(s), OK);
        assert_eq!(t.cuMemRelease.expect("vmm")(handle), OK);
        assert_eq!(t.cuMemAddressFree.expect("vmm")(p, MIB2), OK);
    }
}

#[test]
fn sizes_and_addresses_are_granular() {
    let t = on(4);
    let handle = create(&t, 4, MIB2);
    let p = reserve(&t, 2 * MIB2);
    let (mut h, mut q) = (0, 0);
    let (good, mut bad) = (prop(4), prop(99));
    // SAFETY: pointers are to locals; refused calls touch nothing.
    unsafe {
        let (create, map) = (t.cuMemCreate.expect("vmm"), t.cuMemMap.expect("vmm"));
        assert_eq!(create(&raw mut h, MIB2 + 4096, &raw const good, 0), INVALID);
        assert_eq!(create(&raw mut h, MIB2, &raw const bad, 0), CUresult::CUDA_ERROR_INVALID_DEVICE);
        bad = prop(4);
        bad.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        assert_eq!(create(&raw mut h, MIB2, &raw const bad, 0), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(t.cuMemAddressReserve.expect("vmm")(&raw mut q, 4096, 0, 0, 0), INVALID);
        assert_eq!(map(p + 4096, MIB2, 0, handle, 0), INVALID);
        assert_eq!(map(p, 2 * MIB2, 0, handle, 0), INVALID, "larger than the memory");
        assert_eq!(map(p + MIB2 as u64, MIB2, 0, handle, 0), OK);
        assert_eq!(map(p + MIB2 as u64, MIB2, 0, handle, 0), INVALID, "taken");
        assert_eq!(map(p + 2 * MIB2 as u64, MIB2, 0, handle, 0), INVALID, "outside");
        assert_eq!(t.cuMemUnmap.expect("vmm")(p + MIB2 as u64, MIB2), OK);
        assert_eq!(t.cuMemRelease.expect("vmm")(handle), OK);
        assert_eq!(t.cuMemAddressFree.expect("vmm")(p, 2 * MIB2), OK);
    }
}

#[test]
fn multicast_is_off_unless_asked_for() {
    let t = on(0);
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
    let prop = CUmulticastObjectProp { numDevices: 2, size: MIB2, ..CUmulticastObjectProp::default() };
    let (mut value, mut handle) = (7, 0);
    // SAFETY: pointers are to locals.
    unsafe {
        assert_eq!((t.cuDeviceGetAttribute)(&raw mut value, attribute, 0), OK);
        assert_eq!(value, 0);
        let created = t.cuMulticastCreate.expect("vmm")(&raw mut handle, &raw const prop);
        assert_eq!(created, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
}
