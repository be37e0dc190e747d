//! Streams: order of work, waiting for it, and keeping alive what it uses.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::{Arc, PoisonError};

use cuda_driver_sys::{CUevent, CUstream, CUstream_flags};

use super::context::Context;
use super::driver::call;
use super::event::Event;
use super::reaper::{Retired, is_capturing, is_idle};
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Something that unfinished work uses and that therefore must not be dropped yet.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// A queue of device work. Cheap to clone; clones are the same queue.
///
/// Dropping the last clone neither waits nor cancels: unfinished work goes on, with everything it
/// [retains](Stream::retain), and is cleaned up by a later call.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

pub(super) struct StreamInner {
    raw: CUstream,
    owned: bool,
    kept: Mutex<Kept>,
    context: Context,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle, accepted by the driver on any thread.
unsafe impl Send for StreamInner {}
// SAFETY: the driver serialises concurrent calls on one stream; our own state is behind a mutex.
unsafe impl Sync for StreamInner {}

/// The retire list, in two halves: what was retained before the event, and since.
#[derive(Default)]
struct Kept {
    open: Vec<KeepAlive>,
    closed: Option<(Event, Vec<KeepAlive>)>,
    /// While a capture is on: what the graph will own instead.
    captured: Option<Vec<KeepAlive>>,
}

/// How many retained things make it worth asking whether the earlier ones are free.
const BATCH: usize = 32;

impl Stream {
    /// A new stream that does not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self> {
        context.reap();
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: `raw` is a live output; the stream is destroyed once, when the last clone is gone and it is idle.
        context.noted(unsafe { call!(context.driver(), cuStreamCreate(&raw mut raw, flags)) })?;
        Ok(Self::make(context, raw, true))
    }

    /// Wraps a stream that belongs to somebody else, such as the framework's current stream.
    ///
    /// # Safety
    /// `raw` must be a stream of `context`'s device context (null is the legacy default stream), and must not be
    /// destroyed before the last clone of the result is dropped.
    pub unsafe fn from_raw(context: &Context, raw: CUstream) -> Self {
        Self::make(context, raw, false)
    }

    fn make(context: &Context, raw: CUstream, owned: bool) -> Self {
        let inner = Arc::new(StreamInner { raw, owned, kept: Mutex::default(), context: context.clone() });
        context.watch(raw, Arc::downgrade(&inner));
        Self { inner }
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUstream {
        self.inner.raw
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Keeps `what` alive until all work enqueued so far is done. Under [`GraphExec::capture`](super::GraphExec::capture)
    /// that is as long as the graph lives; under a capture that somebody else began on a wrapped stream, for ever.
    ///
    /// Call it after enqueuing the work. It never waits. Do not retain the stream itself: it would never be dropped.
    ///
    /// # Errors
    /// What the driver says; `what` is kept in any case.
    pub fn retain(&self, what: KeepAlive) -> Result<()> {
        if !self.inner.owned && !self.is_recording() && self.is_capturing()? {
            // The owner of the stream captures it: their graph may run this work at any later time, and it cannot be
            // told to hold anything.
            log::debug!("kept for ever, because the stream is being captured by its owner");
            std::mem::forget(what);
            return Ok(());
        }
        let mut done = Vec::new();
        let result = lock(&self.inner.kept).retain(self, what, &mut done);
        // Dropped outside the lock: a buffer's Drop looks at every stream.
        drop(done);
        result
    }

    /// [`retain`](Self::retain) for each of `what`, also if one of them is an error: the first one is returned.
    ///
    /// # Errors
    /// As for [`retain`](Self::retain).
    pub fn retain_all(&self, what: impl IntoIterator<Item = KeepAlive>) -> Result<()> {
        what.into_iter().map(|one| self.retain(one)).fold(Ok(()), Result::and)
    }

    /// Whether all work enqueued so far is done. During a capture it is not.
    ///
    /// # Errors
    /// A failure of the work itself, or what the driver says.
    pub fn is_idle(&self) -> Result<bool> {
        let context = self.context();
        let _entered = context.enter()?;
        context.noted(is_idle(context.driver(), self.raw()))
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// Timeout, leaving the work running; a failure of the work itself; invalid usage during a capture.
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        if self.is_capturing()? {
            return Err(Error::usage("synchronize", "the stream is being captured; end the capture first"));
        }
        poll_until("synchronize", "a stream", deadline.into(), || self.is_idle())?;
        let _entered = self.context().enter()?;
        self.inner.sweep();
        self.context().reap_waiting();
        Ok(())
    }

    /// Whether a capture into a graph is on, here or started by the stream's owner.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_capturing(&self) -> Result<bool> {
        let context = self.context();
        let _entered = context.enter()?;
        context.noted(is_capturing(context.driver(), self.raw()))
    }

    /// Lets later work of this stream begin only after the work `event` was recorded behind.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        let context = self.context();
        let _entered = context.enter()?;
        // SAFETY: both handles are alive; the driver notes the event's state at the call, not the handle.
        context.noted(unsafe { call!(context.driver(), cuStreamWaitEvent(self.raw(), event.raw(), 0)) })
    }

