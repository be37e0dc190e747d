//! Which capture a stream's work belongs to, what a graph holds, and what a thread may do meanwhile.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const THREAD_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

fn info(d: &Dut, stream: CUstream) -> (CUstreamCaptureStatus, u64, CUgraph) {
    let (mut status, mut id, mut graph) = (CUstreamCaptureStatus(99), 0, null_mut());
    ok!((d.t.cuStreamGetCaptureInfo_v2)(
        stream,
        &raw mut status,
        &raw mut id,
        &raw mut graph,
        null_mut(),
        null_mut()
    ));
    (status, id, graph)
}

fn end(d: &Dut, stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    ok!((d.t.cuStreamEndCapture)(stream, &raw mut graph));
    assert!(!graph.is_null());
    graph
}

pub(super) fn a_capture_has_an_id_and_a_graph(d: &Dut) {
    use CUstreamCaptureStatus as Status;
    let (main, side, event) = (d.stream(), d.stream(), d.event());
    assert_eq!(info(d, main).0, Status::CU_STREAM_CAPTURE_STATUS_NONE);
    let mut ids = Vec::new();
    for _ in 0..2 {
        ok!((d.t.cuStreamBeginCapture_v2)(main, THREAD_LOCAL));
        let (status, id, graph) = info(d, main);
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(info(d, side).0, Status::CU_STREAM_CAPTURE_STATUS_NONE);
        // Another stream joins the same capture.
        ok!((d.t.cuEventRecord)(event, main));
        ok!((d.t.cuStreamWaitEvent)(side, event, 0));
        let joined = info(d, side);
        assert_eq!((joined.0, joined.1), (Status::CU_STREAM_CAPTURE_STATUS_ACTIVE, id));
        assert_eq!(joined.2, graph);
        ok!((d.t.cuEventRecord)(event, side));
        ok!((d.t.cuStreamWaitEvent)(main, event, 0));
        ok!((d.t.cuGraphDestroy)(end(d, main)));
        assert_eq!(info(d, main).0, Status::CU_STREAM_CAPTURE_STATUS_NONE);
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1], "an id is used once in the life of a process");
    ok!((d.t.cuEventDestroy_v2)(event));
    for stream in [main, side] {
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
}

fn exchange(d: &Dut, mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    ok!((d.t.cuThreadExchangeStreamCaptureMode)(&raw mut mode));
    mode
}

/// Runs in a thread of its own: the mode belongs to the thread.
pub(super) fn a_thread_may_allocate_while_it_captures_if_it_says_so(d: &Dut) {
    let (t, device, context, test) = (d.t, d.device, d.context as usize, d.test);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let d = &Dut { t, device, context: context as CUcontext, test };
            ok!((d.t.cuCtxSetCurrent)(d.context));
            let stream = d.stream();
            let fresh = exchange(d, RELAXED);
            assert_eq!(fresh, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, "of a new thread");
            assert_eq!(exchange(d, fresh), RELAXED);
            // Relaxed: what may synchronise is allowed, and the capture goes on.
            ok!((d.t.cuStreamBeginCapture_v2)(stream, THREAD_LOCAL));
            let before = exchange(d, RELAXED);
            let pointer = d.alloc(4096);
            d.free(pointer);
            assert_eq!(exchange(d, before), RELAXED);
            assert_eq!(info(d, stream).0, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            ok!((d.t.cuGraphDestroy)(end(d, stream)));
            // Otherwise it is refused.
            ok!((d.t.cuStreamBeginCapture_v2)(stream, THREAD_LOCAL));
            let mut pointer = 0;
            refused!((d.t.cuMemAlloc_v2)(&raw mut pointer, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            let mut graph = null_mut();
            // SAFETY: live handles; whether the refused call has invalidated the capture is the driver's choice.
            let ended = unsafe { (d.t.cuStreamEndCapture)(stream, &raw mut graph) };
            if ended == CUresult::CUDA_SUCCESS {
                ok!((d.t.cuGraphDestroy)(graph));
            } else {
                assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            }
            ok!((d.t.cuStreamDestroy_v2)(stream));
        });
    });
}

unsafe extern "C" fn bump(user: *mut c_void) {
    // SAFETY: the cases pass a leaked counter.
    unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::Release);
}

fn object(d: &Dut, count: &'static AtomicU32) -> CUuserObject {
    let mut object = null_mut();
    let data = (&raw const *count).cast_mut().cast();
    let flags = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0;
    ok!((d.t.cuUserObjectCreate)(&raw mut object, data, Some(bump), 1, flags));
    object
}

/// The driver calls destructors in its own time.
fn wait_for(count: &AtomicU32, expected: u32) {
    let patience = Instant::now() + Duration::from_secs(20);
    while count.load(Ordering::Acquire) < expected {
        assert!(Instant::now() < patience, "the destructor is not called");
        std::thread::yield_now();
    }
    assert_eq!(count.load(Ordering::Acquire), expected);
}

pub(super) fn a_graph_holds_user_objects_until_nothing_is_left_of_it(d: &Dut) {
    let count: &'static AtomicU32 = Box::leak(Box::default());
    let counted = || count.load(Ordering::Acquire);
    let (stream, a) = (d.stream(), d.alloc(4));
    ok!((d.t.cuStreamBeginCapture_v2)(stream, THREAD_LOCAL));
    ok!((d.t.cuMemsetD32Async)(a, 5, 1, stream));
    let moved = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE.0;
    ok!((d.t.cuGraphRetainUserObject)(info(d, stream).2, object(d, count), 1, moved));
    let graph = end(d, stream);
    let mut exec = null_mut();
    ok!((d.t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0));
    ok!((d.t.cuGraphDestroy)(graph));
    ok!((d.t.cuGraphLaunch)(exec, stream));
    d.sync(stream);
    assert_eq!(counted(), 0, "what was instantiated from the graph holds it, too");
    ok!((d.t.cuGraphExecDestroy)(exec));
    wait_for(count, 1);
    // Without a launch: a graph that was made by hand, and a reference of the caller's.
    let mut graph = null_mut();
    ok!((d.t.cuGraphCreate)(&raw mut graph, 0));
    let mut nodes = 99;
    ok!((d.t.cuGraphGetNodes)(graph, null_mut(), &raw mut nodes));
    assert_eq!(nodes, 0);
    let kept = object(d, count);
    ok!((d.t.cuGraphRetainUserObject)(graph, kept, 1, 0));
    ok!((d.t.cuGraphDestroy)(graph));
    assert_eq!(counted(), 1, "the caller has a reference");
    ok!((d.t.cuUserObjectRelease)(kept, 1));
    wait_for(count, 2);
    d.free(a);
    ok!((d.t.cuStreamDestroy_v2)(stream));
}
