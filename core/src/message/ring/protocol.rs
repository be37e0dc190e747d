//! A ring of cells in memory that two processes share: one process writes frames, from any of its threads, the other reads
//! them. No lock, no system call.
//!
//! The ring is an array of cells of [`Storage::CELL_WORDS`] words, of which the first is a header. A frame takes as many
//! consecutive cells as its bytes need, and may continue at the front. A producer reserves cells, and takes the frame's sequence
//! number, by a compare-and-swap on a word of its own process. It writes the payload and the headers of the later cells, and
//! publishes the frame by one release store of the first header (`SYNC message.frame`). Frames are read in the order of their
//! numbers.
//!
//! A header bears the stamp of its lap, so cells are never cleared: what lies in a cell from the lap before has the stamp of
//! that lap. Each cell gets a header in each lap, so stamps and positions may start over. The consumer gives cells back by
//! storing its position in the head word (`SYNC message.head`), once a quarter of the ring has been read. So a frame of up to
//! three quarters of the ring always finds room in a ring whose frames have all been read.
//!
//! Either side may sleep. The consumer sets the sleeping word before, and looks at the ring once more; a producer publishes and
//! then looks at that word. A sequentially consistent fence stands between the two steps on both sides, so at least one of them
//! sees the other's store, and no wake-up is lost (`SYNC message.sleeping`). A producer that waits for room does the same with
//! the full word (`SYNC message.full`).
//!
//! The memory belongs to two processes, and either may write anything to any word at any time. The consumer copies a frame
//! before it looks at its bytes, and checks header and length from that copy; the producer checks the head against what it has
//! reserved. A word that no correct peer writes is a [`Violation`]. It ends the link. Nothing is indexed by a word of the
//! peer's unless it was checked.

use std::fmt;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words in front of a frame's body.
pub(super) const PREFIX: usize = 2;

/// A header of the first cell of a frame; the low bits are the length of its body in bytes.
const FIRST: u64 = 1 << 31;
/// A header of a later cell.
const LATER: u64 = 1 << 30;
/// The longest body that a header can state.
const LENGTH: u64 = (1 << 24) - 1;
/// The part of a header with the stamp of its lap.
const STAMP: u64 = !(u32::MAX as u64);

/// A word that others read and write concurrently: `std`'s atomic, or loom's in a model.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// The memory of a ring.
pub(super) trait Storage {
    type Word: Word;

    /// Words of a cell: the header and the payload.
    const CELL_WORDS: usize;

    /// Number of cells, a power of two and at least four.
    fn cells(&self) -> usize;
    /// The words of cell `index`, which is below the number of cells.
    fn cell(&self, index: usize) -> &[Self::Word];
    /// Position of the consumer, as producers see it.
    fn head(&self) -> &Self::Word;
    /// Not 0: the consumer sleeps, or is about to.
    fn sleeping(&self) -> &Self::Word;
    /// Not 0: a producer sleeps until there is room, or is about to.
    fn full(&self) -> &Self::Word;
}

/// A word that no correct peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// A header with the stamp of another lap, an unknown kind or an impossible length.
    Header(u64),
    /// A later cell of a published frame lacks its header.
    Torn,
    /// A head that goes back, or is ahead of what was written.
    Head { head: u64, tail: u32 },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Header(header) => {
                write!(f, "its ring has a cell with the impossible header {header:#018x}")
            }
            Self::Torn => f.write_str("its ring has a frame that is not whole"),
            Self::Head { head, tail } => {
                write!(f, "it says that it has read up to cell {head} of a ring written up to cell {tail}")
            }
        }
    }
}

/// Outcome of [`Producer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// The frame is published. The consumer sleeps: wake it.
    Wake,
    /// The frame is published.
    Done,
    /// There is no room now; nothing was written.
    Full,
}

/// Bytes of payload in a cell.
const fn payload<S: Storage>() -> usize {
    (S::CELL_WORDS - 1) * 8
}

/// The longest body of a frame that a ring takes: the frame fits in three quarters of it, see the head of this file.
pub(super) fn longest<S: Storage>(ring: &S) -> usize {
    (ring.cells() / 4 * 3 * payload::<S>() - PREFIX * 8).min(LENGTH as usize)
}

/// Cells of a frame whose body has `len` bytes.
#[inline]
fn cells_of<S: Storage>(len: usize) -> u32 {
    (PREFIX * 8 + len).div_ceil(payload::<S>()) as u32
}

/// Bytes of the body in the first cell.
const fn in_first<S: Storage>() -> usize {
    payload::<S>() - PREFIX * 8
}

/// Where a position lies: the cell, and the stamp of its lap in the upper half of a word. The first lap has stamp 1, and the
/// zeros of new memory are a lap before it.
#[inline]
fn place<S: Storage>(ring: &S, position: u32) -> (usize, u64) {
    let cells = ring.cells() as u32;
    let stamp = (position >> cells.trailing_zeros()).wrapping_add(1);
    ((position & (cells - 1)) as usize, stamp_of(ring, stamp))
}

