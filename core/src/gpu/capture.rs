//! Captures: which graph a stream's work goes into, and what that graph holds.
//!
//! Streams join a capture through events, so captured work belongs to a graph, not to the stream that it was enqueued on.
//! The driver tells which capture that is by an id that no other capture of the process has.
//!
//! - A capture that [`begin`] began collects whatever its work uses, and [`end`] hands the collection to the maker of the
//!   executable graph, which this library alone launches.
//! - The owner of a wrapped stream may capture it and launch the graph without this library. There, whatever captured work
//!   uses becomes a *user object* of the graph (CUDA driver API, `cuGraphRetainUserObject`): the driver calls [`let_go`]
//!   once the graph, every executable graph made of it and all their launches are gone.
//!
//! User objects would do for both, but each launch of a graph that has any takes 3 us more of the GPU and 10 us more of
//! the host on an H200 (`benches/records/2026-11-22-h200-x2-ownership`).

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use cuda_driver_sys::{
    CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUuserObject_flags,
    CUuserObjectRetain_flags,
};

use super::context::Context;
use super::driver::{Driver, call};
use super::keep::KeepAlive;
use super::reaper::Released;
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// How a stream treats work that is enqueued on it now.
pub(super) enum CaptureStatus {
    /// It runs.
    None,
    /// It becomes part of a graph, if that graph's capture ends well.
    Active,
    /// It refuses it: the stream's capture was invalidated, or the stream may not be used while another is captured.
    Unusable,
}

/// The captures that [`begin`] began and that are still on, by id, and what the work of each uses.
///
/// A capture begins and ends, and is given something to hold, under this lock: the handle of a graph under capture, which
/// the driver gives out, is valid only until the capture ends.
#[derive(Default)]
struct Captures(Mutex<HashMap<u64, Vec<KeepAlive>>>);

/// Asks whether work enqueued on `stream` is captured. The stream's context is current.
///
/// # Errors
/// A driver error.
pub(super) fn status(driver: &Driver, stream: CUstream) -> Result<CaptureStatus> {
    ask(driver, stream).map(|(status, _)| status)
}

/// Begins a capture of `stream`, whose context is current, and returns the capture's id, for [`end`].
///
/// # Errors
/// A driver error; the stream is not being captured then.
pub(super) fn begin(driver: &Driver, stream: CUstream, mode: CUstreamCaptureMode) -> Result<u64> {
    let mut captures = lock(&driver.slot::<Captures>().0);
    // SAFETY: the caller vouches for the stream.
    let begun = unsafe { call!(driver, raw cuStreamBeginCapture_v2(stream, mode)) }?;
    match begun {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_ILLEGAL_STATE => {
            let message =
                "the stream is being captured already; end that capture first, or capture another stream";
            return Err(Error::usage("GraphExec::capture", message).with_code(begun.0.cast_signed()));
        }
        other => return Err(driver.error("cuStreamBeginCapture_v2", other)),
    }
    match ask(driver, stream) {
        Ok((_, Some(Capture { id, .. }))) => {
            captures.insert(id, Vec::new());
            Ok(id)
        }
        other => {
            let mut graph = ptr::null_mut();
            // SAFETY: `graph` is a live output; the capture began above.
            unsafe { call!(driver, cuStreamEndCapture(stream, &raw mut graph)) }?;
            // SAFETY: nobody else has the handle of this empty graph; destroyed once.
            unsafe { call!(driver, cuGraphDestroy(graph)) }?;
            other.and_then(|_| {
                Err(driver
                    .error("cuStreamGetCaptureInfo_v2", CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))
            })
        }
    }
}

/// Makes the capture of `stream`, and the graph that comes of it, hold all of `what`. Returns `false`, and takes nothing,
/// if the capture has ended in the meantime.
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
    let mut captures = lock(&driver.slot::<Captures>().0);
    let Capture { id, graph } = match ask(driver, stream) {
        Ok((_, Some(capture))) => capture,
        Ok((_, None)) => return Ok(false),
        Err(error) => {
            what.for_each(std::mem::forget);
            return Err(error);
        }
    };
    if let Some(held) = captures.get_mut(&id) {
        held.extend(what);
        return Ok(true);
    }
    what.map(|one| give(context, graph, one)).fold(Ok(()), Result::and).map(|()| true)
}

/// Ends the capture `id`, which began on `stream`, whose context is current. Returns the graph, and everything that its
/// work uses: the caller drops that after the graph, every executable graph made of it and all their launches.
///
/// The graph is a driver error if, for example, the capture was invalidated.
pub(super) fn end(driver: &Driver, stream: CUstream, id: u64) -> (Result<CUgraph>, Vec<KeepAlive>) {
    let mut graph = ptr::null_mut();
    let mut captures = lock(&driver.slot::<Captures>().0);
    // SAFETY: `graph` is a live output; the caller vouches for the stream.
    let ended = unsafe { call!(driver, cuStreamEndCapture(stream, &raw mut graph)) };
    (ended.map(|()| graph), captures.remove(&id).unwrap_or_default())
}

/// A capture that is on. The handle of its graph is valid until it ends.
struct Capture {
    id: u64,
    graph: CUgraph,
}

fn ask(driver: &Driver, stream: CUstream) -> Result<(CaptureStatus, Option<Capture>)> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph) = (0, ptr::null_mut());
    let (edges, count) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller vouches for the stream; status, id and graph are live outputs, and null asks for nothing.
    let result = unsafe {
        call!(
            driver,
            raw cuStreamGetCaptureInfo_v2(stream, &raw mut status, &raw mut id, &raw mut graph, edges, count)
        )
    }?;
    match (result, status) {
        (CUresult::CUDA_SUCCESS, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => {
            Ok((CaptureStatus::None, None))
        }
        (CUresult::CUDA_SUCCESS, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => {
            Ok((CaptureStatus::Active, Some(Capture { id, graph })))
        }
        (CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, _) => {
            Ok((CaptureStatus::Unusable, None))
        }
        (other, _) => Err(driver.error("cuStreamGetCaptureInfo_v2", other)),
    }
}

/// Makes `graph`, whose capture cannot end meanwhile, hold `what`.
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
