use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_driver_sys::{CUevent, CUresult, CUstreamBatchMemOpParams, CUstreamBatchMemOpType};

use super::*;

const GEQ: u32 = 0;
const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

fn event(t: &DriverTable, flags: u32) -> CUevent {
    let mut event = std::ptr::null_mut();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { (t.cuEventCreate)(&raw mut event, flags) }, OK);
    event
}

/// Pinned words, zeroed.
fn pinned(t: &DriverTable, n: usize) -> &'static [AtomicU64] {
    let mut p = std::ptr::null_mut();
    // SAFETY: the memory is never freed in these tests, zeroed, and only used atomically.
    unsafe {
        assert_eq!((t.cuMemHostAlloc)(&raw mut p, n * 8, 0), OK);
        std::slice::from_raw_parts(p.cast(), n)
    }
}

fn at(word: &AtomicU64) -> u64 {
    word.as_ptr() as u64
}

#[test]
fn a_stream_waits_for_a_value_the_host_stores() {
    let t = on(0);
    let (s, words) = (stream(&t), pinned(&t, 2));
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(s, at(&words[0]), 5, GEQ), OK);
        assert_eq!(t.cuStreamWriteValue64_v2.expect("ops")(s, at(&words[1]), 77, 0), OK);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((t.cuStreamQuery)(s), NOT_READY);
        assert_eq!(words[1].load(Ordering::Acquire), 0);
        words[0].store(4, Ordering::Release);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((t.cuStreamQuery)(s), NOT_READY);
        words[0].store(6, Ordering::Release);
        assert_eq!((t.cuStreamSynchronize)(s), OK);
        assert_eq!(words[1].load(Ordering::Acquire), 77);
        assert_eq!((t.cuStreamDestroy_v2)(s), OK);
        assert_eq!((t.cuStreamDestroy_v2)(s), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!((t.cuStreamQuery)(s), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[test]
fn comparisons_are_those_of_the_api() {
    let t = on(0);
    let (s, words) = (stream(&t), pinned(&t, 1));
    let holds = |now: u64, value: u64, flags: u32| {
        words[0].store(now, Ordering::Release);
        // SAFETY: handles and addresses are live.
        let ready = unsafe {
            assert_eq!(t.cuStreamWaitValue32_v2.expect("ops")(s, at(&words[0]), value as u32, flags), OK);
            std::thread::sleep(Duration::from_millis(3));
            (t.cuStreamQuery)(s) == OK
        };
        // This ends the wait, by any comparison.
        words[0].store([value, value, u64::MAX, 0][flags as usize], Ordering::Release);
        // SAFETY: as above.
        assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
        ready
    };
    assert!(holds(3, 3, 0) && holds(4, 3, 0) && !holds(2, 3, 0));
    assert!(holds(2, 0xffff_fff0, 0), "cyclically later");
    assert!(holds(3, 3, 1) && !holds(4, 3, 1));
    assert!(holds(6, 2, 2) && !holds(4, 2, 2));
    assert!(holds(1, 2, 3) && !holds(0xffff_fffd, 2, 3));
    // SAFETY: handles are live; the address is refused.
    unsafe {
        let misaligned = t.cuStreamWaitValue64_v2.expect("ops")(s, at(&words[0]) + 4, 0, 0);
        assert_eq!(misaligned, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let t = on(6);
    let words = pinned(&t, 2);
    let mut blocking = std::ptr::null_mut();
    let free = stream(&t);
    let p = alloc(&t, 4);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuStreamCreate)(&raw mut blocking, 0), OK);
        let wait = t.cuStreamWaitValue64_v2.expect("ops");
        assert_eq!(wait(free, at(&words[1]), 1, GEQ), OK);
        assert_eq!((t.cuMemsetD32_v2)(p, 1, 1), OK);
        assert_eq!((t.cuStreamSynchronize)(std::ptr::null_mut()), OK);
        assert_eq!(wait(blocking, at(&words[0]), 1, GEQ), OK);
        assert_eq!((t.cuMemsetD32_v2)(p, 2, 1), OK);
        assert_eq!((t.cuStreamQuery)(std::ptr::null_mut()), NOT_READY);
        words[0].store(1, Ordering::Release);
        assert_eq!(read::<u32>(&t, p, 1), [2]);
        assert_eq!((t.cuStreamQuery)(free), NOT_READY);
        words[1].store(1, Ordering::Release);
        assert_eq!((t.cuCtxSynchronize)(), OK);
        assert_eq!((t.cuStreamQuery)(free), OK);
    }
}

#[test]
fn free_waits_for_work_that_may_use_the_memory() {
    let t = on(7);
    let (s, words) = (stream(&t), pinned(&t, 1));
    let p = alloc(&t, 8);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(s, at(&words[0]), 1, GEQ), OK);
        assert_eq!((t.cuMemsetD8Async)(p, 1, 8, s), OK);
    }
    let freed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let t = on(7);
            // SAFETY: the allocation is live.
            assert_eq!(unsafe { (t.cuMemFree_v2)(p) }, OK);
            freed.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!freed.load(Ordering::Acquire));
        words[0].store(1, Ordering::Release);
    });
    assert!(freed.load(Ordering::Acquire));
    // SAFETY: the handle is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
}

