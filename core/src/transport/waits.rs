//! Streams that wait on behalf of connections that no device executes.
//!
//! Such a connection needs a stream only while it waits for an event of the user's, or an event of the user's for it. So the
//! connections of a communicator share a stock of streams: one that begins to wait borrows one, and gives it back when the wait is
//! over. Two connections never share a stream: one wait would hold up the other, which may be what the first one waits for.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::error::Result;
use crate::gpu::{Context, Event, Stream};
use crate::sync::{Mutex, lock};

/// The stock. As many streams as waits were under way at one time.
#[derive(Debug)]
pub(crate) struct WaitStreams {
    context: Context,
    /// Idle streams, oldest first. A stream of a failed connection may still be busy.
    back: Mutex<VecDeque<Stream>>,
}

/// A stream of the stock. Goes back when dropped, on any thread: that calls no driver.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) stream: Stream,
    home: Arc<WaitStreams>,
}

/// The stream behind which operations of one connection wait for events of the user's.
#[derive(Debug)]
pub(super) struct Waits {
    streams: Arc<WaitStreams>,
    latest: Mutex<Weak<Lent>>,
}

/// A point behind the work that an operation waits for. Keeps the stream until it is dropped.
#[derive(Debug)]
pub(super) struct Awaited {
    event: Event,
    _lent: Arc<Lent>,
}

impl WaitStreams {
    pub(crate) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), back: Mutex::default() })
    }

    /// A stream without work: one of the stock, or a new one. For threads that may call the driver.
    pub(super) fn lend(self: &Arc<Self>) -> Result<Lent> {
        let count = lock(&self.back).len();
        for _ in 0..count {
            // Asked unlocked: whoever gives a stream back must not wait for the driver.
            let Some(stream) = lock(&self.back).pop_front() else { break };
            let lent = Lent { stream, home: self.clone() };
            if lent.stream.renew().unwrap_or(false) {
                return Ok(lent);
            }
        }
        Ok(Lent { stream: Stream::new(&self.context)?, home: self.clone() })
    }

    /// Streams that are not lent.
    #[cfg(all(test, not(loom)))]
    pub(super) fn count(&self) -> usize {
        lock(&self.back).len()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        lock(&self.home.back).push_back(self.stream.clone());
    }
}

impl Waits {
    pub(super) fn new(streams: Arc<WaitStreams>) -> Self {
        Self { streams, latest: Mutex::default() }
    }

    /// A point behind the work before `event`. Operations wait for one after the other, so all such points of a connection that
    /// are there at one time lie on one stream.
    pub(super) fn behind(&self, event: &Event) -> Result<Awaited> {
        // Locked throughout, so that another thread's event does not come in between. Only callers take this lock.
        let mut latest = lock(&self.latest);
        let lent = match latest.upgrade() {
            Some(lent) => lent,
            None => Arc::new(self.streams.lend()?),
        };
        *latest = Arc::downgrade(&lent);
        lent.stream.wait_event(event)?;
        let reached = Event::new(lent.stream.context())?;
        reached.record(&lent.stream)?;
        Ok(Awaited { event: reached, _lent: lent })
    }
}

impl Awaited {
    /// Whether that work is done.
    pub(super) fn is_over(&self) -> Result<bool> {
        self.event.is_done()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
