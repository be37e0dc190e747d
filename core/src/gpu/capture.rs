//! Captures: which graph a stream's work goes into, and what that graph holds.
//!
//! Streams join a capture through events, and the owner of a wrapped stream may capture it, so neither the stream that
//! work is enqueued on nor this library knows how long captured work can run again. The graph does. Whatever captured
//! work uses becomes a *user object* of the graph (CUDA driver API, `cuGraphRetainUserObject`): the driver calls
//! [`let_go`] once the graph, every executable graph made of it and all their launches are gone.

use std::ffi::c_void;
use std::ptr;

use cuda_driver_sys::{
    CUgraph, CUresult, CUstream, CUstreamCaptureStatus, CUuserObject_flags, CUuserObjectRetain_flags,
};

use super::context::Context;
use super::driver::{Driver, call};
use super::keep::KeepAlive;
use super::reaper::Released;
use crate::error::Result;
use crate::sync::{Mutex, lock};

/// What the driver does with work that is enqueued on a stream now.
pub(super) enum CaptureStatus {
    /// It runs.
    None,
    /// It becomes part of a graph, if that graph's capture ends well.
    Active,
    /// It refuses it: the stream's capture was invalidated, or the stream may not be used while another is captured.
    Unusable,
}

/// A capture ends, and a graph under capture is given something to hold, under this lock: the handle of the graph,
/// which the driver gives out, is valid only until the capture ends.
#[derive(Default)]
pub(super) struct EndLock(Mutex<()>);

/// Asks whether work enqueued on `stream` is captured. The stream's context is current.
///
/// # Errors
/// A driver error.
pub(super) fn status(driver: &Driver, stream: CUstream) -> Result<CaptureStatus> {
    ask(driver, stream).map(|(status, _)| status)
}

/// Makes the graph that `stream` is captured into hold all of `what`. Returns `false`, and takes nothing, if the
/// capture has ended in the meantime.
///
/// The context is current. The caller lets no event be recorded on the stream between the work that uses `what` and
/// the end of this call. A capture that ends in between is therefore not joined by that work, and fails.
///
/// # Errors
/// A driver error. Items that the graph could not be given are leaked, because the work that uses them is captured.
pub(super) fn hold(
    context: &Context,
    stream: CUstream,
    what: impl Iterator<Item = KeepAlive>,
) -> Result<bool> {
    let driver = context.driver();
    let _ending = lock(&driver.slot::<EndLock>().0);
    let graph = match ask(driver, stream) {
        Ok((_, Some(graph))) => graph,
        Ok((_, None)) => return Ok(false),
        Err(error) => {
            what.for_each(std::mem::forget);
            return Err(error);
        }
    };
    what.map(|one| give(context, graph, one)).fold(Ok(()), Result::and).map(|()| true)
}

/// Ends the capture that began on `stream`, whose context is current, and returns the graph.
///
/// # Errors
/// A driver error, for example that the capture was invalidated.
pub(super) fn end(driver: &Driver, stream: CUstream) -> Result<CUgraph> {
    let mut graph = ptr::null_mut();
    let _ending = lock(&driver.slot::<EndLock>().0);
    // SAFETY: `graph` is a live output; the caller vouches for the stream.
    unsafe { call!(driver, cuStreamEndCapture(stream, &raw mut graph)) }?;
    Ok(graph)
}

fn ask(driver: &Driver, stream: CUstream) -> Result<(CaptureStatus, Option<CUgraph>)> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut graph = ptr::null_mut();
    let (id, edges, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller vouches for the stream; status and graph are live outputs, and null asks for nothing.
    let result = unsafe {
        call!(
            driver,
            raw cuStreamGetCaptureInfo_v2(stream, &raw mut status, id, &raw mut graph, edges, count)
        )
    }?;
    match (result, status) {
        (CUresult::CUDA_SUCCESS, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => {
            Ok((CaptureStatus::None, None))
        }
        (CUresult::CUDA_SUCCESS, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => {
            Ok((CaptureStatus::Active, Some(graph)))
        }
        (CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, _) => {
            Ok((CaptureStatus::Unusable, None))
        }
        (other, _) => Err(driver.error("cuStreamGetCaptureInfo_v2", other)),
    }
}

/// Makes `graph`, which is being captured and cannot end meanwhile, hold `what`.
fn give(context: &Context, graph: CUgraph, what: KeepAlive) -> Result<()> {
    let driver = context.driver();
    let data = Box::into_raw(Box::new(Released::new(context, what)));
    let alone = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0;
    let moved = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE.0;
    let mut object = ptr::null_mut();
    // An error leaks `data` on purpose: the work is captured and may run.
    // SAFETY: `object` is a live output. `data` belongs to the driver until it passes it to `let_go`, once.
    unsafe { call!(driver, cuUserObjectCreate(&raw mut object, data.cast(), Some(let_go), 1, alone)) }?;
    // SAFETY: both handles are good; the one reference to the object, ours, becomes the graph's.
    unsafe { call!(driver, cuGraphRetainUserObject(graph, object, 1, moved)) }
}

/// The driver calls this once, on any thread, when nothing that uses the item in `data` can run any more. A callback
/// may not call the driver, and dropping the item may, so it is queued for the next [`Context::reap`].
unsafe extern "C" fn let_go(data: *mut c_void) {
    // SAFETY: `give` made it of a box, for this one call.
    let released = unsafe { Box::from_raw(data.cast::<Released>()) };
    released.defer();
}
