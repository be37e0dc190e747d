//! Allocation, pinned memory, attributes, contexts.

use std::ffi::{CStr, c_char, c_void};

use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

pub(super) fn allocation_and_address_range(d: &Dut) {
    let pointer = d.alloc(1000);
    let (mut base, mut size) = (0, 0);
    ok!((d.t.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, pointer + 999));
    assert_eq!((base, size), (pointer, 1000));
    assert_eq!(pointer % 256, 0, "allocations are aligned to 256 bytes at least");
    refused!((d.t.cuMemAlloc_v2)(&raw mut base, 0), CUDA_ERROR_INVALID_VALUE);
    refused!((d.t.cuMemAlloc_v2)(&raw mut base, 1 << 50), CUDA_ERROR_OUT_OF_MEMORY);
    let (mut free, mut total) = (0, 0);
    ok!((d.t.cuMemGetInfo_v2)(&raw mut free, &raw mut total));
    assert!(0 < free && free <= total);
    d.free(pointer);
}

pub(super) fn free_of_a_foreign_address_is_refused(d: &Dut) {
    let pointer = d.alloc(4096);
    refused!((d.t.cuMemFree_v2)(pointer + 256), CUDA_ERROR_INVALID_VALUE);
    refused!((d.t.cuMemFree_v2)(0x10_0000), CUDA_ERROR_INVALID_VALUE);
    d.free(pointer);
    refused!((d.t.cuMemFree_v2)(pointer), CUDA_ERROR_INVALID_VALUE);
}

pub(super) fn pinned_memory_is_mapped(d: &Dut) {
    let (host, device) = d.pinned(4096);
    let module = d.module();
    d.launch(d.function(module, "indices"), 1, 32, std::ptr::null_mut(), &[device, 5]);
    ok!((d.t.cuCtxSynchronize)());
    // SAFETY: the kernel that wrote these 128 bytes has ended; the memory lives until it is freed below.
    let seen = unsafe { std::slice::from_raw_parts(host.cast::<u32>(), 32) };
    assert!(seen.iter().enumerate().all(|(i, &v)| v == i as u32 + 5), "{seen:?}");
    ok!((d.t.cuMemFreeHost)(host));
    refused!((d.t.cuMemFreeHost)(host), CUDA_ERROR_INVALID_VALUE);
}

pub(super) fn registered_memory_is_mapped(d: &Dut) {
    let layout = std::alloc::Layout::from_size_align(8192, 4096).unwrap();
    // SAFETY: the layout is not empty.
    let host = unsafe { std::alloc::alloc_zeroed(layout) };
    let mut device = 0;
    ok!((d.t.cuMemHostRegister_v2)(
        host.cast(),
        8192,
        CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE
    ));
    ok!((d.t.cuMemHostGetDevicePointer_v2)(&raw mut device, host.cast(), 0));
    let module = d.module();
    d.launch(d.function(module, "indices"), 1, 32, std::ptr::null_mut(), &[device + 4096, 1]);
    ok!((d.t.cuCtxSynchronize)());
    // SAFETY: the kernel has ended; the word lies within the allocation.
    assert_eq!(unsafe { host.add(4096 + 31 * 4).cast::<u32>().read() }, 32);
    refused!((d.t.cuMemHostRegister_v2)(host.cast(), 8192, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ok!((d.t.cuMemHostUnregister)(host.cast()));
    refused!((d.t.cuMemHostUnregister)(host.cast()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    // SAFETY: allocated above with this layout, no longer registered.
    unsafe { std::alloc::dealloc(host, layout) };
}

pub(super) fn pointer_attributes(d: &Dut) {
    let pointer = d.alloc(4096);
    let ask = |attribute: CUpointer_attribute, at: CUdeviceptr| {
        let mut value = 0u64;
        // SAFETY: every attribute asked here fits into eight bytes.
        let result = unsafe { (d.t.cuPointerGetAttribute)((&raw mut value).cast(), attribute, at) };
        (result, value)
    };
    let (result, kind) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 8);
    assert_eq!((result, kind as u32), (CUresult::CUDA_SUCCESS, CUmemorytype::CU_MEMORYTYPE_DEVICE.0));
    let (result, ordinal) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    assert_eq!((result, ordinal as i32), (CUresult::CUDA_SUCCESS, 0));
    let (result, context) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT, pointer);
    assert_eq!((result, context), (CUresult::CUDA_SUCCESS, d.context as u64));
    let (result, start) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer + 100);
    assert_eq!((result, start), (CUresult::CUDA_SUCCESS, pointer));
    let (result, size) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer + 100);
    assert_eq!((result, size), (CUresult::CUDA_SUCCESS, 4096));
    let local = 0u64;
    let (result, _) = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw const local) as u64);
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_VALUE, "memory the driver does not know");
    d.free(pointer);
}

