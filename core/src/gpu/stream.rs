//! Streams: ordering work, waiting for it, and keeping alive everything it uses.

use std::fmt;
use std::ptr;
use std::sync::{Arc, PoisonError, Weak};

use cuda_driver_sys::{CUevent, CUstream, CUstream_flags};

use super::capture::{self, CaptureStatus};
use super::context::Context;
use super::driver::call;
use super::event::Event;
use super::gate::Gate;
use super::keep::KeepAlive;
use super::kept::Kept;
use super::outcomes::Outcomes;
use super::query::{capture_id, is_capturing, is_idle, poll_until};
use super::status::is_sticky;
use super::unfinished::{LastWork, Sweep};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::outcome::Outcome;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// A queue of device work. Cheap to clone; clones are the same queue.
///
/// Dropping the last clone neither waits nor cancels: unfinished work goes on, with everything it
/// [retains](Stream::retain), and is cleaned up by a later call.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

/// A stream that may be gone.
pub(super) struct WeakStream {
    inner: Weak<StreamInner>,
}

struct StreamInner {
    raw: CUstream,
    owned: bool,
    /// Something has happened since which work of this stream may be captured. Until then nobody asks the driver, which takes
    /// a tenth of a microsecond with each operation.
    capturable: AtomicBool,
    /// Held from enqueuing work until everything it uses is kept. Recording an event, joining a capture and ending one
    /// take it too, so they never fall in between.
    order: Mutex<()>,
    kept: Mutex<Kept>,
    outcomes: Outcomes,
    context: Context,
}

// SAFETY: `raw` is the only field that is not Send: an opaque handle, accepted by the driver on any thread.
unsafe impl Send for StreamInner {}
// SAFETY: the driver serialises concurrent calls on one stream; our own state is behind a mutex.
unsafe impl Sync for StreamInner {}

impl Stream {
    /// A new stream that does not synchronise with the legacy default stream.
    ///
    /// # Errors
    /// A driver error.
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
    /// An owner that waits for it by the driver is not told that kernels gave up a wait. Wait by
    /// [`synchronize`](Self::synchronize) of this wrapper, or call
    /// [`Communicator::check`](crate::comm::Communicator::check) after the owner's wait and before using the data.
    ///
    /// # Safety
    /// `raw` must be a stream of `context`'s device context (null is the legacy default stream), and must not be
    /// destroyed before the last clone of the result is dropped, and before calls of this library on the context that other threads had begun by
    /// then have returned: a launch that follows this stream's work holds a clone as long as it takes.
    pub unsafe fn from_raw(context: &Context, raw: CUstream) -> Self {
        Self::make(context, raw, false)
    }

