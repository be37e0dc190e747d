//! The memory of a ring: a sealed memfd that the receiving process makes and the sending one maps.
//!
//! | offset | field |
//! |---|---|
//! | 0 | head: position of the consumer |
//! | 64 | sleeping: the consumer sleeps |
//! | 128 | full: a producer sleeps for want of room |
//! | 256 | cells of 64 bytes |
//!
//! Each word has a cache line of its own: the sides write different ones.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use super::protocol::{Storage, Word};
use crate::error::{Error, ErrorKind, Result};
use crate::shm::{Mapping, Segment};
use crate::sync::raw::{AtomicU64, Ordering};

const WORDS: usize = 8;
const CELL_BYTES: usize = WORDS * 8;
/// Cells of memory in front of the ring's own.
const HEADER_CELLS: usize = 4;
/// Bounds of what a peer may announce.
const MIN_CELLS: usize = 256;
const MAX_CELLS: usize = 1 << 16;

/// Words of one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

/// A ring in memory that another process maps, too.
#[derive(Debug)]
pub(in crate::message) struct RingMemory {
    lines: NonNull<Line>,
    cells: usize,
    /// Keeps the memory mapped.
    _mapping: Mapping,
}

// SAFETY: the address belongs to the mapping that `_mapping` owns, which is bound to no thread.
unsafe impl Send for RingMemory {}
// SAFETY: the memory is only accessed through atomics.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// A new ring, whose frames can have a body of `body` bytes at least, and the descriptor to hand over.
    pub(in crate::message) fn create(body: usize) -> Result<(Self, OwnedFd)> {
        // A frame needs a word for every seven, the prefix, and room besides: a third more than itself.
        let bytes = (body + body / 4 + CELL_BYTES) / 3 * 4;
        let cells = (bytes / CELL_BYTES).next_power_of_two().clamp(2 * MIN_CELLS, MAX_CELLS);
        #[cfg(all(test, not(loom)))]
        super::tests::creates()?;
        let (mapping, fd) = Segment::create((HEADER_CELLS + cells) * CELL_BYTES)?.into_parts();
        Ok((Self::over(mapping, cells), fd))
    }

    /// As [`create`](Self::create), for frames from rank `rank`; `None` if the system has none: then the frames go over the socket.
    pub(in crate::message) fn for_rank(rank: u32, body: usize) -> Option<(Self, OwnedFd)> {
        let made = Self::create(body);
        made.inspect_err(|error| log::info!("messages with rank {rank} go over a socket: {error}")).ok()
    }

    /// Maps a ring of `cells` cells that the peer has made.
    ///
    /// # Errors
    /// `Remote` for a number of cells that is impossible, and for a descriptor that is no sealed memory of that size.
    pub(in crate::message) fn open(fd: OwnedFd, cells: u32) -> Result<Self> {
        let cells = cells as usize;
        if !cells.is_power_of_two() || !(MIN_CELLS..=MAX_CELLS).contains(&cells) {
            let text = format!("the peer announced a ring of {cells} cells");
            return Err(Error::new(ErrorKind::Remote, "connect", text));
        }
        let (mapping, _) = Segment::open(fd, (HEADER_CELLS + cells) * CELL_BYTES)?.into_parts();
        Ok(Self::over(mapping, cells))
    }

    fn over(mapping: Mapping, cells: usize) -> Self {
        let lines = NonNull::new(mapping.memory().as_ptr().cast()).expect("a mapping is not at address 0");
        Self { lines, cells, _mapping: mapping }
    }

    /// Number of cells, for [`open`](Self::open) at the peer.
    pub(in crate::message) fn size(&self) -> u32 {
        self.cells as u32
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        // SAFETY: the mapping is page-aligned, has room for so many lines (`create` and `open` made or checked its size), cannot
        // shrink (sealed) and lives as long as `_mapping`. Atomics may be changed by others at any time.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr(), HEADER_CELLS + self.cells) }
    }
}

impl Storage for RingMemory {
    type Word = AtomicU64;
    const CELL_WORDS: usize = WORDS;

    #[inline]
    fn cells(&self) -> usize {
        self.cells
    }

    #[inline]
    fn cell(&self, index: usize) -> &[AtomicU64] {
        &self.lines()[HEADER_CELLS + index].0
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.lines()[0].0[0]
    }

    #[inline]
    fn sleeping(&self) -> &AtomicU64 {
        &self.lines()[1].0[0]
    }

    #[inline]
    fn full(&self) -> &AtomicU64 {
        &self.lines()[2].0[0]
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}