#[test]
fn events_order_streams_and_measure_time() {
    let t = on(0);
    let (a, b, words) = (stream(&t), stream(&t), pinned(&t, 2));
    let (begin, end, bare) = (event(&t, 0), event(&t, 0), event(&t, 2));
    let mut ms = -1.0f32;
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuEventQuery)(begin), OK, "never recorded counts as complete");
        assert_eq!((t.cuEventRecord)(begin, a), OK);
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(a, at(&words[0]), 1, GEQ), OK);
        assert_eq!((t.cuEventRecord)(end, a), OK);
        assert_eq!((t.cuStreamWaitEvent)(b, end, 0), OK);
        assert_eq!(t.cuStreamWriteValue64_v2.expect("ops")(b, at(&words[1]), 9, 0), OK);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((t.cuEventQuery)(end), NOT_READY);
        assert_eq!((t.cuEventElapsedTime)(&raw mut ms, begin, end), NOT_READY);
        assert_eq!(words[1].load(Ordering::Acquire), 0);
        words[0].store(1, Ordering::Release);
        assert_eq!((t.cuEventSynchronize)(end), OK);
        assert_eq!((t.cuStreamSynchronize)(b), OK);
        assert_eq!(words[1].load(Ordering::Acquire), 9);
        assert_eq!((t.cuEventElapsedTime)(&raw mut ms, begin, end), OK);
        assert!((19.0..10_000.0).contains(&ms), "{ms}");
        assert_eq!((t.cuEventRecord)(bare, a), OK);
        let untimed = (t.cuEventElapsedTime)(&raw mut ms, begin, bare);
        assert_eq!(untimed, CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    static CODE: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn note(data: *mut c_void) {
        let n = data as usize as u32;
        // In order: each is the successor of the last.
        if CALLS.compare_exchange(n, n + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            CALLS.store(1000, Ordering::SeqCst);
        }
        // SAFETY: no arguments.
        CODE.store(unsafe { (driver_table().cuCtxSynchronize)() }.0, Ordering::SeqCst);
    }
    let t = on(0);
    let s = stream(&t);
    for n in 0..10usize {
        // SAFETY: the function takes a number for a pointer.
        assert_eq!(unsafe { (t.cuLaunchHostFunc)(s, Some(note), n as *mut c_void) }, OK);
    }
    // SAFETY: the handle is live.
    assert_eq!(unsafe { (t.cuStreamSynchronize)(s) }, OK);
    assert_eq!(CALLS.load(Ordering::SeqCst), 10);
    assert_eq!(CODE.load(Ordering::SeqCst), CUresult::CUDA_ERROR_NOT_PERMITTED.0);
}

#[test]
fn asynchronous_copies_from_pageable_memory_take_the_value_of_the_call() {
    let t = on(0);
    let (s, words) = (stream(&t), pinned(&t, 1));
    let p = alloc(&t, 64);
    let mut source = [1u8; 64];
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!(t.cuStreamWaitValue64_v2.expect("ops")(s, at(&words[0]), 1, GEQ), OK);
        assert_eq!((t.cuMemcpyHtoDAsync_v2)(p, source.as_ptr().cast(), 64, s), OK);
        source.fill(2);
        words[0].store(1, Ordering::Release);
        assert_eq!((t.cuStreamSynchronize)(s), OK);
    }
    assert_eq!(read::<u8>(&t, p, 64), [1; 64]);
}

/// As an H200 does: the second version of these calls has no such write.
#[test]
fn a_value_without_a_barrier_is_refused() {
    let t = on(0);
    let (s, words) = (stream(&t), pinned(&t, 1));
    const NO_BARRIER: u32 = 1;
    // SAFETY: handles and addresses are live, the list has one entry, and zeros are a valid one.
    unsafe {
        let mut batch: CUstreamBatchMemOpParams = std::mem::zeroed();
        batch.writeValue.operation = CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32;
        batch.writeValue.address = at(&words[0]);
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(t.cuStreamWriteValue32_v2.expect("ops")(s, at(&words[0]), 1, NO_BARRIER), refused);
        assert_eq!(t.cuStreamWriteValue64_v2.expect("ops")(s, at(&words[0]), 1, NO_BARRIER), refused);
        for (flags, code) in [(0, OK), (NO_BARRIER, refused)] {
            batch.writeValue.flags = flags;
            assert_eq!(t.cuStreamBatchMemOp_v2.expect("ops")(s, 1, &raw mut batch, 0), code);
        }
        assert_eq!((t.cuStreamSynchronize)(s), OK);
    }
    assert_eq!(words[0].load(Ordering::Acquire), 0);
}