    fn make(context: &Context, raw: CUstream, owned: bool) -> Self {
        let (order, kept, outcomes) = (Mutex::default(), Mutex::default(), Outcomes::default());
        let (context, capturable) = (context.clone(), AtomicBool::new(!owned));
        let inner = Arc::new(StreamInner { raw, owned, capturable, order, kept, outcomes, context });
        let sweep: Weak<dyn Sweep> = Arc::<StreamInner>::downgrade(&inner);
        inner.context.watch(raw, sweep);
        Self { inner }
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUstream {
        self.may_be_captured();
        self.inner.raw
    }

    /// The driver's handle, for calls that begin no capture and join none.
    pub(super) fn handle(&self) -> CUstream {
        self.inner.raw
    }

    /// From now on the driver is asked whether work of this stream is captured. Call it before anything that may begin a
    /// capture or join one.
    pub(super) fn may_be_captured(&self) {
        self.inner.capturable.store(true, Ordering::Relaxed);
    }

    /// A number that no other stream has while a [`WeakStream`] of this one exists; never 0.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// The address of the driver's stream, which all wrappers of it have.
    pub(crate) fn address(&self) -> usize {
        self.inner.raw.addr()
    }

    pub(super) fn downgrade(&self) -> WeakStream {
        WeakStream { inner: Arc::downgrade(&self.inner) }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Keeps `what` alive until all work enqueued so far is done. While the stream is being captured, no matter who
    /// began the capture, the graph holds `what` until the graph, everything instantiated from it and all launches are
    /// gone.
    ///
    /// Call it after enqueuing the work. It never waits for work. Do not retain the stream itself: it would never be
    /// dropped.
    ///
    /// # Errors
    /// A driver error; `what` is kept in any case.
    pub fn retain(&self, what: KeepAlive) -> Result<()> {
        self.retain_all([what])
    }

    /// [`retain`](Self::retain) for each of `what`, also if one of them is an error: the first one is returned.
    ///
    /// # Errors
    /// As for [`retain`](Self::retain).
    pub fn retain_all(&self, what: impl IntoIterator<Item = KeepAlive>) -> Result<()> {
        let context = self.context();
        let _entered = context.enter()?;
        let mut done = Vec::new();
        let _order = lock(&self.inner.order);
        match self.inner.fate() {
            Ok(fate) => context.noted(self.inner.keep(fate, what.into_iter(), &mut done)),
            // The work may be captured, and nobody knows into which graph.
            Err(error) => {
                what.into_iter().for_each(std::mem::forget);
                Err(context.note(error))
            }
        }
    }

    /// Calls `work`, which enqueues something on this stream with the context current, and keeps `what` alive for it.
    /// Events recorded on the stream by other threads, and the end of a capture, come before both or after both.
    pub(super) fn enqueue(
        &self,
        what: impl IntoIterator<Item = KeepAlive>,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let context = self.context();
        let _entered = context.enter()?;
        self.inner.outcomes.begin_work();
        // Dropped last, outside the locks, because a buffer's Drop looks at every stream.
        let (mut what, mut done) = (what.into_iter().peekable(), Vec::new());
        let _enqueuing = context.slot::<Arc<Gate>>().enqueue();
        let _order = lock(&self.inner.order);
        // Asked first: if the driver cannot say, nothing has been enqueued yet, and nothing needs to be kept.
        let fate = what.peek().map(|_| context.noted(self.inner.fate())).transpose()?;
        context.noted(work())?;
        fate.map_or(Ok(()), |fate| context.noted(self.inner.keep(fate, what, &mut done)))
    }

    /// Calls `change`, which begins or ends a capture of this stream with the context current, while no other thread
    /// is between enqueuing work on it and keeping what that work uses.
    pub(super) fn exclusively<T>(&self, change: impl FnOnce() -> T) -> T {
        let _enqueuing = self.context().slot::<Arc<Gate>>().enqueue();
        let _order = lock(&self.inner.order);
        change()
    }

    /// Has waits for this stream ask `outcome`, once its work is done, whether that work gave up a wait. Call it after
    /// enqueuing work that waits for a peer. Work captured into a graph takes it along.
    pub(crate) fn depend_on(&self, outcome: &Arc<dyn Outcome>) {
        self.inner.outcomes.add(outcome);
    }

    pub(super) fn outcomes(&self) -> &Outcomes {
        &self.inner.outcomes
    }

    /// Whether all work enqueued so far is done. During a capture it is not.
    ///
    /// # Errors
    /// A failure of the work itself, or why kernels gave up a wait; a driver error.
    pub fn is_idle(&self) -> Result<bool> {
        let context = self.context();
        let _entered = context.enter()?;
        let pending = self.inner.outcomes.pending();
        let idle = context.noted(is_idle(context.driver(), self.handle()))?;
        if idle {
            self.inner.outcomes.settle(pending, "is_idle")?;
        }
        Ok(idle)
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// Kernels of this library that wait for a peer leave early when the peer is lost, the communicator aborts or a
    /// port fails, is removed or stops; a proxy then drops what kernels asked of it. The driver calls all of that
    /// done. Here it is an error: the data may not be there. It also covers work captured into graphs, and work of
    /// other streams that this stream waited for by an [`Event`].
    ///
    /// The library knows what has failed, not which kernels noticed. So if a communicator or port that work of this
    /// stream uses has failed, all of that work counts as given up, except what an earlier successful wait for this
    /// stream covered. To remove a semaphore, stop a service or abort without such an error, wait for the streams that
    /// use it first.
    ///
    /// Each wait that began before new work was enqueued returns the error; waits for the new work do not. A call that enqueues nothing,
    /// such as a collective in place of a group of one, is no new work. Only kernels that channels and collectives launch are known:
    /// for others call [`Communicator::report_to`], and for a stream that is waited for in another way [`Communicator::check`].
    ///
    /// [`Communicator::report_to`]: crate::comm::Communicator::report_to
    /// [`Communicator::check`]: crate::comm::Communicator::check
    ///
    /// # Errors
    /// Timeout, leaving the work running; a failure of the work itself, or why kernels gave up a wait; invalid usage
    /// during a capture.
    pub fn synchronize(&self, deadline: impl Into<Deadline>) -> Result<()> {
        if self.is_capturing()? {
            return Err(Error::usage("synchronize", "the stream is being captured; end the capture first"));
        }
        let context = self.context();
        let _entered = context.enter()?;
        let pending = self.inner.outcomes.pending();
        let idle = || context.noted(is_idle(context.driver(), self.handle()));
        let what = "a stream, whose work goes on: give it more time; kernels that wait for a peer leave at Communicator::abort, and \
                    Communicator::abort_record names that peer";
        poll_until("synchronize", what, deadline.into(), idle)?;
        // Asked before what the work used is dropped: a service that stops with its last owner has not failed this work.
        let settled = self.inner.outcomes.settle(pending, "synchronize");
        self.inner.drop_kept(|| Some(()));
        context.reap_waiting();
        settled
    }

    /// Whether a capture into a graph is on, here or started by the stream's owner.
    ///
    /// # Errors
    /// A driver error.
    pub fn is_capturing(&self) -> Result<bool> {
        if !self.inner.is_capturable() {
            return Ok(false);
        }
        let context = self.context();
        let _entered = context.enter()?;
        context.noted(is_capturing(context.driver(), self.handle()))
    }

    /// The number of the capture that the stream is in: streams that one graph captures have the same.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn capture_id(&self) -> Result<Option<u64>> {
        if !self.inner.is_capturable() {
            return Ok(None);
        }
        let context = self.context();
        let _entered = context.enter()?;
        context.noted(capture_id(context.driver(), self.handle()))
    }
}

impl WeakStream {
    /// As of [`Stream::identity`].
    pub(super) fn identity(&self) -> usize {
        self.inner.as_ptr().addr()
    }

    pub(super) fn is_alive(&self) -> bool {
        self.inner.strong_count() > 0
    }

    pub(super) fn upgrade(&self) -> Option<Stream> {
        self.inner.upgrade().map(|inner| Stream { inner })
    }
}

impl StreamInner {
    /// Relaxed, because whoever captures the stream by its handle got the handle first, and everything here that captures
    /// it or joins a capture holds `order`.
    fn is_capturable(&self) -> bool {
        self.capturable.load(Ordering::Relaxed)
    }

    /// How the driver treats work that is enqueued now. Call with `order` held and the context current.
    fn fate(&self) -> Result<CaptureStatus> {
        if !self.is_capturable() {
            return Ok(CaptureStatus::None);
        }
        match capture::status(self.context.driver(), self.raw) {
            // Earlier work has lost the context: no graph will run. Whoever waits for that work is told.
            Err(error) if is_sticky(error.code()) => Ok(CaptureStatus::Unusable),
            other => other,
        }
    }

    /// Keeps `what` for the work just enqueued, whose `fate` was asked for with `order` held since; the context is
    /// current.
    fn keep(
        &self,
        fate: CaptureStatus,
        what: impl Iterator<Item = KeepAlive>,
        done: &mut Vec<KeepAlive>,
    ) -> Result<()> {
        let mut what = what;
        let captured = matches!(fate, CaptureStatus::Active);
        if captured && capture::hold(&self.context, self.raw, &mut what)? {
            return Ok(());
        }
        let closing = matches!(fate, CaptureStatus::None);
        let mut kept = lock(&self.kept);
        what.map(|one| kept.add(&self.context, self.raw, one, closing, done)).fold(Ok(()), Result::and)
    }

    /// Records an event behind everything enqueued, for a stream that its owner may destroy. Records none while the
    /// stream is being captured: the event would be part of the graph.
    fn mark(&self) -> Result<Option<CUevent>> {
        if !matches!(capture::status(self.context.driver(), self.raw)?, CaptureStatus::None) {
            return Ok(None);
        }
        let event = Event::new(&self.context)?;
        // SAFETY: the stream is alive.
        unsafe { event.record_raw(self.raw) }?;
        Ok(Some(event.into_raw()))
    }
}

impl Sweep for StreamInner {
    fn sweep(&self) {
        // As one that frees: the stream's owner may begin a capture meanwhile.
        let gate = self.context.slot::<Arc<Gate>>();
        self.drop_kept(|| gate.try_free());
    }
}

impl StreamInner {
    /// Drops what it retains, if it may be asked whether it is idle, and is.
    fn drop_kept<T>(&self, may_ask: impl FnOnce() -> Option<T>) {
        let mut kept = lock(&self.kept);
        // Every item on the list was retained after its work. So if the stream is idle now, under the lock, that work
        // is done.
        if kept.is_empty() {
            return;
        }
        // Nobody is kept from launching while the items are dropped.
        if !may_ask().is_some_and(|_asking| is_idle(self.context.driver(), self.raw).unwrap_or(false)) {
            return;
        }
        let done = std::mem::take(&mut *kept);
        // Dropped outside the lock, because a buffer's Drop looks at every stream.
        drop(kept);
        drop(done);
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let kept = std::mem::take(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner));
        let context = self.context.clone();
        let driver = context.driver();
        let Ok(_entered) = context.enter() else {
            // In a forked child, or at process exit, nothing can be known or done.
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
            Ok(false) if self.owned => {
                let last = LastWork::of_stream(&context, self.raw);
                context.unwatch(self, Some((last, kept.into_all())));
            }
            // The owner may destroy the stream from now on, so only an event can be queried.
            Ok(false) => match self.mark() {
                Ok(Some(event)) => {
                    let last = LastWork::of_event(&context, self.raw, event);
                    context.unwatch(self, Some((last, kept.into_all())));
                }
                Ok(None) => {
                    context.unwatch(self, None);
                    if !kept.is_empty() {
                        log::warn!(
                            "a wrapped stream was dropped while its owner captures it: what it used before the \
                             capture is never freed; drop it before or after"
                        );
                        std::mem::forget(kept);
                    }
                }
                Err(error) => {
                    context.unwatch(self, None);
                    log::error!("leaking what unfinished work used: {}", context.note(error));
                    std::mem::forget(kept);
                }
            },
            Err(error) => {
                // In a lost context no work can be known to be done.
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
