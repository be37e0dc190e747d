//! Order between streams: events are recorded on one and waited for by another.

use super::driver::call;
use super::event::Event;
use super::stream::Stream;
use crate::error::Result;

impl Event {
    /// Puts the event behind everything enqueued on `stream` so far.
    ///
    /// # Errors
    /// A driver error, for example that the stream belongs to another context.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        stream.enqueue([], || unsafe { self.record_raw(stream.handle()) })?;
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
        self.enqueue([], || {
            self.may_be_captured();
            // SAFETY: both handles are alive; the driver notes the event's state at the call, not the handle.
            unsafe { call!(self.context().driver(), cuStreamWaitEvent(self.handle(), event.raw(), 0)) }
        })?;
        self.outcomes().inherit(event.outcomes());
        Ok(())
    }
}
