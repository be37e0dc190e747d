//! What a kernel does, on threads of the host.

use aqueduct_ptx::abi::lap_bit;

#[cfg(loom)]
use super::ring::Word;
use super::ring::{Storage, index};
use crate::sync::{AtomicU64, Ordering, fence};

/// A ring in ordinary memory with what lies in a GPU's memory beside it: head and cached tail.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Vec<[AtomicU64; 4]>,
    tail: AtomicU64,
    pub(super) head: AtomicU64,
    cache: AtomicU64,
}

/// The bit of a head that gives no more positions.
#[cfg(loom)]
const CLOSED: u64 = 1 << 63;

/// A position that may be written, and the tail that says so if it is news.
#[derive(Debug)]
pub(super) struct Room {
    position: u64,
    tail: Option<u64>,
}

#[cfg(loom)]
impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

impl Ring {
    /// An empty ring that has carried `start` triggers.
    pub(super) fn new(capacity: u64, start: u64) -> Self {
        let slot = |index: u64| {
            // The position that will use this slot next; its predecessor had the other lap bit.
            let next = start.wrapping_add(index.wrapping_sub(start) & (capacity - 1));
            let old = u64::from(!lap_bit(next, capacity)) << 63;
            [(); 4].map(|()| AtomicU64::new(old))
        };
        Self {
            slots: (0..capacity).map(slot).collect(),
            tail: AtomicU64::new(start),
            head: AtomicU64::new(start),
            cache: AtomicU64::new(start),
        }
    }

    /// Takes the next position.
    pub(super) fn take(&self) -> u64 {
        self.head.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether `position`, which the caller has taken, may be written. It may have to be asked again.
    pub(super) fn room(&self, position: u64) -> Option<Room> {
        let free = |tail: u64| position.wrapping_sub(tail) < self.slots.len() as u64;
        if free(self.cache.load(Ordering::Relaxed)) {
            return Some(Room { position, tail: None });
        }
        let tail = self.tail.load(Ordering::Relaxed); // SYNC fifo.tail (acquire, with the fence)
        free(tail).then_some(Room { position, tail: Some(tail) })
    }

    /// Publishes what was written before, and the trigger. `order` weakens the fence in the models that must fail.
    pub(super) fn commit(&self, room: &Room, payload: [u64; 4], order: Ordering) {
        // One fence for all: it publishes the data, and it acquires the tail, be it for whoever reads it
        // from the cache.
        if order != Ordering::Relaxed {
            fence(order); // SYNC fifo.commit (release)
        }
        if let Some(tail) = room.tail {
            // It may go back behind another producer's newer value: it lags, it never leads.
            self.cache.store(tail, Ordering::Relaxed);
        }
        let capacity = self.slots.len() as u64;
        let lap = u64::from(lap_bit(room.position, capacity)) << 63;
        for (word, value) in self.slots[index(room.position, capacity)].iter().zip(payload) {
            word.store(value | lap, Ordering::Relaxed);
        }
    }

    /// Whether `position` has been consumed; sees what the consumer did before.
    pub(super) fn is_consumed(&self, position: u64, order: Ordering) -> bool {
        self.tail.load(order).wrapping_sub(position).cast_signed() > 0 // SYNC fifo.tail (acquire)
    }
}

impl Storage for &Ring {
    type Word = AtomicU64;

    fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    fn slot(&self, index: usize) -> [&AtomicU64; 4] {
        self.slots[index].each_ref()
    }

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }
}

/// How a ring is closed.
#[cfg(loom)]
impl Ring {
    /// The host's: takes no positions any more. The device's word is stored to in its upper half, which no model of memory
    /// knows; to set the bit is the same to everybody.
    pub(super) fn close(&self) {
        self.head.fetch_or(CLOSED, Ordering::Relaxed); // SYNC fifo.closed
    }

    /// Whether what was [taken](Self::take) is no position; then it has to be taken back.
    pub(super) fn is_closed(position: u64) -> bool {
        position & CLOSED != 0
    }

    /// What the head counts from now on was not taken.
    pub(super) fn take_back(&self) {
        self.head.fetch_sub(1, Ordering::Relaxed);
    }

    /// The host's, once closed: whether all that were taken before have been consumed up to `position`.
    pub(super) fn is_drained(&self, position: u64) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        assert!(Self::is_closed(head), "the ring is open");
        head & u64::from(u32::MAX) == position & u64::from(u32::MAX)
    }
}
