use cuda_driver_sys::{CUresult, CUstreamCaptureMode as Mode};

use super::*;

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

fn event(t: &DriverTable) -> cuda_driver_sys::CUevent {
    let mut event = std::ptr::null_mut();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { (t.cuEventCreate)(&raw mut event, 2) }, OK);
    event
}

/// Ends a capture and returns the result code.
fn end(t: &DriverTable, s: CUstream) -> CUresult {
    let mut graph = std::ptr::null_mut();
    // SAFETY: handles are live, the pointer is to a local.
    unsafe { (t.cuStreamEndCapture)(s, &raw mut graph) }
}

#[test]
fn captured_work_runs_at_each_launch_of_the_graph() {
    let t = on(0);
    let (s, side) = (stream(&t), stream(&t));
    let (fork, join) = (event(&t), event(&t));
    let p = alloc(&t, 16);
    write(&t, p, &[1u32, 2, 3, 4]);
    let (mut graph, mut exec, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuMemcpyDtoDAsync_v2)(p + 8, p + 4, 4, s), OK);
        assert_eq!((t.cuEventRecord)(fork, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
        assert_eq!((t.cuMemcpyDtoDAsync_v2)(p + 12, p + 8, 4, side), OK);
        assert_eq!((t.cuEventRecord)(join, side), OK);
        assert_eq!((t.cuMemcpyDtoDAsync_v2)(p + 4, p, 4, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(s, join, 0), OK);
        assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
        assert_eq!((t.cuGraphGetNodes)(graph, std::ptr::null_mut(), &raw mut count), OK);
        assert_eq!(count, 3);
        assert_eq!(read::<u32>(&t, p, 4), [1, 2, 3, 4], "nothing has run");
        assert_eq!((t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0), OK);
        assert_eq!((t.cuGraphDestroy)(graph), OK);
        assert_eq!((t.cuGraphUpload)(exec, s), OK);
        for expected in [[1, 1, 2, 2], [1, 1, 1, 1]] {
            assert_eq!((t.cuGraphLaunch)(exec, s), OK);
            assert_eq!((t.cuStreamSynchronize)(s), OK);
            assert_eq!(read::<u32>(&t, p, 4), expected);
        }
        assert_eq!((t.cuGraphExecDestroy)(exec), OK);
        assert_eq!((t.cuGraphLaunch)(exec, s), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

unsafe extern "C" fn count(data: *mut std::ffi::c_void) {
    // SAFETY: `Objects` passes a counter that outlives all objects.
    let counter = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
    let t = driver_table();
    let mut devices = 0;
    // SAFETY: the pointer is to a local.
    let code = unsafe { (t.cuDeviceGetCount)(&raw mut devices) };
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_PERMITTED, "as in a host function");
    counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

/// Gives the graph under capture on `s` one object that counts its own end.
fn hold(t: &DriverTable, s: CUstream, counter: &'static std::sync::atomic::AtomicU32) {
    let (mut graph, mut object, mut id) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let mut status = cuda_driver_sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (none, data) = (std::ptr::null_mut(), (&raw const *counter).cast_mut().cast());
    // SAFETY: handles are live, pointers are to locals or null, and the counter is static.
    unsafe {
        let info = t.cuStreamGetCaptureInfo_v2;
        assert_eq!(info(s, &raw mut status, &raw mut id, &raw mut graph, none, std::ptr::null_mut()), OK);
        assert_eq!(status, cuda_driver_sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert!(id > 0);
        assert_eq!((t.cuGraphDestroy)(graph), CUresult::CUDA_ERROR_INVALID_VALUE, "it is being captured");
        assert_eq!(
            (t.cuUserObjectCreate)(&raw mut object, data, Some(count), 1, 0),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!((t.cuUserObjectCreate)(&raw mut object, data, Some(count), 1, 1), OK);
        assert_eq!((t.cuGraphRetainUserObject)(graph, object, 1, 1), OK);
        assert_eq!((t.cuUserObjectRelease)(object, 1), CUresult::CUDA_ERROR_INVALID_VALUE, "it was moved");
    }
}

#[test]
fn user_objects_live_as_long_as_their_graph_its_executables_and_launches() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ENDED: AtomicU32 = AtomicU32::new(0);
    let t = on(0);
    let (s, other) = (stream(&t), stream(&t));
    let gate = alloc(&t, 8);
    write(&t, gate, &[0_u64]);
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    let ended = || ENDED.load(Ordering::SeqCst);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        hold(&t, s, &ENDED);
        assert_eq!((t.cuMemsetD8Async)(gate, 0, 1, s), OK);
        assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
        assert_eq!((t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0), OK);
        assert_eq!((t.cuGraphDestroy)(graph), OK);
        assert_eq!(ended(), 0);
        assert_eq!((t.cuStreamWaitValue64_v2.expect("there"))(s, gate, 1, 0), OK);
        assert_eq!((t.cuGraphLaunch)(exec, s), OK);
        assert_eq!((t.cuGraphExecDestroy)(exec), OK);
        assert_eq!(ended(), 0, "the launch has not ended");
        assert_eq!((t.cuStreamWriteValue64_v2.expect("there"))(other, gate, 1, 0), OK);
        assert_eq!((t.cuStreamSynchronize)(s), OK);
        while ended() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(ended(), 1);
        // A failed capture releases its objects. An object that no graph holds ends with the last reference of the
        // caller.
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        hold(&t, s, &ENDED);
        assert_eq!((t.cuStreamSynchronize)(s), UNSUPPORTED);
        assert_eq!(end(&t, s), INVALIDATED);
        assert_eq!(ended(), 2);
        let (mut object, data) = (std::ptr::null_mut(), (&raw const ENDED).cast_mut().cast());
        assert_eq!((t.cuUserObjectCreate)(&raw mut object, data, Some(count), 2, 1), OK);
        assert_eq!((t.cuUserObjectRelease)(object, 3), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!((t.cuUserObjectRelease)(object, 2), OK);
        assert_eq!(ended(), 3);
    }
}

#[test]
fn forbidden_calls_end_the_capture_with_the_codes_of_the_driver() {
    let t = on(0);
    let s = stream(&t);
    let other = event(&t);
    let mut p = 0;
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(std::ptr::null_mut(), LOCAL), UNSUPPORTED);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!((t.cuStreamSynchronize)(s), UNSUPPORTED);
        assert_eq!((t.cuEventRecord)(other, s), INVALIDATED);
        assert_eq!(end(&t, s), INVALIDATED);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, 8), UNSUPPORTED);
        assert_eq!(end(&t, s), INVALIDATED);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, RELAXED), OK);
        assert_eq!((t.cuMemAlloc_v2)(&raw mut p, 8), OK);
        assert_eq!(end(&t, s), OK);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuStreamWaitEvent)(s, other, 0), CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert_eq!(end(&t, s), INVALIDATED);
        assert_eq!(end(&t, s), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
}

