//! Pinned memory between device memory and sockets, shared by all Ethernet connections of a communicator.
//!
//! A connection borrows blocks of it while an operation is under way, so an idle one has none. Senders and receivers have a half
//! each. A receiver always gets a block in the end: one of its half at least is held for nothing but copies to the device, of
//! which none waits for anything else. So it goes on reading, whatever happens to the senders. A sender gets one, too: whoever
//! holds one while its peer takes nothing gives it up for those in the line, and puts the bytes into ordinary memory.
//!
//! Made whole by the first connection, in `setup()`: allocating pinned memory waits for the device, and the device may be waiting
//! for what a connection brings. No service thread drops it, for the same reason.

use std::sync::Arc;

use super::blocks::{Blocks, Place, Wake};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, Event, PinnedBuffer, Stream};
use crate::net::Registration;
use crate::sync::{Mutex, lock};

/// Bytes of a block: the longest frame.
pub(super) const BLOCK: usize = 512 << 10;

/// Both halves.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) outgoing: Arc<Half>,
    pub(super) incoming: Arc<Half>,
}

/// Blocks, the stream that copies all of them, and its events. Nothing on the stream waits for anything but copies, so connections
/// can share it.
#[derive(Debug)]
pub(super) struct Half {
    blocks: Blocks<Registration>,
    buffer: Arc<PinnedBuffer>,
    stream: Stream,
    /// Events not in use.
    events: Mutex<Vec<Event>>,
    /// Blocks of connections that have ended, with an event behind their copies, or with none as long as the driver has none to give.
    late: Mutex<Vec<(Option<Event>, Vec<usize>)>>,
}

impl Wake for Registration {
    fn wake(&self) {
        self.nudge();
    }
}

impl Stock {
    /// A stock of `bytes`, but of at least one block in each half.
    pub(super) fn new(context: &Context, bytes: usize) -> Result<Self> {
        let half = || Half::new(context, bytes / (2 * BLOCK)).map(Arc::new);
        Ok(Self { outgoing: half()?, incoming: half()? })
    }
}

impl Half {
    pub(super) fn new(context: &Context, blocks: usize) -> Result<Self> {
        let blocks = blocks.max(1);
        let buffer = Arc::new(PinnedBuffer::new(context, blocks * BLOCK)?);
        let (stream, events, late) = (Stream::new(context)?, Mutex::default(), Mutex::default());
        Ok(Self { blocks: Blocks::new(blocks), buffer, stream, events, late })
    }

    /// The stream of all its copies.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// As of [`Blocks::first`].
    pub(super) fn first(&self, place: &mut Place, waker: Option<&Registration>) -> Option<usize> {
        self.blocks.first(place, waker).or_else(|| {
            self.settle();
            self.blocks.first(place, waker)
        })
    }

    /// As of [`Blocks::has_line`].
    pub(super) fn has_line(&self) -> bool {
        self.blocks.has_line()
    }

    /// As of [`Blocks::release`].
    pub(super) fn release(&self, place: &mut Place) {
        self.blocks.release(place);
    }

    /// As of [`Blocks::further`].
    pub(super) fn further(&self) -> Option<usize> {
        self.blocks.further()
    }

    /// Gives back a block whose copies are done.
    pub(super) fn give(&self, block: usize) {
        self.blocks.give([block]);
    }

    /// Gives back blocks whose copies may be under way: nobody gets them before these are done.
    pub(super) fn give_late(&self, blocks: Vec<usize>) {
        if blocks.is_empty() {
            return;
        }
        // An event may be refused for want of memory, while the copies go on.
        let behind = self.event().ok();
        lock(&self.late).push((behind, blocks));
        self.blocks.rouse();
        self.settle();
    }

    /// Whether blocks of connections that have ended are still waited for, of which nobody will tell.
    pub(super) fn has_late(&self) -> bool {
        !lock(&self.late).is_empty()
    }

    /// Takes blocks back whose copies are done by now.
    fn settle(&self) {
        let done: Vec<_> = lock(&self.late).extract_if(.., |(behind, _)| self.is_over(behind)).collect();
        for (event, blocks) in done {
            self.blocks.give(blocks);
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

    /// As of [`Blocks::leave`].
    pub(super) fn leave(&self, place: &mut Place) {
        self.blocks.leave(place);
    }

    /// As of [`Blocks::park`].
    pub(super) fn park(&self) -> bool {
        self.blocks.park()
    }

    /// As of [`Blocks::unpark`].
    pub(super) fn unpark(&self) {
        self.blocks.unpark();
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

    /// As of [`Blocks::holders`].
    #[cfg(all(test, not(loom)))]
    pub(super) fn holders(&self) -> usize {
        self.blocks.holders()
    }

    /// Blocks that nobody holds.
    #[cfg(all(test, not(loom)))]
    pub(super) fn free(&self) -> usize {
        self.settle();
        self.blocks.free()
    }
}
