//! The calls for streams, and for host functions in streams.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{
    CUcontext, CUevent, CUevent_wait_flags, CUhostFn, CUresult, CUstream, CUstream_flags, CUstreamCallback,
};

use super::{INVALID_VALUE, context, entries};
use crate::abi::{Result, not_supported};
use crate::handles;
use crate::machine::{Device, Machine, machine};
use crate::stream::event::EventState;
use crate::stream::host::HostCall;
use crate::stream::streams::Stream;
use crate::stream::work::Work;

entries! {
    fn cuStreamCreate(stream: *mut CUstream => out, flags: c_uint) {
        stream.set(create(flags, 0)?);
        Ok(())
    }

    fn cuStreamCreateWithPriority(stream: *mut CUstream => out, flags: c_uint, priority: c_int) {
        stream.set(create(flags, priority)?);
        Ok(())
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        let machine = machine()?;
        let stream = machine.streams.remove(stream)?;
        machine.devices[stream.device].streams.destroy(&machine.captures, &stream);
        Ok(())
    }

    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint => out) {
        let machine = machine()?;
        let stream = find(machine, context::current(machine)?, stream)?;
        flags.set(if stream.non_blocking { CUstream_flags::CU_STREAM_NON_BLOCKING.0 } else { 0 });
        Ok(())
    }

    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int => out) {
        let machine = machine()?;
        priority.set(find(machine, context::current(machine)?, stream)?.priority);
        Ok(())
    }

    fn cuStreamGetCtx(stream: CUstream, owner: *mut CUcontext => out) {
        let machine = machine()?;
        owner.set(context::handle(find(machine, context::current(machine)?, stream)?.device));
        Ok(())
    }

    fn cuStreamQuery(stream: CUstream) {
        let machine = machine()?;
        let stream = find(machine, context::current(machine)?, stream)?;
        not_capturing(&stream)?;
        let done = machine.pending(&stream)?.iter().all(|op| op.is_done());
        machine.devices[stream.device].check()?;
        if done { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let machine = machine()?;
        let stream = find(machine, context::current(machine)?, stream)?;
        not_capturing(&stream)?;
        for op in machine.pending(&stream)? {
            op.wait();
        }
        machine.devices[stream.device].synchronized()
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        let machine = machine()?;
        let stream = find(machine, context::current(machine)?, stream)?;
        let event = machine.events.get(event)?;
        match CUevent_wait_flags(flags) {
            CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT => {}
            CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL if stream.capture().is_none() => {
                return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
            }
            CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL => {
                return Err(not_supported("cuStreamWaitEvent: CU_EVENT_WAIT_EXTERNAL: graphs do not wait for events"));
            }
            _ => return Err(INVALID_VALUE),
        }
        if let Some(capture) = stream.capture() {
            return machine.captures.wait(&capture, &stream.participant, event.state());
        }
        match event.state() {
            EventState::Unrecorded => Ok(()),
            EventState::Recorded(op) => {
                machine.devices[stream.device].streams.submit(&stream, &[op], Work::Marker).map(|_| ())
            }
            EventState::Captured(capture, nodes) => machine.captures.join(capture, &stream.participant, nodes),
        }
    }

    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint) {
        let machine = machine()?;
        let found = find(machine, context::current_even_failed(machine)?, stream)?;
        let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        if let Some(capture) = found.capture() {
            capture.invalidate();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        machine.submit(&found, Work::Host(HostCall::Callback(callback, stream, data))).map(|_| ())
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let machine = machine()?;
        let stream = find(machine, context::current(machine)?, stream)?;
        let function = function.ok_or(INVALID_VALUE)?;
        machine.submit(&stream, Work::Host(HostCall::Function(function, data))).map(|_| ())
    }
}

/// Looks a stream up. Null and `CU_STREAM_LEGACY` are the legacy stream of the current context.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for the per-thread default stream; `CUDA_ERROR_INVALID_HANDLE` for a stream that was
/// destroyed, also together with its context; the sticky error of the stream's context.
pub(super) fn find(machine: &Machine, current: &Device, stream: CUstream) -> Result<Arc<Stream>> {
    match stream as usize {
        0 | 1 => Ok(Arc::clone(current.streams.legacy())),
        2 => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => {
            let stream = machine.streams.get(stream)?;
            machine.devices[stream.device].check()?;
            Ok(stream)
        }
    }
}

fn create(flags: u32, priority: i32) -> Result<CUstream> {
    let machine = machine()?;
    let device = context::current(machine)?;
    if flags & !CUstream_flags::CU_STREAM_NON_BLOCKING.0 != 0 {
        return Err(INVALID_VALUE);
    }
    let (least, greatest) = context::PRIORITIES;
    let priority = priority.clamp(greatest, least);
    Ok(handles::pointer(device.streams.create(&machine.streams, flags != 0, priority)))
}

/// # Errors
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` on a capturing stream. The call also invalidates the capture.
fn not_capturing(stream: &Stream) -> Result {
    let Some(capture) = stream.capture() else { return Ok(()) };
    capture.invalidate();
    Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}