/// Stamps start over with the positions.
#[inline]
fn stamp_of<S: Storage>(ring: &S, stamp: u32) -> u64 {
    u64::from(stamp & (u32::MAX >> ring.cells().trailing_zeros())) << 32
}

/// The writing process's side; its threads share it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Producer {
    /// Position up to which cells are reserved (lower half), and number of the next frame (upper half). Only this process
    /// writes it.
    tail: AtomicU64,
    /// The last head that was seen and checked, so that the shared word is loaded once in many frames.
    head: AtomicU32,
}

impl Producer {
    /// The producers of a ring that the consumer has read up to `position`, and in which nothing else is. The next frame has
    /// number 0.
    pub(super) fn new(position: u32) -> Self {
        Self { tail: AtomicU64::new(position.into()), head: AtomicU32::new(position) }
    }

    /// Writes one frame of up to [`longest`] bytes and publishes it. `prefix` gives the words in front of the body for the
    /// number of the frame.
    #[inline]
    pub(super) fn push<S: Storage>(
        &self,
        ring: &S,
        prefix: impl FnOnce(u32) -> [u64; PREFIX],
        body: &[u8],
    ) -> Result<Push, Violation> {
        debug_assert!(body.len() <= longest(ring), "checked by the wire");
        let Some((start, number)) = self.reserve(ring, cells_of::<S>(body.len()))? else {
            return Ok(Push::Full);
        };
        let (here, rest) = body.split_at(body.len().min(in_first::<S>()));
        for (part, position) in rest.chunks(payload::<S>()).zip(1..) {
            let (cell, stamp) = place(ring, start.wrapping_add(position));
            let words = ring.cell(cell);
            words[0].store(stamp | LATER, Ordering::Relaxed);
            store(&words[1..S::CELL_WORDS], part);
        }
        let (cell, stamp) = place(ring, start);
        let words = &ring.cell(cell)[..S::CELL_WORDS];
        for (word, value) in words[1..].iter().zip(prefix(number)) {
            word.store(value, Ordering::Relaxed);
        }
        store(&words[1 + PREFIX..], here);
        words[0].store(stamp | FIRST | body.len() as u64, Ordering::Release); // SYNC message.frame (release)
        Ok(if is_set_after(ring.sleeping()) { Push::Wake } else { Push::Done })
    }

    /// Reserves `cells` cells; `None` if there is no room. The position of the first one, and the frame's number.
    #[inline]
    fn reserve<S: Storage>(&self, ring: &S, cells: u32) -> Result<Option<(u32, u32)>, Violation> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        // Another thread may have read the shared head: its acquire is handed on. SYNC message.head (acquire)
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (position, number) = (tail as u32, (tail >> 32) as u32);
            // The head may be ahead of an old tail: then the difference is negative, and the compare-and-swap fails.
            if position.wrapping_sub(head).wrapping_add(cells).cast_signed() > ring.cells() as i32 {
                let seen = self.look(ring, head)?;
                if seen == head {
                    return Ok(None);
                }
                head = seen;
                tail = self.tail.load(Ordering::Relaxed);
                continue;
            }
            let new = u64::from(position.wrapping_add(cells)) | u64::from(number.wrapping_add(1)) << 32;
            match self.tail.compare_exchange_weak(tail, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(Some((position, number))),
                Err(now) => tail = now,
            }
        }
    }

    /// Reads the shared head and checks that it lies between `known` and the cells reserved.
    #[cold]
    fn look<S: Storage>(&self, ring: &S, known: u32) -> Result<u32, Violation> {
        let head = ring.head().load(Ordering::Acquire); // SYNC message.head (acquire)
        // Loaded after the head, so that it is not behind a correct one.
        let tail = self.tail.load(Ordering::Relaxed) as u32;
        let position = head as u32;
        if u64::from(position) != head || position.wrapping_sub(known) > tail.wrapping_sub(known) {
            return Err(Violation::Head { head, tail });
        }
        self.head.store(position, Ordering::Release); // SYNC message.head (release)
        Ok(position)
    }

    /// Asks to be woken when there may be room for a frame whose body has `len` bytes. True if there is now: do not sleep.
    pub(super) fn arm<S: Storage>(&self, ring: &S, len: usize) -> Result<bool, Violation> {
        ring.full().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC message.full (waiting producer)
        let head = self.look(ring, self.head.load(Ordering::Acquire))?;
        let used = (self.tail.load(Ordering::Relaxed) as u32).wrapping_sub(head);
        Ok(used.wrapping_add(cells_of::<S>(len)) <= ring.cells() as u32)
    }
}

/// Whether the peer has set `word`, by which it asks to be woken. Stands behind the store that the peer waits for. Clears the
/// word, so that the peer is woken once.
#[inline]
fn is_set_after<W: Word>(word: &W) -> bool {
    fence(Ordering::SeqCst); // SYNC message.sleeping (producer) SYNC message.full (consumer)
    let set = word.load(Ordering::Relaxed) != 0;
    if set {
        word.store(0, Ordering::Relaxed);
    }
    set
}