#[test]
fn forks_must_join_and_the_origin_ends() {
    let t = on(0);
    let (s, side) = (stream(&t), stream(&t));
    let fork = event(&t);
    let p = alloc(&t, 8);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuEventRecord)(fork, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
        assert_eq!((t.cuMemsetD8Async)(p, 1, 8, side), OK);
        assert_eq!((t.cuEventQuery)(fork), CUresult::CUDA_ERROR_CAPTURED_EVENT);
        assert_eq!(end(&t, s), INVALIDATED);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuEventRecord)(fork, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
        assert_eq!((t.cuMemsetD8Async)(p, 1, 8, side), OK);
        assert_eq!(end(&t, s), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuEventRecord)(fork, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
        assert_eq!(end(&t, side), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        assert_eq!(end(&t, s), INVALIDATED);

        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuStreamBeginCapture_v2)(side, LOCAL), OK);
        assert_eq!((t.cuEventRecord)(fork, side), OK);
        assert_eq!((t.cuStreamWaitEvent)(s, fork, 0), CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
        assert_eq!([end(&t, s), end(&t, side)], [INVALIDATED; 2]);
    }
}

#[test]
fn the_legacy_stream_may_not_depend_on_a_capture() {
    let t = on(9);
    let mut s = std::ptr::null_mut();
    let p = alloc(&t, 8);
    // SAFETY: handles and addresses are live.
    unsafe {
        assert_eq!((t.cuStreamCreate)(&raw mut s, 0), OK);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, RELAXED), OK);
        assert_eq!((t.cuMemsetD8_v2)(p, 1, 8), CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert_eq!(end(&t, s), INVALIDATED);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, RELAXED), OK);
        assert_eq!((t.cuCtxSynchronize)(), UNSUPPORTED);
        assert_eq!(end(&t, s), INVALIDATED);
    }
}