    fn is_recording(&self) -> bool {
        lock(&self.inner.kept).captured.is_some()
    }

    /// From now on retained things belong to the capture.
    pub(super) fn begin_keeping(&self) {
        lock(&self.inner.kept).captured = Some(Vec::new());
    }

    /// What was retained since [`Stream::begin_keeping`].
    pub(super) fn end_keeping(&self) -> Vec<KeepAlive> {
        lock(&self.inner.kept).captured.take().unwrap_or_default()
    }
}

impl Kept {
    fn retain(&mut self, stream: &Stream, what: KeepAlive, done: &mut Vec<KeepAlive>) -> Result<()> {
        if let Some(captured) = &mut self.captured {
            captured.push(what);
            return Ok(());
        }
        // An event that releases `open` will be recorded later than this: being on it once is enough.
        let recent = self.open.len().saturating_sub(BATCH);
        if self.open[recent..].iter().any(|kept| Arc::ptr_eq(kept, &what)) {
            return Ok(());
        }
        self.open.push(what);
        if self.open.len() < BATCH || stream.is_capturing()? {
            return Ok(());
        }
        let event = match self.closed.take() {
            None => Event::new(stream.context())?,
            Some((event, batch)) => match event.is_done() {
                Ok(true) => {
                    done.extend(batch);
                    event
                }
                unknown => {
                    self.closed = Some((event, batch));
                    return unknown.map(drop);
                }
            },
        };
        event.record(stream)?;
        self.closed = Some((event, std::mem::take(&mut self.open)));
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_none()
    }

    fn into_all(self) -> Vec<KeepAlive> {
        let mut all = self.open;
        all.extend(self.captured.into_iter().flatten());
        all.extend(self.closed.into_iter().flat_map(|(_, batch)| batch));
        all
    }
}

impl StreamInner {
    /// Drops what was retained, if the stream is idle; the context is current.
    pub(super) fn sweep(&self) {
        let mut kept = lock(&self.kept);
        // Asked under the lock: what is on the list was retained after its work, which is therefore done.
        if kept.is_empty() || !is_idle(self.context.driver(), self.raw).unwrap_or(false) {
            return;
        }
        let done = std::mem::take(&mut *kept);
        // A buffer's Drop looks at every stream: not under the lock.
        drop(kept);
        drop(done);
    }

    /// An event behind everything enqueued, for a stream that may vanish.
    fn mark(&self) -> Result<CUevent> {
        let event = Event::new(&self.context)?;
        // SAFETY: both are alive.
        unsafe { call!(self.context.driver(), cuEventRecord(event.raw(), self.raw)) }?;
        Ok(event.into_raw())
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let kept = std::mem::take(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner));
        let context = self.context.clone();
        let driver = context.driver();
        let Ok(_entered) = context.enter() else {
            // A forked child, or the process is exiting: nothing can be known or done.
            std::mem::forget(kept);
            return;
        };
        match is_idle(driver, self.raw) {
            Ok(true) => {
                context.unwatch(self, None);
                if self.owned {
                    // SAFETY: ours, idle, and destroyed here once.
                    driver.note_drop(unsafe { call!(driver, cuStreamDestroy_v2(self.raw)) });
                }
                drop(kept);
            }
            Ok(false) => match if self.owned { Ok(None) } else { self.mark().map(Some) } {
                Ok(event) => {
                    let (stream, owned) = (self.raw, self.owned);
                    let kept = kept.into_all();
                    context.unwatch(
                        self,
                        Some(Retired { context: context.clone(), stream, owned, event, kept }),
                    );
                }
                Err(error) => {
                    // The stream is its owner's and may vanish: it cannot be asked any more.
                    context.unwatch(self, None);
                    log::error!("leaking what unfinished work used: {}", context.note(error));
                    std::mem::forget(kept);
                }
            },
            Err(error) => {
                // Nothing in a lost context can be known to be done.
                context.unwatch(self, None);
                std::mem::forget(kept);
                driver.note_drop(Err(context.note(error)));
            }
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamInner { raw, owned, context, .. } = &*self.inner;
        f.debug_struct("Stream")
            .field("raw", raw)
            .field("owned", owned)
            .field("context", context)
            .finish_non_exhaustive()
    }
}

/// Asks `done` until it says so.
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
