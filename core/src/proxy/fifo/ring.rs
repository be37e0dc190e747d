//! The consumer's side of the FIFO protocol, without a GPU. The producers are kernels (`fifo_push.ptxi`); `producer.rs` is the
//! same in Rust, for tests.
//!
//! A producer owns the position that it took from the head. It writes the slot once the tail says that the slot's
//! last user has been consumed, with the position's lap bit in every word. The consumer takes a slot for
//! written when all four words bear the lap bit of its position, so words may arrive in any order and no slot is ever
//! cleared. Fences publish the data that the trigger refers to: the producer's between seeing room and writing the
//! slot, the consumer's between seeing the words and using them (`SYNC fifo.commit`); the tail goes back with release
//! and acquire (`SYNC fifo.tail`).
//!
//! Positions are 64 bits wide and compared by their distance, so that starting over at 2^64 is nothing special.

use aqueduct_ptx::abi::{ProxyTrigger, lap_bit};

use crate::sync::{Ordering, fence, raw};

/// A word that others read and write concurrently: `std`'s atomic, or loom's in a model.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// The memory of a FIFO.
pub(super) trait Storage {
    type Word: Word;

    /// Number of slots, a power of two.
    fn capacity(&self) -> u64;
    /// The words of slot `index`, which is below the capacity.
    fn slot(&self, index: usize) -> [&Self::Word; 4];
    /// The consumer's position, as producers see it.
    fn tail(&self) -> &Self::Word;
}

/// The one consumer's side.
#[derive(Debug)]
pub(super) struct Consumer<S> {
    storage: S,
    position: u64,
    /// Whether `poll` has returned the trigger at `position`.
    seen: bool,
}

impl<S: Storage> Consumer<S> {
    /// The consumer of an empty ring whose producers begin at the position that the tail holds.
    pub(super) fn new(storage: S) -> Self {
        let position = storage.tail().load(Ordering::Relaxed);
        Self { storage, position, seen: false }
    }

    /// The memory of the FIFO.
    pub(super) fn storage(&self) -> &S {
        &self.storage
    }

    /// The position of the next trigger: what the tail says.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The trigger at the tail, if all its words are there. The same until [`pop`](Self::pop).
    pub(super) fn poll(&mut self) -> Option<ProxyTrigger> {
        let capacity = self.storage.capacity();
        let slot = self.storage.slot(index(self.position, capacity));
        let lap = lap_bit(self.position, capacity);
        let mut trigger = ProxyTrigger { words: [0; 4] };
        for (word, place) in trigger.words.iter_mut().zip(slot) {
            *word = place.load(Ordering::Relaxed);
            if word.cast_signed().is_negative() != lap {
                return None;
            }
        }
        fence(Ordering::Acquire); // SYNC fifo.commit (acquire, with the loads)
        self.seen = true;
        Some(trigger)
    }

    /// Frees the slot of the polled trigger. Does nothing and returns false if none was polled.
    pub(super) fn pop(&mut self) -> bool {
        let seen = std::mem::take(&mut self.seen);
        if seen {
            self.position = self.position.wrapping_add(1);
            self.storage.tail().store(self.position, Ordering::Release); // SYNC fifo.tail (release)
        }
        seen
    }
}

/// A position behind every trigger that was written before this call: once [all before it are popped](all_popped), none of them is
/// left. Any thread may ask, while producers push and the consumer pops.
///
/// The head says as much, but lies in device memory. A slot that holds another lap was written anew, and its producer had seen
/// a tail behind the trigger that was there: so has this thread, after the fence.
pub(super) fn end_of_written<S: Storage>(storage: &S) -> u64 {
    let (capacity, tail) = (storage.capacity(), storage.tail().load(Ordering::Acquire)); // SYNC fifo.tail (acquire)
    let is_written = |position: u64| {
        let lap = lap_bit(position, capacity);
        let slot = storage.slot(index(position, capacity));
        slot.iter().all(|word| word.load(Ordering::Relaxed).cast_signed().is_negative() == lap)
    };
    // Behind a position that was taken and not yet written, others may be.
    let last = (0..capacity).rev().find(|ahead| is_written(tail.wrapping_add(*ahead)));
    fence(Ordering::Acquire); // SYNC fifo.commit (acquire, with the loads)
    let popped = storage.tail().load(Ordering::Relaxed).wrapping_sub(tail);
    tail.wrapping_add(popped.max(last.map_or(0, |ahead| ahead + 1)))
}

/// Whether all triggers before `position` were popped. The caller then sees what the consumer did before.
pub(super) fn all_popped<S: Storage>(storage: &S, position: u64) -> bool {
    storage.tail().load(Ordering::Acquire).wrapping_sub(position).cast_signed() >= 0 // SYNC fifo.tail (acquire)
}

/// The slot of a position.
pub(super) fn index(position: u64, capacity: u64) -> usize {
    (position & (capacity - 1)) as usize
}

impl Word for raw::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}
