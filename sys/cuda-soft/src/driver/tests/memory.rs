use std::ffi::{c_int, c_uint, c_void};

use cuda_driver_sys::{CUpointer_attribute as Attribute, CUresult};

use super::*;

#[test]
fn bytes_go_there_and_back_in_all_directions() {
    let t = on(0);
    let data: Vec<u32> = (0..300_000).collect();
    let (a, b) = (alloc(&t, data.len() * 4), alloc(&t, data.len() * 4));
    write(&t, a, &data);
    // SAFETY: both ranges are allocated; the last one is offset and odd in size.
    unsafe {
        assert_eq!((t.cuMemcpyDtoD_v2)(b, a, data.len() * 4), OK);
        assert_eq!(read::<u32>(&t, b, data.len()), data);
        assert_eq!((t.cuMemsetD8_v2)(b + 3, 0xab, 1001), OK);
        let bytes = read::<u8>(&t, b, 1010);
        assert!(bytes[3..1004].iter().all(|v| *v == 0xab) && bytes[1004] == data[251] as u8);
        assert_eq!((t.cuMemsetD32_v2)(b, 0x0102_0304, data.len()), OK);
        assert!(read::<u32>(&t, b, data.len()).iter().all(|v| *v == 0x0102_0304));
        assert_eq!((t.cuMemsetD32_v2)(b + 2, 0, 1), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemcpyDtoD_v2)(b, a, data.len() * 4 + 1), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemFree_v2)(a), OK);
        assert_eq!((t.cuMemFree_v2)(b), OK);
    }
}

/// In a process of its own: in this one, another test may get the address that was freed, and lose its memory.
#[test]
fn freed_and_foreign_pointers_are_refused() {
    process::alone("refused-pointers");
}

pub(super) fn refused_pointers() {
    let t = on(0);
    let p = alloc(&t, 100);
    let mut local = 0u64;
    // SAFETY: refused pointers are never followed.
    unsafe {
        assert_eq!((t.cuMemFree_v2)(p + 4), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemFree_v2)(p), OK);
        assert_eq!((t.cuMemFree_v2)(p), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemFree_v2)(0), OK);
        assert_eq!((t.cuMemcpyHtoD_v2)(p, (&raw mut local).cast(), 8), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemAlloc_v2)(&raw mut local, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemAlloc_v2)(std::ptr::null_mut(), 8), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn memory_is_finite_and_comes_back() {
    let t = on(SPOILED);
    let (mut free, mut total, mut p) = (0, 0, 0);
    // SAFETY: pointers are to locals.
    unsafe {
        assert_eq!((t.cuMemGetInfo_v2)(&raw mut free, &raw mut total), OK);
        assert_eq!((free, total), (256 << 20, 256 << 20));
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, total + 1), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, usize::MAX), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let q = alloc(&t, total);
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, 1), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!((t.cuMemFree_v2)(q), OK);
        assert_eq!((t.cuMemGetInfo_v2)(&raw mut free, &raw mut total), OK);
        assert_eq!(free, total);
    }
}

#[test]
fn pointers_know_what_they_are() {
    let t = on(1);
    let p = alloc(&t, 1000);
    let (mut base, mut size) = (0u64, 0usize);
    let (mut kind, mut ordinal, mut legacy): (c_uint, c_int, bool) = (0, 0, false);
    let mut names = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    ];
    let mut places: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut legacy).cast()];
    // SAFETY: pointers are to locals of the types the attributes have.
    unsafe {
        assert_eq!((t.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, p + 999), OK);
        assert_eq!((base, size), (p, 1000));
        let code = (t.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, p + 1000);
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_FOUND);
        let attributes = |names: &mut [Attribute; 3], places: &mut [*mut c_void; 3], at| {
            (t.cuPointerGetAttributes)(3, names.as_mut_ptr(), places.as_mut_ptr(), at)
        };
        assert_eq!(attributes(&mut names, &mut places, p + 5), OK);
        assert_eq!((kind, ordinal, legacy), (2, 1, true));
        assert_eq!(attributes(&mut names, &mut places, 0x1000), OK);
        assert_eq!((kind, ordinal, legacy), (0, -2, false));
        let code = (t.cuPointerGetAttribute)((&raw mut kind).cast(), names[0], 0x1000);
        assert_eq!(code, CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuMemFree_v2)(p), OK);
    }
}

#[test]
fn host_memory_is_registered_once_and_only_where_it_exists() {
    let t = on(0);
    let mut own = vec![7u8; 100_000];
    let p = own.as_mut_ptr().cast::<c_void>();
    let mut dptr = 0;
    // SAFETY: the vector outlives its registration; wild ranges are refused.
    unsafe {
        assert_eq!((t.cuMemHostRegister_v2)(p, own.len(), 0), OK);
        let again = (t.cuMemHostRegister_v2)(p.byte_add(50_000), 10, 0);
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!((t.cuMemHostGetDevicePointer_v2)(&raw mut dptr, p.byte_add(9), 0), OK);
        assert_eq!(dptr, p as u64 + 9);
        assert_eq!((t.cuMemsetD8_v2)(dptr, 9, 3), OK);
        assert_eq!(own[8..13], [7, 9, 9, 9, 7]);
        assert_eq!((t.cuMemHostUnregister)(p), OK);
        assert_eq!((t.cuMemHostUnregister)(p), CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        let wild = (t.cuMemHostRegister_v2)(0x10_0000 as *mut c_void, 4096, 0);
        assert_eq!(wild, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn peers_need_permission_and_devices_must_exist() {
    let t = on(2);
    let (mut can, mut device) = (0, 0);
    let mut peer = std::ptr::null_mut();
    // SAFETY: pointers are to locals.
    unsafe {
        assert_eq!((t.cuDeviceCanAccessPeer)(&raw mut can, 2, 3), OK);
        assert_eq!(can, 1);
        assert_eq!((t.cuDeviceCanAccessPeer)(&raw mut can, 2, 2), OK);
        assert_eq!(can, 0);
        assert_eq!((t.cuDeviceGet)(&raw mut device, 99), CUresult::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!((t.cuDevicePrimaryCtxRetain)(&raw mut peer, 3), OK);
        assert_eq!((t.cuCtxEnablePeerAccess)(peer, 0), OK);
        assert_eq!((t.cuCtxEnablePeerAccess)(peer, 0), CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!((t.cuCtxDisablePeerAccess)(peer), OK);
        assert_eq!((t.cuCtxDisablePeerAccess)(peer), CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    }
}