/// The reading process's side.
#[derive(Debug)]
pub(super) struct Consumer {
    position: u32,
    /// The head that producers can see.
    published: u32,
    /// The longest body that is accepted.
    longest: usize,
    /// Copy of the frame that [`peek`](Self::peek) has found. Grows with the longest frame that has come.
    body: Vec<u8>,
}

/// A frame, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) prefix: [u64; PREFIX],
    pub(super) body: &'a [u8],
}

impl Consumer {
    /// The consumer at `position`, which the head word holds. Accepts frames whose body has up to `longest` bytes, and no longer
    /// ones than the ring takes.
    pub(super) fn new<S: Storage>(ring: &S, position: u32, limit: usize) -> Self {
        let body = vec![0; in_first::<S>()];
        Self { position, published: position, longest: longest(ring).min(limit), body }
    }

    /// Copies the next frame out of the ring, if one is published. The same again until [`pop`](Self::pop).
    #[inline]
    pub(super) fn peek<S: Storage>(&mut self, ring: &S) -> Result<Option<Frame<'_>>, Violation> {
        let Some(len) = self.published(ring)? else { return Ok(None) };
        let (cell, _) = place(ring, self.position);
        let words = &ring.cell(cell)[..S::CELL_WORDS];
        let prefix = std::array::from_fn(|index| words[1 + index].load(Ordering::Relaxed));
        load(&words[1 + PREFIX..], &mut self.body[..in_first::<S>()]);
        if len > in_first::<S>() {
            self.later_cells(ring, len)?;
        }
        Ok(Some(Frame { prefix, body: &self.body[..len] }))
    }

    /// Copies the later cells of a frame whose body has `len` bytes.
    fn later_cells<S: Storage>(&mut self, ring: &S, len: usize) -> Result<(), Violation> {
        let room = in_first::<S>() + (cells_of::<S>(len) as usize - 1) * payload::<S>();
        if self.body.len() < room {
            self.body.resize(room, 0);
        }
        let rest = &mut self.body[in_first::<S>()..room];
        for (part, index) in rest.chunks_exact_mut(payload::<S>()).zip(1..) {
            let (cell, stamp) = place(ring, self.position.wrapping_add(index));
            let words = &ring.cell(cell)[..S::CELL_WORDS];
            if words[0].load(Ordering::Relaxed) != stamp | LATER {
                return Err(Violation::Torn);
            }
            load(&words[1..], part);
        }
        Ok(())
    }

    /// Length of the next frame's body, if the frame is published.
    #[inline]
    fn published<S: Storage>(&self, ring: &S) -> Result<Option<usize>, Violation> {
        let (cell, stamp) = place(ring, self.position);
        let header = ring.cell(cell)[0].load(Ordering::Acquire); // SYNC message.frame (acquire)
        let len = (header & LENGTH) as usize;
        if header & !LENGTH == stamp | FIRST && len <= self.longest {
            return Ok(Some(len));
        }
        let before = stamp_of(ring, ((stamp >> 32) as u32).wrapping_sub(1));
        if header & STAMP == before { Ok(None) } else { Err(Violation::Header(header)) }
    }

    /// Gives back the cells of the frame that [`peek`](Self::peek) returned, whose body has `len` bytes. True if a producer
    /// sleeps for want of room: wake it.
    #[inline]
    pub(super) fn pop<S: Storage>(&mut self, ring: &S, len: usize) -> bool {
        self.position = self.position.wrapping_add(cells_of::<S>(len));
        if self.position.wrapping_sub(self.published) < ring.cells() as u32 / 4 {
            return false;
        }
        self.published = self.position;
        ring.head().store(self.position.into(), Ordering::Release); // SYNC message.head (release)
        is_set_after(ring.full())
    }

    /// Asks to be woken at the next frame. True if there is one already: do not sleep.
    pub(super) fn arm<S: Storage>(&self, ring: &S) -> Result<bool, Violation> {
        ring.sleeping().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC message.sleeping (consumer)
        Ok(self.published(ring)?.is_some())
    }

    /// Takes back what [`arm`](Self::arm) has asked for.
    pub(super) fn disarm<S: Storage>(&self, ring: &S) {
        ring.sleeping().store(0, Ordering::Relaxed);
    }
}

/// Stores `bytes` into the first words that they need; what remains of the last one is 0.
#[inline]
fn store<W: Word>(words: &[W], bytes: &[u8]) {
    let whole = bytes.chunks_exact(8);
    let rest = whole.remainder();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(bytes.try_into().expect("chunks of eight")), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[bytes.len() / 8].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Loads as many words as fill `bytes`.
#[inline]
fn load<W: Word>(words: &[W], bytes: &mut [u8]) {
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}