#[test]
fn modes_are_exchanged_per_thread_and_threads_own_their_captures() {
    let t = on(0);
    let s = stream(&t);
    let mut mode = RELAXED;
    // SAFETY: handles are live, pointers are to locals.
    unsafe {
        assert_eq!((t.cuThreadExchangeStreamCaptureMode)(&raw mut mode), OK);
        assert_eq!(mode, GLOBAL);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        alloc(&t, 8);
        let handle = s as usize;
        let elsewhere = std::thread::spawn(move || {
            let t = on(0);
            alloc(&t, 8);
            end(&t, handle as CUstream)
        });
        let code = elsewhere.join().expect("thread");
        assert_eq!(code, CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        assert_eq!(end(&t, s), OK);
        assert_eq!((t.cuThreadExchangeStreamCaptureMode)(&raw mut mode), OK);
        assert_eq!(mode, RELAXED);
    }
}

#[test]
fn a_capture_ends_when_its_origin_is_destroyed() {
    let t = on(0);
    let (s, side) = (stream(&t), stream(&t));
    let fork = event(&t);
    // SAFETY: handles are live until destroyed.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuEventRecord)(fork, s), OK);
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
        assert_eq!((t.cuStreamDestroy_v2)(s), OK);
        assert_eq!((t.cuStreamSynchronize)(side), OK, "the stream that had joined works again");
        assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), CUresult::CUDA_ERROR_CAPTURED_EVENT);
    }
    // `alloc` makes an unsafe call, which no capture of this thread forbids any more.
    alloc(&t, 16);
}

#[test]
fn a_stream_that_joined_a_capture_may_be_destroyed_in_it() {
    let t = on(0);
    let (s, p) = (stream(&t), alloc(&t, 8));
    let (fork, join) = (event(&t), event(&t));
    for joins in [true, false] {
        let side = stream(&t);
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: handles are live until destroyed, addresses are live.
        unsafe {
            write(&t, p, &[0u64]);
            assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
            assert_eq!((t.cuEventRecord)(fork, s), OK);
            assert_eq!((t.cuStreamWaitEvent)(side, fork, 0), OK);
            assert_eq!((t.cuMemsetD8Async)(p, 7, 8, side), OK);
            assert_eq!((t.cuEventRecord)(join, side), OK);
            if joins {
                assert_eq!((t.cuStreamWaitEvent)(s, join, 0), OK);
            }
            assert_eq!((t.cuStreamDestroy_v2)(side), OK);
            if !joins {
                assert_eq!(end(&t, s), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
                continue;
            }
            assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
            assert_eq!((t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0), OK);
            assert_eq!((t.cuGraphLaunch)(exec, s), OK);
            assert_eq!((t.cuStreamSynchronize)(s), OK);
            assert_eq!(
                read::<u64>(&t, p, 1),
                [0x0707_0707_0707_0707],
                "what the stream added is in the graph"
            );
        }
    }
}

#[test]
fn the_graph_of_a_capture_ends_when_its_origin_is_destroyed() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static ENDED: AtomicU32 = AtomicU32::new(0);
    let t = on(0);
    let s = stream(&t);
    // SAFETY: the handle is live.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        hold(&t, s, &ENDED);
        assert_eq!((t.cuStreamDestroy_v2)(s), OK);
    }
    assert_eq!(ENDED.load(Ordering::SeqCst), 1, "nothing can make this graph any more");
}

