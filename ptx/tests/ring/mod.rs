//! A FIFO as the tests of kernels consume it: as simple as the protocol allows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use aqueduct_ptx::abi::{FifoHandle, NO_PEER, ProxyTrigger, lap_bit};

use crate::device::Machine;

/// The upper half of a head that gives no more positions.
pub(crate) const CLOSED: u32 = 1 << 31;

/// The slots, the words around them, and the consumer.
pub(crate) struct Ring {
    pub(crate) machine: Machine,
    pub(crate) handle: FifoHandle,
    /// Of the next trigger.
    pub(crate) position: u64,
}

impl Ring {
    /// An empty FIFO that has carried `start` triggers.
    pub(crate) fn new(capacity: u32, start: u64) -> Self {
        Self::of(Machine::new(1), capacity, start)
    }

    /// The same, of rank 0 of a machine.
    pub(crate) fn of(machine: Machine, capacity: u32, start: u64) -> Self {
        let slots = machine.host(32 * capacity as usize) as u64;
        let tail = machine.host(8) as u64;
        let counters = machine.alloc(0, 256);
        machine.write(0, counters, &start.to_ne_bytes());
        machine.write(0, counters + 128, &start.to_ne_bytes());
        let handle = FifoHandle {
            slots,
            head: counters,
            tail,
            tail_cache: counters + 128,
            capacity,
            capacity_log2: capacity.ilog2(),
            abort: machine.abort_handle(0, NO_PEER),
        };
        let ring = Self { machine, handle, position: start };
        word(tail).store(start, Ordering::Relaxed);
        for ahead in 0..u64::from(capacity) {
            let position = start.wrapping_add(ahead);
            let old = u64::from(!lap_bit(position, u64::from(capacity))) << 63;
            ring.slot(position).iter().for_each(|word| word.store(old, Ordering::Relaxed));
        }
        ring
    }

    pub(crate) fn slot(&self, position: u64) -> [&'static AtomicU64; 4] {
        let slot = self.handle.slots + 32 * (position % u64::from(self.handle.capacity));
        [0, 8, 16, 24].map(|offset| word(slot + offset))
    }

    /// Takes no positions any more.
    pub(crate) fn close(&self) {
        self.machine.write_value(0, self.handle.head + 4, CLOSED);
    }

    pub(crate) fn head(&self) -> u64 {
        u64::from_ne_bytes(self.machine.read(0, self.handle.head, 8).try_into().expect("eight bytes"))
    }

    pub(crate) fn poll(&self) -> Option<ProxyTrigger> {
        let words = self.slot(self.position).map(|word| word.load(Ordering::Relaxed));
        let trigger = ProxyTrigger { words };
        let whole = trigger.is_whole(lap_bit(self.position, u64::from(self.handle.capacity)));
        fence(Ordering::Acquire);
        whole.then_some(trigger)
    }

    pub(crate) fn pop(&mut self) {
        self.position = self.position.wrapping_add(1);
        word(self.handle.tail).store(self.position, Ordering::Release);
    }
}

pub(crate) fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: an aligned word of pinned memory that is never freed; every access is atomic.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

pub(crate) fn word32(address: u64) -> &'static AtomicU32 {
    // SAFETY: as above; the plain stores of a kernel are behind its fence.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}
