//! Streams, events, memory operations in streams, host functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_driver_sys::*;

use super::dut::{Dut, ok};

pub(super) fn work_runs_in_order(d: &Dut) {
    let (stream, a) = (d.stream(), d.alloc(4096));
    let function = d.function(d.module(), "indices");
    for bias in 0..20 {
        d.launch(function, 8, 128, stream, &[a, bias]);
    }
    ok!((d.t.cuMemsetD32Async)(a, 77, 1, stream));
    d.sync(stream);
    let seen = d.download_u32(a, 1024);
    assert_eq!((seen[0], seen[1], seen[1023]), (77, 20, 1042));
    ok!((d.t.cuStreamDestroy_v2)(stream));
    d.free(a);
}

pub(super) fn events_order_streams(d: &Dut) {
    let (first, second, event) = (d.stream(), d.stream(), d.event());
    let (host, gate) = d.pinned(8);
    let a = d.alloc(8);
    ok!((d.t.cuMemsetD8_v2)(a, 0, 8));
    ok!((d.t.cuCtxSynchronize)());
    ok!((d.t.cuStreamWaitValue64_v2.unwrap())(
        first,
        gate,
        1,
        CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ.0
    ));
    ok!((d.t.cuMemsetD32Async)(a, 1, 1, first));
    ok!((d.t.cuEventRecord)(event, first));
    ok!((d.t.cuStreamWaitEvent)(second, event, 0));
    ok!((d.t.cuMemcpyDtoDAsync_v2)(a + 4, a, 4, second));
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: live handles.
    assert_eq!(unsafe { (d.t.cuEventQuery)(event) }, CUresult::CUDA_ERROR_NOT_READY);
    // SAFETY: live handles.
    assert_eq!(unsafe { (d.t.cuStreamQuery)(second) }, CUresult::CUDA_ERROR_NOT_READY);
    release(host, 1);
    d.sync(second);
    assert_eq!(d.download_u32(a, 2), [1, 1]);
    ok!((d.t.cuEventSynchronize)(event));
    ok!((d.t.cuEventQuery)(event));
    for stream in [first, second] {
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
    ok!((d.t.cuEventDestroy_v2)(event));
    ok!((d.t.cuMemFreeHost)(host));
    d.free(a);
}

pub(super) fn write_value_and_wait_value(d: &Dut) {
    let (producer, consumer) = (d.stream(), d.stream());
    let a = d.alloc(64);
    ok!((d.t.cuMemsetD8_v2)(a, 0, 64));
    ok!((d.t.cuCtxSynchronize)());
    let wait = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0;
    ok!((d.t.cuStreamWaitValue32_v2.unwrap())(consumer, a, 9, wait));
    ok!((d.t.cuStreamWriteValue64_v2.unwrap())(consumer, a + 8, u64::MAX - 3, 0));
    ok!((d.t.cuMemsetD8Async)(a + 16, 5, 4, producer));
    ok!((d.t.cuStreamWriteValue32_v2.unwrap())(producer, a, 9, 0));
    d.sync(consumer);
    let bytes = d.download(a, 20);
    assert_eq!(bytes[8..16], (u64::MAX - 3).to_le_bytes());
    assert_eq!(bytes[16..20], [5; 4]);
    for stream in [producer, consumer] {
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
    d.free(a);
}

pub(super) fn query_while_busy(d: &Dut) {
    let stream = d.stream();
    let (host, word) = d.pinned(16);
    let function = d.function(d.module(), "wait_for");
    d.launch(function, 1, 1, stream, &[word, 1, word + 8]);
    std::thread::sleep(Duration::from_millis(10));
    // SAFETY: a live handle.
    assert_eq!(unsafe { (d.t.cuStreamQuery)(stream) }, CUresult::CUDA_ERROR_NOT_READY);
    release(host, 1);
    let patience = Instant::now() + Duration::from_secs(10);
    // SAFETY: a live handle.
    while unsafe { (d.t.cuStreamQuery)(stream) } == CUresult::CUDA_ERROR_NOT_READY {
        assert!(Instant::now() < patience, "the kernel saw the word");
        std::thread::yield_now();
    }
    ok!((d.t.cuStreamQuery)(stream));
    ok!((d.t.cuStreamDestroy_v2)(stream));
    ok!((d.t.cuMemFreeHost)(host));
}

unsafe extern "C" fn bump(user: *mut c_void) {
    // SAFETY: `host_functions` passes a static.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn host_functions(d: &Dut) {
    static CALLS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
    // Both instances of the suite may run in the same process.
    let calls = &CALLS[usize::from(d.test.contains("hardware"))];
    let stream = d.stream();
    for _ in 0..5 {
        ok!((d.t.cuLaunchHostFunc)(stream, Some(bump), (&raw const *calls).cast_mut().cast()));
    }
    d.sync(stream);
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    ok!((d.t.cuStreamDestroy_v2)(stream));
}

pub(super) fn elapsed_time(d: &Dut) {
    let (stream, start, end) = (d.stream(), d.event(), d.event());
    let (host, word) = d.pinned(16);
    let function = d.function(d.module(), "wait_for");
    ok!((d.t.cuEventRecord)(start, stream));
    d.launch(function, 1, 1, stream, &[word, 1, word + 8]);
    ok!((d.t.cuEventRecord)(end, stream));
    std::thread::sleep(Duration::from_millis(50));
    release(host, 1);
    ok!((d.t.cuEventSynchronize)(end));
    let mut milliseconds = 0.0f32;
    ok!((d.t.cuEventElapsedTime)(&raw mut milliseconds, start, end));
    assert!((40.0..10_000.0).contains(&milliseconds), "{milliseconds}");
    ok!((d.t.cuStreamDestroy_v2)(stream));
    ok!((d.t.cuMemFreeHost)(host));
}

pub(super) fn flags_and_priorities(d: &Dut) {
    let (mut least, mut greatest) = (0, 0);
    ok!((d.t.cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest));
    // A priority outside the range is clamped to it.
    for (asked, given) in
        [(greatest, greatest), (least, least), (greatest - 10, greatest), (least + 10, least)]
    {
        let (mut stream, mut priority, mut flags) = (std::ptr::null_mut(), 99, 99);
        let non_blocking = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        ok!((d.t.cuStreamCreateWithPriority)(&raw mut stream, non_blocking, asked));
        ok!((d.t.cuStreamGetPriority)(stream, &raw mut priority));
        ok!((d.t.cuStreamGetFlags)(stream, &raw mut flags));
        assert_eq!((priority, flags), (given, non_blocking), "asked for {asked}");
        let mut context: CUcontext = std::ptr::null_mut();
        ok!((d.t.cuStreamGetCtx)(stream, &raw mut context));
        assert_eq!(context, d.context);
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
}

unsafe extern "C" fn note(_: CUstream, status: CUresult, user: *mut c_void) {
    // SAFETY: `callbacks` passes a leaked counter.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1 + status.0, Ordering::Relaxed);
}

pub(super) fn callbacks(d: &Dut) {
    let count: &'static AtomicU32 = Box::leak(Box::default());
    let (stream, event) = (d.stream(), d.event());
    ok!((d.t.cuStreamAddCallback)(stream, Some(note), (&raw const *count).cast_mut().cast(), 0));
    ok!((d.t.cuEventRecordWithFlags)(event, stream, 0));
    ok!((d.t.cuEventSynchronize)(event));
    assert_eq!(count.load(Ordering::Relaxed), 1, "called once, with CUDA_SUCCESS, before what follows it");
    ok!((d.t.cuEventDestroy_v2)(event));
    ok!((d.t.cuStreamDestroy_v2)(stream));
}

pub(super) fn batches_of_memory_operations(d: &Dut) {
    let (stream, a) = (d.stream(), d.alloc(64));
    ok!((d.t.cuMemsetD8_v2)(a, 0, 64));
    ok!((d.t.cuCtxSynchronize)());
    let mut ops = [CUstreamBatchMemOpParams::default(); 3];
    ops[0].writeValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address: a,
        ..Default::default()
    };
    ops[0].writeValue.__bindgen_anon_1.value = 7;
    ops[1].waitValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address: a,
        flags: CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ.0,
        ..Default::default()
    };
    ops[1].waitValue.__bindgen_anon_1.value = 7;
    ops[2].writeValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
        address: a + 8,
        ..Default::default()
    };
    ops[2].writeValue.__bindgen_anon_1.value64 = u64::MAX - 5;
    ok!((d.t.cuStreamBatchMemOp_v2.unwrap())(stream, 3, ops.as_mut_ptr(), 0));
    d.sync(stream);
    assert_eq!(d.download(a, 4), 7u32.to_le_bytes());
    assert_eq!(d.download(a + 8, 8), (u64::MAX - 5).to_le_bytes());
    ok!((d.t.cuStreamDestroy_v2)(stream));
    d.free(a);
}

/// Stores `value` to the first word of pinned memory.
pub(super) fn release(host: *mut c_void, value: u64) {
    // SAFETY: the caller passes live, aligned pinned memory that the device only reads.
    unsafe { AtomicU64::from_ptr(host.cast()) }.store(value, Ordering::Release);
}
