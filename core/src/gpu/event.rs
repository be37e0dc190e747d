//! Events: points in a stream that others wait for, and the time between two of them.

use std::ptr;

use cuda_driver_sys::{CUevent, CUevent_flags, CUstream};

use super::context::Context;
use super::driver::call;
use super::outcomes::Outcomes;
use super::query::{is_reached, poll_until};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Ordering};

/// A point in a stream's work. Recording it again moves it.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    timed: bool,
    captured: AtomicBool,
    outcomes: Outcomes,
    context: Context,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle, accepted by the driver on any thread.
unsafe impl Send for Event {}
// SAFETY: the driver serialises concurrent calls on one event; nothing else in it changes.
unsafe impl Sync for Event {}

impl Event {
    /// An event that only orders. An event never recorded counts as done.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(context: &Context) -> Result<Self> {
        Self::create(context, false)
    }

    /// An event that also takes the time, for [`Event::elapsed_ms`].
    ///
    /// # Errors
    /// A driver error.
    pub fn timed(context: &Context) -> Result<Self> {
        Self::create(context, true)
    }

    fn create(context: &Context, timed: bool) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags =
            if timed { CUevent_flags::CU_EVENT_DEFAULT } else { CUevent_flags::CU_EVENT_DISABLE_TIMING };
        // SAFETY: `raw` is a live output; the event is destroyed once: in `Drop`, or by the caller of `into_raw`.
        context.noted(unsafe { call!(context.driver(), cuEventCreate(&raw mut raw, flags.0)) })?;
        Ok(Self {
            raw,
            timed,
            captured: AtomicBool::new(false),
            outcomes: Outcomes::default(),
            context: context.clone(),
        })
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Puts the event behind everything enqueued on `stream` so far. The context is current.
    ///
    /// # Safety
    /// The stream must be alive.
    ///
    /// # Errors
    /// A driver error, for example that the stream belongs to another context.
    pub(super) unsafe fn record_raw(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is alive, and the caller vouches for the stream.
        unsafe { call!(self.context.driver(), cuEventRecord(self.raw, stream)) }
    }

    pub(super) fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Whether it was last recorded in a stream under capture: then it stands for no work that runs. The driver is not asked,
    /// because a query of a captured event invalidates the capture.
    pub(crate) fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Notes whether the stream that it was just recorded in is under capture.
    pub(super) fn note_captured(&self, captured: bool) {
        self.captured.store(captured, Ordering::Relaxed);
    }

    /// Whether the work before it is done.
    ///
    /// # Errors
    /// A failure of that work, or why kernels gave up a wait; a driver error.
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.context.enter()?;
        let pending = self.outcomes.pending();
        let done = self.context.noted(is_reached(self.context.driver(), self.raw))?;
        if done {
            self.outcomes.settle(pending, "event")?;
        }
        Ok(done)
    }

    /// Waits until the work before it is done.
    ///
    /// # Errors
    /// Timeout, a failure of that work, or why kernels gave up a wait, as [`Stream::synchronize`] says.
    ///
    /// [`Stream::synchronize`]: super::Stream::synchronize
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        poll_until("synchronize", "an event", deadline.into(), || self.is_done())
    }

    /// Milliseconds between `start` and this event, both timed and done.
    ///
    /// # Errors
    /// Invalid usage if one of them is not timed; a driver error, for example that one is not done.
    pub fn elapsed_ms(&self, start: &Self) -> Result<f32> {
        if !(self.timed && start.timed) {
            return Err(Error::usage("elapsed_ms", "both events must be made with Event::timed"));
        }
        let _entered = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: `ms` is a live output and both events are alive.
        unsafe { call!(self.context.driver(), cuEventElapsedTime(&raw mut ms, start.raw, self.raw)) }?;
        Ok(ms)
    }

    /// Hands over the handle: the caller destroys it.
    pub(super) fn into_raw(self) -> CUevent {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the field is read once and `this` is neither used nor dropped after.
        drop(unsafe { ptr::read(&raw mut this.context) });
        // SAFETY: as above.
        drop(unsafe { ptr::read(&raw mut this.outcomes) });
        this.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let driver = self.context.driver();
        if driver.forked() {
            return;
        }
        // SAFETY: ours, destroyed once. An event not yet reached is freed by the driver when it is: this never waits.
        let destroy = || unsafe { call!(driver, cuEventDestroy_v2(self.raw)) };
        driver.note_drop(self.context.enter().and_then(|_entered| destroy()));
    }
}
