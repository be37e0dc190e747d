//! Events: names for points in streams.

use std::sync::Arc;
use std::time::Instant;

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use super::capture::Capture;
use super::op::Op;
use crate::machine::Result;

/// One event of a context.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    /// Not created with `CU_EVENT_DISABLE_TIMING`.
    pub(crate) timing: bool,
    state: Mutex<EventState>,
}

/// What an event was last recorded as.
#[derive(Clone, Debug, Default)]
pub(crate) enum EventState {
    /// Never; such an event counts as complete.
    #[default]
    Unrecorded,
    /// In a stream.
    Recorded(Arc<Op>),
    /// In a capturing stream: the nodes it stands for.
    Captured(Arc<Capture>, Vec<usize>),
}

impl Event {
    pub(crate) fn new(device: usize, timing: bool) -> Self {
        Self { device, timing, state: Mutex::default() }
    }

    pub(crate) fn state(&self) -> EventState {
        self.state.lock().clone()
    }

    pub(crate) fn set(&self, state: EventState) {
        *self.state.lock() = state;
    }

    /// The operation to wait for, if any.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT`.
    pub(crate) fn pending(&self) -> Result<Option<Arc<Op>>> {
        match self.state() {
            EventState::Unrecorded => Ok(None),
            EventState::Recorded(op) => Ok(Some(op)),
            EventState::Captured(capture, _) => {
                capture.invalidate();
                Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }

    /// When it completed.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` without timing or before it was recorded, `CUDA_ERROR_NOT_READY` before it
    /// completed.
    pub(crate) fn time(&self) -> Result<Instant> {
        let op = self.pending()?.filter(|_| self.timing).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        op.ended_at().ok_or(CUresult::CUDA_ERROR_NOT_READY)
    }
}
