//! The pinned memory that one half of a connection has borrowed between device memory and the socket.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::blocks::Place;
use super::super::stock::{BLOCK, Half};
use super::frame::MAX_PAYLOAD;
use crate::error::Result;
use crate::gpu::{DeviceSlice, Event, Stream};
use crate::net::Registration;

/// Blocks that a connection holds at most: enough that copying and sending overlap. The others are for other connections.
const MOST: usize = 4;

/// Parts of borrowed blocks, freed in the order in which they were taken. Several frames share a block if they are short; a block goes
/// back once none of its frames needs it, and is not filled a second time before: others may wait for it.
#[derive(Debug)]
pub(super) struct Staging {
    half: Arc<Half>,
    /// To be nudged when a block is there, and when one is wanted; none if the connection looks by itself.
    waker: Option<Registration>,
    place: Place,
    held: VecDeque<Held>,
    parked: bool,
}

#[derive(Debug)]
struct Held {
    block: usize,
    /// Bytes of it that were taken.
    used: usize,
    /// Parts of it that are not free yet; never 0.
    parts: usize,
}

impl Staging {
    pub(super) fn new(half: Arc<Half>, waker: Option<Registration>) -> Self {
        const { assert!(MAX_PAYLOAD <= BLOCK, "a frame fits into a block") };
        Self { half, waker, place: Place::default(), held: VecDeque::new(), parked: false }
    }

    /// One with a stock of its own.
    #[cfg(all(test, not(loom)))]
    pub(super) fn alone(context: &crate::gpu::Context, blocks: usize) -> Self {
        Self::new(Arc::new(Half::new(context, blocks).unwrap()), None)
    }

    /// Where `len` bytes begin, if there is room for them now.
    pub(super) fn take(&mut self, len: usize) -> Option<usize> {
        let room = room(len);
        if let Some(last) = self.held.back_mut()
            && BLOCK - last.used >= room
        {
            let at = last.block * BLOCK + last.used;
            last.used += room;
            last.parts += 1;
            return Some(at);
        }
        let block = match self.held.len() {
            0 => self.half.first(&mut self.place, self.waker.as_ref())?,
            1..MOST => self.half.further()?,
            _ => return None,
        };
        self.held.push_back(Held { block, used: room, parts: 1 });
        Some(block * BLOCK)
    }

    /// Whether it waits in line for a block, of which it will be told.
    pub(super) fn waits_in_line(&self) -> bool {
        self.place.is_in_line() && !self.half.has_late()
    }

    /// Gives up its place in the line, if it has one.
    pub(super) fn leave(&mut self) {
        if self.place.is_in_line() {
            self.half.leave(&mut self.place);
        }
    }

    /// Frees what was taken first. Its copies are done.
    pub(super) fn free_oldest(&mut self) {
        let Some(first) = self.held.front_mut() else { return };
        first.parts -= 1;
        if first.parts == 0
            && let Some(first) = self.held.pop_front()
        {
            self.give(first);
        }
    }

    /// Of the `len` bytes that were taken last, leaves only `used`; with 0 they are free, and were used by no copy.
    pub(super) fn trim(&mut self, len: usize, used: usize) {
        let Some(last) = self.held.back_mut() else { return };
        last.used -= room(len) - room(used);
        if used > 0 {
            return;
        }
        last.parts -= 1;
        if last.parts == 0
            && let Some(last) = self.held.pop_back()
        {
            self.give(last);
        }
    }

    fn give(&mut self, held: Held) {
        self.half.give(held.block);
        if self.held.is_empty() {
            self.half.release(&mut self.place);
        }
    }

    /// Whether it holds blocks while others wait in line.
    pub(super) fn is_wanted(&self) -> bool {
        !self.held.is_empty() && self.half.has_line()
    }

    /// Whether it may hold the last block while it waits for the peer.
    pub(super) fn park(&mut self) -> bool {
        if !self.parked {
            self.parked = self.half.park();
        }
        self.parked
    }

    /// It does not wait for the peer any more.
    pub(super) fn unpark(&mut self) {
        if std::mem::take(&mut self.parked) {
            self.half.unpark();
        }
    }

    /// Gives everything back, whatever copies are under way. What was taken is not to be used any more.
    pub(super) fn clear(&mut self) {
        self.leave();
        self.unpark();
        self.half.release(&mut self.place);
        self.half.give_late(self.held.drain(..).map(|held| held.block).collect());
    }

    /// The stream of the copies, which connections share: nothing on it may wait.
    pub(super) fn stream(&self) -> &Stream {
        self.half.stream()
    }

    /// The bytes, as devices see them.
    pub(super) fn device(&self, at: usize, len: usize) -> Result<DeviceSlice> {
        self.half.device(at, len)
    }

    /// Where byte `at` is for the host.
    pub(super) fn host(&self, at: usize) -> *mut u8 {
        self.half.host(at)
    }

    /// Copies `from` to byte `at`.
    pub(super) fn fill(&self, at: usize, from: &[u8]) -> Result<()> {
        self.half.fill(at, from)
    }

    /// Copies what is at byte `at` to `to`.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.half.read(at, to)
    }

    /// An event behind everything that the stream has been given.
    pub(super) fn event(&self) -> Result<Event> {
        self.half.event()
    }

    /// Takes an event back for the next use.
    pub(super) fn recycle(&self, event: Event) {
        self.half.recycle(event);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whole cache lines: the host writes one part while a device reads its neighbour.
fn room(len: usize) -> usize {
    len.next_multiple_of(64)
}

#[cfg(all(test, not(loom)))]
mod tests;
