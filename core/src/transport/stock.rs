//! Pinned memory between device memory and sockets, shared by all Ethernet connections of a communicator.
//!
//! A connection borrows pieces of it while an operation is under way, so an idle one has none. Senders and receivers have a half
//! each. A receiver always gets a piece in the end: one of its half at least is held for nothing but copies to the device, of
//! which none waits for anything else. So it goes on reading, whatever happens to the senders. A sender gets one, too: whoever
//! holds one while its peer takes nothing gives it up for those in the line, and puts the bytes into ordinary memory.
//!
//! Made whole by the first connection, in `setup()`: allocating pinned memory waits for the device, and the device may be waiting
//! for what a connection brings. No service thread drops it, for the same reason.

use std::sync::Arc;

use super::pieces::{Pieces, Place, Wake};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, Event, PinnedBuffer, Stream};
use crate::net::Registration;
use crate::sync::{Mutex, lock};

/// Bytes of a piece: the longest frame.
pub(super) const PIECE: usize = 512 << 10;

/// Both halves.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) outgoing: Arc<Half>,
    pub(super) incoming: Arc<Half>,
}

/// Pieces, the stream that copies all of them, and its events. Nothing on the stream waits for anything but copies, so connections
/// can share it.
#[derive(Debug)]
pub(super) struct Half {
    pieces: Pieces<Registration>,
    buffer: Arc<PinnedBuffer>,
    stream: Stream,
    /// Events not in use.
    events: Mutex<Vec<Event>>,
    /// Pieces of connections that have ended, with an event behind their copies, or with none as long as the driver has none to give.
    late: Mutex<Vec<(Option<Event>, Vec<usize>)>>,
}

impl Wake for Registration {
    fn wake(&self) {
        self.nudge();
    }
}

impl Stock {
    /// A stock of `bytes`, but of at least one piece in each half.
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self> {
        let half = || Half::new(context, bytes / (2 * PIECE)).map(Arc::new);
        Ok(Self { outgoing: half()?, incoming: half()? })
    }
}

impl Half {
    pub(super) fn new(context: &Context, pieces: usize) -> Result<Self> {
        let pieces = pieces.max(1);
        let buffer = Arc::new(PinnedBuffer::new(context, pieces * PIECE)?);
        let (stream, events, late) = (Stream::new(context)?, Mutex::default(), Mutex::default());
        Ok(Self { pieces: Pieces::new(pieces), buffer, stream, events, late })
    }

    /// The stream of all its copies.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As of [`Pieces::first`].
    pub(super) fn first(&self, place: &mut Place, waker: Option<&Registration>) -> Option<usize> {
        self.pieces.first(place, waker).or_else(|| {
            self.settle();
            self.pieces.first(place, waker)
        })
    }

    /// As of [`Pieces::has_line`].
    pub(super) fn has_line(&self) -> bool {
        self.pieces.has_line()
    }

    /// As of [`Pieces::release`].
    pub(super) fn release(&self, place: &mut Place) {
        self.pieces.release(place);
    }

    /// As of [`Pieces::further`].
    pub(super) fn further(&self) -> Option<usize> {
        self.pieces.further()
    }

    /// Gives back a piece whose copies are done.
    pub(super) fn give(&self, piece: usize) {
        self.pieces.give([piece]);
    }

    /// Gives back pieces whose copies may be under way: nobody gets them before these are done.
    pub(super) fn give_late(&self, pieces: Vec<usize>) {
        if pieces.is_empty() {
            return;
        }
        // An event may be refused for want of memory, while the copies go on.
        let behind = self.event().ok();
        lock(&self.late).push((behind, pieces));
        self.pieces.rouse();
        self.settle();
    }

    /// Whether pieces of connections that have ended are still waited for, of which nobody will tell.
    pub(super) fn has_late(&self) -> bool {
        !lock(&self.late).is_empty()
    }

    /// Takes pieces back whose copies are done by now.
    fn settle(&self) {
        let done: Vec<_> = lock(&self.late).extract_if(.., |(behind, _)| self.is_over(behind)).collect();
        for (event, pieces) in done {
            self.pieces.give(pieces);
            event.into_iter().for_each(|event| self.recycle(event));
        }
    }

    /// Whether the copies before `behind` are done. Without an event, all copies have to be, unless there is an event now.
    fn is_over(&self, behind: &mut Option<Event>) -> bool {
        if behind.is_none() {
            *behind = self.event().ok();
        }
        // Only a device that has failed does not answer. It copies nothing any more, for nobody.
        behind.as_ref().map_or_else(|| self.stream.is_idle(), Event::is_done).unwrap_or(true)
    }

    /// As of [`Pieces::leave`].
    pub(super) fn leave(&self, place: &mut Place) {
        self.pieces.leave(place);
    }

    /// As of [`Pieces::park`].
    pub(super) fn park(&self) -> bool {
        self.pieces.park()
    }

    /// As of [`Pieces::unpark`].
    pub(super) fn unpark(&self) {
        self.pieces.unpark();
    }

    /// Bytes of the half, as devices see them.
    pub(super) fn device(&self, at: usize, len: usize) -> Result<DeviceSlice> {
        self.buffer.slice(at..at + len)
    }

    /// Where byte `at` of the half is for the host.
    pub(super) fn host(&self, at: usize) -> *mut u8 {
        self.buffer.memory().as_ptr().wrapping_add(at)
    }

    /// Copies `from` to byte `at`.
    pub(super) fn fill(&self, at: usize, from: &[u8]) -> Result<()> {
        self.buffer.memory().write(at, from)
    }

    /// Copies what is at byte `at` to `to`.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.buffer.memory().read(at, to)
    }

    /// An event behind everything that the stream has been given.
    pub(super) fn event(&self) -> Result<Event> {
        let known = lock(&self.events).pop();
        let event = match known {
            Some(event) => event,
            None => Event::new(self.stream.context())?,
        };
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Takes an event back for the next use.
    pub(super) fn recycle(&self, event: Event) {
        lock(&self.events).push(event);
    }

    /// Pieces that nobody holds.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.settle();
        self.pieces.free()
    }
}
