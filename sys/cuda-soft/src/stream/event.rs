//! Events: points in streams.

use std::sync::Arc;

use parking_lot::Mutex;

use super::op::Op;

/// One event of a context.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    /// Whether it can measure time: it was created without `CU_EVENT_DISABLE_TIMING`.
    pub(crate) timing: bool,
    state: Mutex<EventState>,
}

/// The last record of an event.
#[derive(Clone, Debug, Default)]
pub(crate) enum EventState {
    /// Never recorded. Such an event counts as complete.
    #[default]
    Unrecorded,
    /// Recorded in a stream.
    Recorded(Arc<Op>),
    /// Recorded in a capturing stream: stands for these nodes of the capture.
    Captured(CaptureId, Vec<usize>),
}

/// Identifies a capture. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaptureId(pub(super) u64);

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
}
