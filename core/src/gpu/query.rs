//! Questions about streams and events by their raw handles, and waiting for a yes.

use std::ptr::null_mut;

use cuda_driver_sys::{CUevent, CUresult, CUstream, CUstreamCaptureStatus};

use super::context::ThreadCaptureMode;
use super::driver::{Driver, call};
use crate::deadline::{Backoff, Deadline};
use crate::error::Result;

/// Whether a live stream is idle; its context is current. During a capture it is not, and is not asked: a query would
/// invalidate the capture.
pub(super) fn is_idle(driver: &Driver, stream: CUstream) -> Result<bool> {
    if is_capturing(driver, stream)? {
        return Ok(false);
    }
    let _relaxed = ThreadCaptureMode::relaxed(driver)?;
    // SAFETY: the caller vouches for the stream.
    answer(driver, "cuStreamQuery", unsafe { call!(driver, raw cuStreamQuery(stream)) }?)
}

/// Whether the work is done that a live event was recorded behind. Captures of other streams go on: in the thread's
/// usual mode the driver would end them.
pub(super) fn is_reached(driver: &Driver, event: CUevent) -> Result<bool> {
    let _relaxed = ThreadCaptureMode::relaxed(driver)?;
    // SAFETY: the caller vouches for the event.
    answer(driver, "cuEventQuery", unsafe { call!(driver, raw cuEventQuery(event)) }?)
}

/// Whether a live stream is being captured; its context is current.
pub(super) fn is_capturing(driver: &Driver, stream: CUstream) -> Result<bool> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller vouches for the stream, and `status` is a live output.
    match unsafe { call!(driver, raw cuStreamIsCapturing(stream, &raw mut status)) }? {
        CUresult::CUDA_SUCCESS => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        // The legacy default stream while another stream is captured: not to be touched either.
        CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        other => Err(driver.error("cuStreamIsCapturing", other)),
    }
}

/// The number of the capture that a live stream is in; its context is current.
pub(super) fn capture_id(driver: &Driver, stream: CUstream) -> Result<Option<u64>> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut id = 0;
    // SAFETY: the caller vouches for the stream, both outputs are live, and the others may be null.
    unsafe {
        call!(
            driver,
            cuStreamGetCaptureInfo_v2(
                stream,
                &raw mut status,
                &raw mut id,
                null_mut(),
                null_mut(),
                null_mut()
            )
        )
    }?;
    Ok((status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE).then_some(id))
}

/// The meaning of a query's result: done, not done, or failed.
fn answer(driver: &Driver, function: &'static str, result: CUresult) -> Result<bool> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        other => Err(driver.error(function, other)),
    }
}

/// Asks `done` until it says yes, or fails, or the deadline has passed.
pub(super) fn poll_until(
    op: &'static str,
    what: &str,
    deadline: Deadline,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let mut backoff = Backoff::new();
    while !done()? {
        deadline.check(op, what)?;
        backoff.pause(deadline);
    }
    Ok(())
}
