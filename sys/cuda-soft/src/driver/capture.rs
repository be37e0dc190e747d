//! The calls for stream capture.

use cuda_driver_sys::{CUgraph, CUstream, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status};
use std::sync::Arc;

use super::{INVALID_VALUE, context, entries, stream};
use crate::handles;
use crate::machine::machine;
use crate::stream::graph::Graph;

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
        let work = machine.captures.end(&stream.participant)?;
        graph.set(handles::pointer(machine.graphs.add(Arc::new(Graph::new(&machine.nodes, work)))));
        Ok(())
    }

    fn cuStreamIsCapturing(on: CUstream, status: *mut Status => out) {
        let machine = machine()?;
        let stream = stream::find(machine, context::current(machine)?, on)?;
        if stream.is_legacy() {
            // Returns the error of a legacy stream while a blocking stream captures.
            machine.pending(&stream)?;
        }
        status.set(match stream.capture() {
            None => Status::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.is_valid() => Status::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        });
        Ok(())
    }
}