#[test]
fn asking_the_legacy_stream_for_its_capture_leaves_the_capture_of_a_blocking_stream_valid() {
    let t = on(11);
    let (mut s, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (legacy, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut status = cuda_driver_sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: handles are live, pointers are to locals or null.
    unsafe {
        assert_eq!((t.cuStreamCreate)(&raw mut s, 0), OK);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, RELAXED), OK);
        let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        assert_eq!((t.cuStreamIsCapturing)(legacy, &raw mut status), implicit);
        let info = t.cuStreamGetCaptureInfo_v2;
        let (id, dependencies) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(info(legacy, &raw mut status, id, &raw mut graph, dependencies, none), implicit);
        assert_eq!(end(&t, s), OK);
        assert_eq!((t.cuStreamIsCapturing)(legacy, &raw mut status), OK);
        assert_eq!(status, cuda_driver_sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!((t.cuStreamDestroy_v2)(s), OK);
    }
}

/// The flag for records and waits in a capture of events that others than the graph wait for and record.
const EXTERNAL: u32 = 1;

/// Lets a graph pass its gate when the test ends. If it fails, tests that wait for all work would hang otherwise, and
/// nobody would see why.
struct Opens<'a> {
    table: &'a DriverTable,
    stream: CUstream,
    gate: u64,
}

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.table.cuStreamWriteValue32_v2 {
            // SAFETY: nobody destroys the stream or frees the memory.
            unsafe { open(self.stream, self.gate, 2, 0) };
        }
    }
}

/// A graph launch records such an event when it is called, and the event is done when the graph has come so far. Codes are those of
/// an H200.
#[test]
fn an_external_event_is_recorded_by_each_launch_of_the_graph() {
    let t = on(0);
    let (s, other) = (stream(&t), stream(&t));
    let done = event(&t);
    let gate = alloc(&t, 16);
    write(&t, gate, &[0_u32; 4]);
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (wait, open) = (t.cuStreamWaitValue32_v2.expect("there"), t.cuStreamWriteValue32_v2.expect("there"));
    let opener = stream(&t);
    let _opens = Opens { table: &t, stream: opener, gate };
    // SAFETY: handles and addresses are live, and pointers are to locals.
    unsafe {
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!(wait(s, gate, 1, 0), OK);
        assert_eq!((t.cuMemsetD32Async)(gate + 4, 7, 1, s), OK);
        assert_eq!((t.cuEventRecordWithFlags)(done, s, EXTERNAL), OK);
        // Behind the event: the graph goes on when others may.
        assert_eq!(wait(s, gate, 2, 0), OK);
        assert_eq!((t.cuStreamEndCapture)(s, &raw mut graph), OK);
        assert_eq!((t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0), OK);
        assert_eq!((t.cuEventQuery)(done), OK, "nothing has recorded it");
        for _ in 0..2 {
            write(&t, gate, &[0_u32; 4]);
            assert_eq!((t.cuGraphLaunch)(exec, s), OK);
            assert_eq!((t.cuEventQuery)(done), CUresult::CUDA_ERROR_NOT_READY);
            assert_eq!((t.cuStreamWaitEvent)(other, done, 0), OK);
            assert_eq!((t.cuMemcpyDtoDAsync_v2)(gate + 8, gate + 4, 4, other), OK);
            assert_eq!(open(opener, gate, 1, 0), OK);
            assert_eq!((t.cuEventSynchronize)(done), OK);
            assert_eq!((t.cuStreamSynchronize)(other), OK);
            assert_eq!((t.cuStreamQuery)(s), CUresult::CUDA_ERROR_NOT_READY, "the graph has not ended");
            assert_eq!(read::<u32>(&t, gate + 8, 1), [7]);
            assert_eq!(open(opener, gate, 2, 0), OK);
            assert_eq!((t.cuStreamSynchronize)(s), OK);
        }
    }
}

#[test]
fn external_waits_are_refused_and_outside_of_captures_so_are_external_records() {
    let t = on(0);
    let s = stream(&t);
    let event = event(&t);
    // SAFETY: handles are live.
    unsafe {
        assert_eq!((t.cuEventRecordWithFlags)(event, s, EXTERNAL), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!((t.cuStreamWaitEvent)(s, event, EXTERNAL), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        assert_eq!((t.cuStreamBeginCapture_v2)(s, LOCAL), OK);
        assert_eq!((t.cuStreamWaitEvent)(s, event, EXTERNAL), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(end(&t, s), OK);
    }
}
