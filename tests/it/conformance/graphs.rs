//! Stream capture and graphs.

use cuda_driver_sys::*;

use super::dut::{Dut, ok, refused};

fn capture(d: &Dut, stream: CUstream, body: impl FnOnce()) -> CUgraph {
    ok!((d.t.cuStreamBeginCapture_v2)(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    body();
    let mut graph = std::ptr::null_mut();
    ok!((d.t.cuStreamEndCapture)(stream, &raw mut graph));
    graph
}

fn instantiate(d: &Dut, graph: CUgraph) -> CUgraphExec {
    let mut exec = std::ptr::null_mut();
    ok!((d.t.cuGraphInstantiateWithFlags)(&raw mut exec, graph, 0));
    exec
}

pub(super) fn replay_of_everything(d: &Dut) {
    let (stream, module) = (d.stream(), d.module());
    let (indices, count) = (d.function(module, "indices"), d.function(module, "count"));
    let (a, counter) = (d.alloc(4096), d.alloc(64));
    ok!((d.t.cuMemsetD8_v2)(counter, 0, 64));
    ok!((d.t.cuMemsetD8_v2)(a, 0, 4096));
    ok!((d.t.cuCtxSynchronize)());
    let graph = capture(d, stream, || {
        d.launch(count, 2, 32, stream, &[counter]);
        d.launch(indices, 1, 256, stream, &[a, 100]);
        ok!((d.t.cuMemcpyDtoDAsync_v2)(a + 2048, a, 1024, stream));
        ok!((d.t.cuMemsetD32Async)(a, 5, 4, stream));
        ok!((d.t.cuStreamWriteValue64_v2.unwrap())(stream, counter + 32, 9, 0));
    });
    assert_eq!(d.download(counter, 8), [0; 8], "capturing runs nothing");
    let mut nodes = 0;
    ok!((d.t.cuGraphGetNodes)(graph, std::ptr::null_mut(), &raw mut nodes));
    assert_eq!(nodes, 5);
    let exec = instantiate(d, graph);
    ok!((d.t.cuGraphDestroy)(graph));
    ok!((d.t.cuGraphUpload)(exec, stream));
    for _ in 0..10 {
        ok!((d.t.cuGraphLaunch)(exec, stream));
    }
    d.sync(stream);
    assert_eq!(d.download(counter, 8), 640u64.to_le_bytes());
    assert_eq!(d.download(counter + 32, 8), 9u64.to_le_bytes());
    let seen = d.download_u32(a, 768);
    assert_eq!((seen[0], seen[4], seen[512], seen[767]), (5, 104, 100, 355));
    ok!((d.t.cuGraphExecDestroy)(exec));
    ok!((d.t.cuStreamDestroy_v2)(stream));
    d.free(a);
    d.free(counter);
}

pub(super) fn illegal_calls_invalidate_capture(d: &Dut) {
    let stream = d.stream();
    ok!((d.t.cuStreamBeginCapture_v2)(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    let mut status = CUstreamCaptureStatus(0);
    ok!((d.t.cuStreamIsCapturing)(stream, &raw mut status));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    refused!((d.t.cuStreamSynchronize)(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ok!((d.t.cuStreamIsCapturing)(stream, &raw mut status));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let mut graph = std::ptr::null_mut();
    refused!((d.t.cuStreamEndCapture)(stream, &raw mut graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(graph.is_null());
    ok!((d.t.cuStreamIsCapturing)(stream, &raw mut status));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    d.sync(stream);
    refused!((d.t.cuStreamEndCapture)(stream, &raw mut graph), CUDA_ERROR_ILLEGAL_STATE);
    ok!((d.t.cuStreamDestroy_v2)(stream));
}

pub(super) fn fork_and_join(d: &Dut) {
    let (main, side) = (d.stream(), d.stream());
    let (forked, joined) = (d.event(), d.event());
    let a = d.alloc(8);
    let graph = capture(d, main, || {
        ok!((d.t.cuMemsetD32Async)(a, 3, 1, main));
        ok!((d.t.cuEventRecord)(forked, main));
        ok!((d.t.cuStreamWaitEvent)(side, forked, 0));
        ok!((d.t.cuMemcpyDtoDAsync_v2)(a + 4, a, 4, side));
        ok!((d.t.cuEventRecord)(joined, side));
        ok!((d.t.cuStreamWaitEvent)(main, joined, 0));
        ok!((d.t.cuMemsetD32Async)(a, 4, 1, main));
    });
    let exec = instantiate(d, graph);
    ok!((d.t.cuGraphLaunch)(exec, main));
    d.sync(main);
    assert_eq!(d.download_u32(a, 2), [4, 3]);
    ok!((d.t.cuGraphExecDestroy)(exec));
    ok!((d.t.cuGraphDestroy)(graph));
    for stream in [main, side] {
        ok!((d.t.cuStreamDestroy_v2)(stream));
    }
    d.free(a);
}
