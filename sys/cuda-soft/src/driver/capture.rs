//! The calls for stream capture.

use std::sync::Arc;

use cuda_driver_sys::{
    CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status,
    cuuint64_t,
};

use super::{INVALID_VALUE, context, entries, stream};
use crate::handles;
use crate::machine::machine;
use crate::stream::capture::Capture;
use crate::stream::graph::Graph;

entries! {
    fn cuStreamBeginCapture_v2(on: CUstream, mode: Mode) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        if mode.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(INVALID_VALUE);
        }
        let graph = Arc::new(Graph::default());
        let handle = machine.graphs.add(Arc::clone(&graph));
        let begun = machine.captures.begin(&stream, mode, handle, graph);
        if begun.is_err() {
            let _ = machine.graphs.remove_number(handle);
        }
        begun
    }

    fn cuStreamEndCapture(on: CUstream, graph: *mut CUgraph => out) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        graph.set(std::ptr::null_mut());
        let (handle, work) = machine.captures.end(&stream)?;
        match work {
            Ok(work) => machine.graphs.get_number(handle)?.fill(machine, work),
            Err(code) => {
                let _ = machine.graphs.remove_number(handle);
                return Err(code);
            }
        }
        graph.set(handles::pointer(handle));
        Ok(())
    }

    fn cuStreamIsCapturing(on: CUstream, status: *mut Status => out) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        if stream.is_legacy() {
            // Returns the error of a legacy stream while a blocking stream captures.
            stream.pending(machine)?;
        }
        status.set(status_of(stream.capture().as_deref()));
        Ok(())
    }

    /// Does not give dependencies: asking for them is `CUDA_ERROR_NOT_SUPPORTED`.
    fn cuStreamGetCaptureInfo_v2(
        on: CUstream,
        status: *mut Status => out,
        id: *mut cuuint64_t,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        count: *mut usize,
    ) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        if !dependencies.is_null() || !count.is_null() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if stream.is_legacy() {
            stream.pending(machine)?;
        }
        let capture = stream.capture();
        status.set(status_of(capture.as_deref()));
        if let Some(capture) = capture {
            // SAFETY: each is null or good for one value, by contract.
            unsafe {
                if !id.is_null() {
                    id.write(capture.id);
                }
                if !graph.is_null() {
                    graph.write(handles::pointer(capture.graph));
                }
            }
        }
        Ok(())
    }
}

fn status_of(capture: Option<&Capture>) -> Status {
    match capture {
        None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(capture) if capture.is_valid() => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(_) => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    }
}
