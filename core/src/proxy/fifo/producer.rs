//! The producer's side as kernels execute it, on threads of the host, for tests.

#[cfg(not(loom))]
use aqueduct_ptx::abi::ProxyTrigger;
use aqueduct_ptx::abi::lap_bit;

#[cfg(loom)]
use super::ring::Word;
use super::ring::{Storage, index};
use crate::sync::{AtomicU64, Ordering, fence};

/// A ring in ordinary memory, with the head and the cached tail that a GPU would have in device memory.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Vec<[AtomicU64; 4]>,
    tail: AtomicU64,
    pub(super) head: AtomicU64,
    cache: AtomicU64,
}

/// The bit that closes the head.
#[cfg(loom)]
const CLOSED: u64 = 1 << 63;

/// A position that may be written, and the tail that was read to find out, if it was read.
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
            // The next position that uses this slot; the previous one had the other lap bit.
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

    /// Room for `position`, which the caller has taken; none while the FIFO is full.
    pub(super) fn room(&self, position: u64) -> Option<Room> {
        let free = |tail: u64| position.wrapping_sub(tail) < self.slots.len() as u64;
        if free(self.cache.load(Ordering::Relaxed)) {
            return Some(Room { position, tail: None });
        }
        let tail = self.tail.load(Ordering::Relaxed); // SYNC fifo.tail (acquire, with the fence)
        free(tail).then_some(Room { position, tail: Some(tail) })
    }

    /// Publishes the data written before, and the trigger. Models that must fail weaken the fence by `order`.
    pub(super) fn commit(&self, room: &Room, payload: [u64; 4], order: Ordering) {
        // One fence serves both: it publishes the data, and it acquires the tail, also for those who read it from the cache.
        if order != Ordering::Relaxed {
            fence(order); // SYNC fifo.commit (release)
        }
        if let Some(tail) = room.tail {
            // This may overwrite another producer's newer value: the cache lags, it never leads.
            self.cache.store(tail, Ordering::Relaxed);
        }
        let capacity = self.slots.len() as u64;
        let lap = u64::from(lap_bit(room.position, capacity)) << 63;
        for (word, value) in self.slots[index(room.position, capacity)].iter().zip(payload) {
            word.store(value | lap, Ordering::Relaxed);
        }
    }

    /// Whether `position` has been consumed. Acquires what the consumer did before.
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

#[cfg(not(loom))]
impl super::Fifo {
    /// Writes the trigger that `encode` makes of the lap bit of `position`, which the caller has taken.
    pub(in crate::proxy) fn write(&self, position: u64, encode: impl Fn(bool) -> ProxyTrigger) {
        let slots = super::Slots(self.memory.clone());
        let trigger = encode(lap_bit(position, slots.capacity()));
        fence(Ordering::AcqRel); // SYNC fifo.commit (release)
        for (word, value) in slots.slot(index(position, slots.capacity())).into_iter().zip(trigger.words) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// How a ring is closed.
#[cfg(loom)]
impl Ring {
    /// The host closes the ring. It really stores to the upper half of the word, which no memory model describes; setting the
    /// bit atomically has the same effect for all others.
    pub(super) fn close(&self) {
        self.head.fetch_or(CLOSED, Ordering::Relaxed); // SYNC fifo.closed
    }

    /// Whether a [taken](Self::take) value is no position, because the ring was closed. It must then be given back.
    pub(super) fn is_closed(position: u64) -> bool {
        position & CLOSED != 0
    }

    /// Gives back a position of a closed ring.
    pub(super) fn take_back(&self) {
        self.head.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the consumer, at `position`, has consumed all that was taken before the ring was closed.
    pub(super) fn is_drained(&self, position: u64) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        assert!(Self::is_closed(head), "the ring is open");
        head & u64::from(u32::MAX) == position & u64::from(u32::MAX)
    }
}