pub(super) fn many_attributes_at_once(d: &Dut) {
    let pointer = d.alloc(4096);
    let ask = |at: CUdeviceptr| {
        let mut kind = CUmemorytype(99);
        let mut start: CUdeviceptr = 99;
        let mut attributes = [
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        ];
        let mut data = [(&raw mut kind).cast(), (&raw mut start).cast()];
        ok!((d.t.cuPointerGetAttributes)(2, attributes.as_mut_ptr(), data.as_mut_ptr(), at));
        (kind.0, start)
    };
    assert_eq!(ask(pointer + 8), (CUmemorytype::CU_MEMORYTYPE_DEVICE.0, pointer));
    // Unlike `cuPointerGetAttribute`, it answers for memory that the driver does not know. The documentation has it write null for
    // each attribute; an H200 (CUDA 13.0) leaves the address alone.
    let local = 0u64;
    assert_eq!(ask((&raw const local) as u64).0, 0);
    // Copies of this memory end before their call returns, from then on.
    let (on, mut seen) = (1i32, 0i32);
    let sync = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    ok!((d.t.cuPointerSetAttribute)((&raw const on).cast(), sync, pointer));
    ok!((d.t.cuPointerGetAttribute)((&raw mut seen).cast(), sync, pointer));
    assert_eq!(seen & 0xff, 1);
    d.free(pointer);
}

pub(super) fn contexts_nest_per_thread(d: &Dut) {
    let current = || {
        let mut context: CUcontext = std::ptr::null_mut();
        ok!((d.t.cuCtxGetCurrent)(&raw mut context));
        context as usize
    };
    let own = d.context as usize;
    assert_eq!(current(), own);
    ok!((d.t.cuCtxPushCurrent_v2)(d.context));
    let mut popped: CUcontext = std::ptr::null_mut();
    ok!((d.t.cuCtxPopCurrent_v2)(&raw mut popped));
    assert_eq!((popped as usize, current()), (own, own));
    let table = d.t;
    std::thread::spawn(move || {
        let mut context: CUcontext = std::ptr::null_mut();
        ok!((table.cuCtxGetCurrent)(&raw mut context));
        assert!(context.is_null(), "a new thread has no current context");
        refused!((table.cuCtxPopCurrent_v2)(&raw mut context), CUDA_ERROR_INVALID_CONTEXT);
        let mut pointer = 0;
        refused!((table.cuMemAlloc_v2)(&raw mut pointer, 16), CUDA_ERROR_INVALID_CONTEXT);
    })
    .join()
    .unwrap();
}

pub(super) fn device_attributes(d: &Dut) {
    use CUdevice_attribute as A;
    assert!(d.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) > 0);
    assert_eq!(d.attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
    assert!(d.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 7);
    assert!(d.attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) >= 1024);
    assert_eq!(d.attribute(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
    assert_eq!(d.attribute(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH), 1);
    let mut value = 0;
    refused!(
        (d.t.cuDeviceGetAttribute)(&raw mut value, CUdevice_attribute(1 << 20), d.device),
        CUDA_ERROR_INVALID_VALUE
    );
    refused!((d.t.cuDeviceGet)(&raw mut value, d.devices()), CUDA_ERROR_INVALID_DEVICE);
    refused!((d.t.cuDeviceGet)(&raw mut value, -1), CUDA_ERROR_INVALID_DEVICE);
    let mut name: [c_char; 64] = [0; 64];
    ok!((d.t.cuDeviceGetName)(name.as_mut_ptr(), 64, d.device));
    let mut bus: [c_char; 32] = [0; 32];
    ok!((d.t.cuDeviceGetPCIBusId)(bus.as_mut_ptr(), 32, d.device));
    let mut found = -1;
    ok!((d.t.cuDeviceGetByPCIBusId)(&raw mut found, bus.as_ptr()));
    assert_eq!(found, d.device);
    let mut total = 0;
    ok!((d.t.cuDeviceTotalMem_v2)(&raw mut total, d.device));
    assert!(total > 1 << 20);
    let mut version = 0;
    ok!((d.t.cuDriverGetVersion)(&raw mut version));
    assert!(version >= 11040, "{version}");
}

pub(super) fn error_names(d: &Dut) {
    let mut text = std::ptr::null();
    ok!((d.t.cuGetErrorName)(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &raw mut text));
    // SAFETY: the driver gives a static C string on success.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    ok!((d.t.cuGetErrorString)(CUresult::CUDA_ERROR_OUT_OF_MEMORY, &raw mut text));
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"out of memory");
    refused!((d.t.cuGetErrorName)(CUresult(12345), &raw mut text), CUDA_ERROR_INVALID_VALUE);
    let null: *mut c_void = std::ptr::null_mut();
    refused!((d.t.cuMemHostAlloc)(null.cast(), 16, 0), CUDA_ERROR_INVALID_VALUE);
}
