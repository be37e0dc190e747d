//! Order between streams: events are recorded on one and waited for by another.

use std::time::Duration;

use super::capture::{self, CaptureStatus};
use super::driver::call;
use super::event::Event;
use super::keep::KeepAlive;
use super::outcomes::Pending;
use super::query::is_idle;
use super::stream::Stream;
use crate::deadline::{Backoff, Deadline};
use crate::error::Result;

impl Event {
    /// Puts the event behind everything enqueued on `stream` so far.
    ///
    /// # Errors
    /// A driver error, for example that the stream belongs to another context.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.mark(self)?;
        self.note_captured(stream.is_capturing()?);
        self.outcomes().replace(stream.outcomes());
        Ok(())
    }
}

impl Stream {
    /// Lets later work of this stream begin only after the work that `event` was recorded behind.
    ///
    /// If the event was recorded on a stream under capture, this stream joins that capture: what is enqueued on it from
    /// now on becomes part of the graph, which holds what this stream [retains](Stream::retain), until the capture
    /// ends.
    ///
    /// # Errors
    /// A driver error.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.wait_behind(event, [])?;
        self.outcomes().inherit(event.outcomes());
        Ok(())
    }

    /// Lets later work begin only after the work that dropped streams, whose handles are `dropped`, have still to do, if it is to
    /// `follow` them. Leaves only the handles of those that have some. A handle may meanwhile be another stream's, which is followed in vain.
    ///
    /// # Errors
    /// A driver error.
    pub(super) fn follow_dropped(&self, dropped: &mut Vec<usize>, follow: bool) -> Result<()> {
        let context = self.context();
        let _entered = context.enter()?;
        let mut backoff = Backoff::new();
        let retired = loop {
            match context.retired(dropped) {
                Some(retired) => break retired,
                // Whoever asks only to forget them asks again.
                None if !follow => return Ok(()),
                // The thread that drops the stream asks the driver whether it is idle, and records an event.
                None => backoff.pause(Deadline::after(Duration::from_secs(1))),
            }
        };
        // Without a lock: the driver may make whoever enqueues wait for room in a queue.
        for last in retired.iter().filter(|_| follow) {
            let recorded;
            let event = match last.event() {
                Some(event) => event,
                None => {
                    recorded = Event::new(context)?;
                    // SAFETY: `last` keeps the stream.
                    unsafe { recorded.record_raw(last.stream()) }?;
                    recorded.raw()
                }
            };
            // SAFETY: both handles are alive; the driver notes the event's state at the call, not the handle.
            unsafe { call!(context.driver(), cuStreamWaitEvent(self.handle(), event, 0)) }?;
        }
        dropped.retain(|handle| retired.iter().any(|last| last.stream().addr() == *handle));
        Ok(())
    }

    /// Whether all its work is done. If so, it forgets what that work gave up, for the next who uses it: that is told to whoever
    /// waits for events of the work.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn renew(&self) -> Result<bool> {
        let context = self.context();
        let _entered = context.enter()?;
        let idle = context.noted(is_idle(context.driver(), self.handle()))?;
        if idle {
            drop(self.outcomes().exchange(Pending::default()));
        }
        Ok(idle)
    }

    /// Lets later work of `next` begin only after all work of this stream so far; `event` serves nothing else meanwhile. `next`
    /// [retains](Stream::retain) each of `keep` for that work. Waits for `next` are not told if work of this stream gave up a wait:
    /// whoever enqueues such work names its outcomes itself.
    ///
    /// # Errors
    /// A driver error; then nothing of `keep` was retained.
    pub(crate) fn precede(
        &self,
        next: &Self,
        event: &Event,
        keep: impl IntoIterator<Item = KeepAlive>,
    ) -> Result<()> {
        self.mark(event)?;
        next.wait_behind(event, keep)
    }

    /// Puts `event` behind everything enqueued so far, for an order of launches: it takes along nothing of how the work ends, and is no
    /// new work of this stream, whose waits go on to return what they have returned. False, and nothing is recorded, while the stream is
    /// captured: whoever waits for the event would become part of the graph.
    ///
    /// # Errors
    /// A driver error.
    pub(super) fn mark_for_order(&self, event: &Event) -> Result<bool> {
        let context = self.context();
        let _entered = context.enter()?;
        // A capture by this library begins with this lock held, too.
        self.exclusively(|| {
            if !matches!(
                context.noted(capture::status(context.driver(), self.handle()))?,
                CaptureStatus::None
            ) {
                return Ok(false);
            }
            // SAFETY: both are alive.
            context.noted(unsafe { event.record_raw(self.handle()) }).map(|()| true)
        })
    }

    fn mark(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive.
        self.enqueue([], || unsafe { event.record_raw(self.handle()) })
    }

    /// Lets later work begin only after the work before `event`, whose failures waits for this stream are not told.
    pub(super) fn wait_behind(&self, event: &Event, keep: impl IntoIterator<Item = KeepAlive>) -> Result<()> {
        self.enqueue(keep, || {
            self.may_be_captured();
            // SAFETY: both handles are alive; the driver notes the event's state at the call, not the handle.
            unsafe { call!(self.context().driver(), cuStreamWaitEvent(self.handle(), event.raw(), 0)) }
        })
    }
}
