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
