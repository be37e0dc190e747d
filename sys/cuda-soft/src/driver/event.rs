//! The calls for events.

use std::ffi::c_uint;
use std::sync::Arc;
use std::time::Instant;

use cuda_driver_sys::{CUevent, CUevent_flags as Flags, CUevent_record_flags, CUresult, CUstream};

use super::{INVALID_VALUE, context, entries, stream};
use crate::abi::Result;
use crate::handles;
use crate::machine::{Machine, machine};
use crate::stream::event::{Event, EventState};
use crate::stream::work::Work;

entries! {
    fn cuEventCreate(event: *mut CUevent => out, flags: c_uint) {
        let machine = machine()?;
        let device = context::current(machine)?;
        let known = Flags::CU_EVENT_BLOCKING_SYNC.0 | Flags::CU_EVENT_DISABLE_TIMING.0 | Flags::CU_EVENT_INTERPROCESS.0;
        let timing = flags & Flags::CU_EVENT_DISABLE_TIMING.0 == 0;
        if flags & !known != 0 || (timing && flags & Flags::CU_EVENT_INTERPROCESS.0 != 0) {
            return Err(INVALID_VALUE);
        }
        event.set(handles::pointer(machine.events.add(Arc::new(Event::new(device.ordinal, timing)))));
        Ok(())
    }

    fn cuEventDestroy_v2(event: CUevent) {
        machine()?.events.remove(event).map(|_| ())
    }

    fn cuEventRecord(event: CUevent, on: CUstream) {
        record(event, on, 0)
    }

    fn cuEventRecordWithFlags(event: CUevent, on: CUstream, flags: c_uint) {
        record(event, on, flags)
    }

    fn cuEventQuery(event: CUevent) {
        let machine = machine()?;
        let event = machine.events.get(event)?;
        machine.devices[event.device].check()?;
        let pending = machine.captures.pending(&event)?;
        machine.captures.permit_unsafe_call()?;
        match pending {
            Some(op) if !op.is_done() => Err(CUresult::CUDA_ERROR_NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(event: CUevent) {
        let machine = machine()?;
        let event = machine.events.get(event)?;
        machine.devices[event.device].check()?;
        let pending = machine.captures.pending(&event)?;
        machine.captures.permit_unsafe_call()?;
        if let Some(op) = pending {
            op.wait();
        }
        machine.devices[event.device].synchronized()
    }

    fn cuEventElapsedTime(milliseconds: *mut f32 => out, start: CUevent, end: CUevent) {
        let machine = machine()?;
        let (start, end) = (machine.events.get(start)?, machine.events.get(end)?);
        if start.device != end.device {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        machine.devices[start.device].check()?;
        let (start, end) = (time(machine, &start)?, time(machine, &end)?);
        let later = end.saturating_duration_since(start).as_secs_f64();
        let earlier = start.saturating_duration_since(end).as_secs_f64();
        milliseconds.set(((later - earlier) * 1e3) as f32);
        Ok(())
    }
}

/// When an event completed.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if the event has no timing or was not recorded, `CUDA_ERROR_NOT_READY` if it has not
/// completed.
fn time(machine: &Machine, event: &Event) -> Result<Instant> {
    let op = machine.captures.pending(event)?.filter(|_| event.timing);
    op.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.ended_at().ok_or(CUresult::CUDA_ERROR_NOT_READY)
}

fn record(event: CUevent, on: CUstream, flags: u32) -> Result {
    let machine = machine()?;
    let stream = stream::find(machine, context::current(machine)?, on)?;
    let event = machine.events.get(event)?;
    if event.device != stream.device {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    match (CUevent_record_flags(flags), stream.capture()) {
        (CUevent_record_flags::CU_EVENT_RECORD_DEFAULT, Some(capture)) => {
            capture.record(&stream.participant, &event)
        }
        // Adds a node that records the event each time the graph is launched.
        (CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL, Some(capture)) => {
            capture.add(&stream.participant, Work::Record(event))
        }
        (CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL, None) => Err(CUresult::CUDA_ERROR_ILLEGAL_STATE),
        (CUevent_record_flags::CU_EVENT_RECORD_DEFAULT, None) => {
            if let Some(op) = machine.submit(&stream, Work::Marker)? {
                event.set(EventState::Recorded(op));
            }
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}
