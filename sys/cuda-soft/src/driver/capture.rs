//! The calls for stream capture.

use cuda_driver_sys::{
    CUgraph, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status,
    cuuint64_t,
};

use super::{INVALID_VALUE, context, entries, stream};
use crate::handles;
use crate::machine::machine;
use crate::stream::capture::Capture;

entries! {
    fn cuStreamBeginCapture_v2(on: CUstream, mode: Mode) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        if mode.0 > Mode::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
            return Err(INVALID_VALUE);
        }
        machine.captures.begin(&stream.participant, mode)
    }

    fn cuStreamEndCapture(on: CUstream, graph: *mut CUgraph => out) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        graph.set(std::ptr::null_mut());
        graph.set(handles::pointer(machine.captures.end(&stream.participant)?));
        Ok(())
    }

    fn cuStreamIsCapturing(on: CUstream, status: *mut Status => out) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        let capture = machine.devices[stream.device].streams.capture_of(&stream)?;
        status.set(status_of(capture.as_deref()));
        Ok(())
    }

    /// Does not know dependencies: a caller that asks for them gets `CUDA_ERROR_NOT_SUPPORTED`.
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
        let capture = machine.devices[stream.device].streams.capture_of(&stream)?;
        status.set(status_of(capture.as_deref()));
        if let Some(capture) = capture {
            // SAFETY: by contract each pointer is null or valid for writes of one value.
            unsafe {
                if !id.is_null() {
                    id.write(capture.id());
                }
                if !graph.is_null() {
                    graph.write(handles::pointer(capture.graph()));
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
