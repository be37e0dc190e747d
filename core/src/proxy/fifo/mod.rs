//! [`Fifo`]: triggers from the threads of a GPU to one thread of the host.

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod producer;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ptr::NonNull;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, FifoHandle, ProxyTrigger};

use self::ring::{Consumer, Storage, all_popped, end_of_written};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{BufferOptions, Context, GpuBuffer, HandlePolicy, KeepAlive, PinnedBuffer, Stream};
use crate::sync::{AtomicBool, Ordering, raw};

/// Bytes of a slot.
const SLOT: usize = size_of::<ProxyTrigger>();
/// Words with different writers, and the slots, lie on different cache lines of host and GPU.
const LINE: usize = 128;
/// Upper half of the head of a closed FIFO.
const CLOSED: u32 = 1 << 31;

/// A queue with many producers, the threads of one GPU's kernels, and one consumer, a thread of the host.
///
/// | word | memory | written by |
/// |---|---|---|
/// | slots ([`ProxyTrigger`], 32 bytes) | pinned host memory | producers |
/// | head: the next position | device memory | producers, by an atomic add |
/// | tail: the consumer's position | pinned host memory | the consumer |
/// | cached tail | device memory | producers that have read the tail |
///
/// A producer takes a position from the head, waits until `tail > position - size`, fences, and writes the slot with the
/// position's lap bit in each of its four words. No slot is ever cleared, and a trigger of zeros is valid.
/// The lap bit makes a trigger whole; the fence publishes the data that the trigger refers to. A thread that pushes for its group
/// does so behind the group's barrier.
///
/// [`FifoConsumer::pop`] frees the slot, and releases threads that wait for its position (`fifo_sync`). The consumer has then
/// handled the trigger; a transfer that it started may still be under way.
///
/// Kernels read the tail, which is host memory, only when the copy in device memory says that the FIFO is full.
/// MSCCL++ before 0.7 kept a replica of the tail in device memory, which the host updated by a copy (`flushTail`, at an
/// interval or when a handler returned `FlushFifoTailAndContinue`): producers waited for that copy, and a `sync` whose
/// handler did not ask for it waited for the interval. Here producers see a pop as soon as it is stored, so neither exists.
///
/// A FIFO is [closed](Self::close) by setting the top bit of the head. A thread that takes a position after that gives it
/// back and leaves with `LEFT_CLOSED`. A closed FIFO is therefore drained, with nothing lost, when the head equals the
/// tail. A push that finds room pays nothing for this: only a push that finds none checks for the bit.
///
/// A kernel that is told to leave while it waits for room has taken a position that it will never write. The FIFO is then
/// stuck at that position: drop it and make another. Cheap to clone; all clones are one FIFO.
#[derive(Clone, Debug)]
pub struct Fifo {
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Memory {
    /// The tail, and from `LINE` on the slots.
    host: PinnedBuffer,
    /// Head, and at `LINE` the cached tail.
    device: Arc<GpuBuffer>,
    /// The stream on which the host reads and writes the head.
    control: Stream,
    capacity: u32,
    /// Whether there is a [`FifoConsumer`].
    consumed: AtomicBool,
}

impl Fifo {
    /// Default number of slots.
    pub const DEFAULT_SIZE: usize = 512;

    /// An empty FIFO of `size` slots for the kernels of `context`.
    ///
    /// # Errors
    /// `InvalidUsage` if `size` is no power of two or more than 2^31; what the driver says of the allocations.
    pub fn new(context: &Context, size: usize) -> Result<Self> {
        let capacity = u32::try_from(size).ok().filter(|size| size.is_power_of_two()).ok_or_else(|| {
            let message = format!(
                "the size {size} is no power of two up to 2^31: the default is {}",
                Self::DEFAULT_SIZE
            );
            Error::usage("Fifo::new", message)
        })?;
        let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
        let memory = Memory {
            host: PinnedBuffer::new(context, LINE + size * SLOT)?,
            device: Arc::new(GpuBuffer::with_options(context, 2 * LINE, plain)?),
            control: Stream::new(context)?,
            capacity,
            consumed: AtomicBool::new(false),
        };
        Ok(Self { memory: Arc::new(memory) })
    }

    /// Slots.
    pub fn size(&self) -> usize {
        self.memory.capacity as usize
    }

    /// The handle that kernels push with. Waiting kernels leave when `abort` is raised.
    ///
    /// Plain addresses: retain [`keep_alive`](Self::keep_alive), and what keeps `abort` alive, while a kernel uses them.
    pub fn device_handle(&self, abort: AbortHandle) -> FifoHandle {
        let (host, device) = (self.memory.host.device_ptr(), self.memory.device.ptr());
        FifoHandle {
            slots: host + LINE as u64,
            head: device,
            tail: host,
            tail_cache: device + LINE as u64,
            capacity: self.memory.capacity,
            capacity_log2: self.memory.capacity.ilog2(),
            abort,
        }
    }

    /// Keeps the memory behind [`device_handle`](Self::device_handle) alive.
    pub fn keep_alive(&self) -> KeepAlive {
        self.memory.clone()
    }

    /// Closes the FIFO for pushes, which leave with `LEFT_CLOSED` from now on. Positions taken before are still written: consume
    /// them until [`FifoConsumer::is_drained`]. Kernels may be running. A closed FIFO cannot be opened again.
    ///
    /// # Errors
    /// Timeout, and what the driver says.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        // Only the upper half is written, so that concurrent atomic additions to the whole word are not lost; positions stay
        // below 2^63.
        let upper = self.memory.device.slice(4..8)?;
        self.memory.control.write_value32(&upper, CLOSED)?; // SYNC fifo.closed
        self.memory.control.synchronize(deadline)
    }

    /// Takes the first position, as a kernel does that then leaves without writing it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn take_first_position(&self) {
        let lower = self.memory.device.slice(0..4).unwrap();
        self.memory.control.write_value32(&lower, 1).unwrap();
        self.memory.control.synchronize(std::time::Duration::from_secs(60)).unwrap();
    }

    /// A position behind all triggers of kernels that have ended.
    pub(super) fn end_of_written(&self) -> u64 {
        end_of_written(&Slots(self.memory.clone()))
    }

    /// Whether all triggers before `position` were popped.
    pub(super) fn is_popped(&self, position: u64) -> bool {
        all_popped(&Slots(self.memory.clone()), position)
    }

    /// The consuming end. After it is dropped, another one can be made, which goes on at the same position.
    ///
    /// # Errors
    /// `InvalidUsage` while there is one: a FIFO has one consumer.
    pub fn consumer(&self) -> Result<FifoConsumer> {
        if self.memory.consumed.swap(true, Ordering::Acquire) {
            return Err(Error::usage(
                "Fifo::consumer",
                "this FIFO has a consumer: drop it first, or make a FIFO for each consumer",
            ));
        }
        Ok(FifoConsumer { ring: Consumer::new(Slots(self.memory.clone())) })
    }
}

/// The one consumer of a [`Fifo`]. Keeps the FIFO's memory alive.
#[derive(Debug)]
pub struct FifoConsumer {
    ring: Consumer<Slots>,
}

impl FifoConsumer {
    /// The oldest trigger that has not been popped, if it is complete. Data that its producer wrote before pushing is visible.
    /// Never waits. Returns the same trigger until it is popped.
    pub fn poll(&mut self) -> Option<ProxyTrigger> {
        self.ring.poll()
    }

    /// Frees the slot of the polled trigger, and releases threads that wait for its position.
    ///
    /// # Errors
    /// `InvalidUsage` if no trigger was polled since the last one was popped; nothing changes.
    pub fn pop(&mut self) -> Result<()> {
        if self.ring.pop() {
            Ok(())
        } else {
            Err(Error::usage("FifoConsumer::pop", "no trigger has been polled: nothing to pop"))
        }
    }

    /// Whether every position that was taken before the FIFO was closed has been popped. Reads device memory, so call it when
    /// [`poll`](Self::poll) returns none. While kernels keep pushing in vain it may say no once too often.
    ///
    /// # Errors
    /// `InvalidUsage` if the FIFO was not closed; timeout, and what the driver says.
    pub fn is_drained(&self, deadline: impl Into<Deadline>) -> Result<bool> {
        let memory = &self.ring.storage().0;
        let mut head = [0_u32; 2];
        memory.device.slice(0..8)?.download(0, &mut head, deadline)?;
        if head[1] & CLOSED == 0 {
            return Err(Error::usage(
                "FifoConsumer::is_drained",
                "the FIFO is open: Fifo::close comes first",
            ));
        }
        // Fewer than 2^32 positions are ever under way, so the lower halves decide.
        Ok(head[0] == self.position() as u32)
    }

    /// Position of the trigger that [`poll`](Self::poll) waits for: the number of triggers popped so far.
    pub fn position(&self) -> u64 {
        self.ring.position()
    }
}

impl Drop for FifoConsumer {
    fn drop(&mut self) {
        self.ring.storage().0.consumed.store(false, Ordering::Release);
    }
}

/// The words of a FIFO in pinned memory.
#[derive(Debug)]
struct Slots(Arc<Memory>);

impl Slots {
    fn word(&self, offset: usize) -> &raw::AtomicU64 {
        debug_assert!(offset + 8 <= self.0.host.len() && offset.is_multiple_of(8));
        let word: NonNull<u8> = self.0.host.host_ptr();
        // SAFETY: callers stay inside the buffer, which is page-aligned, holds as many slots as the capacity says and
        // lives as long as `self`; everybody reaches it with atomic accesses only.
        unsafe { raw::AtomicU64::from_ptr(word.add(offset).as_ptr().cast()) }
    }
}

impl Storage for Slots {
    type Word = raw::AtomicU64;

    fn capacity(&self) -> u64 {
        u64::from(self.0.capacity)
    }

    fn slot(&self, index: usize) -> [&raw::AtomicU64; 4] {
        [0, 8, 16, 24].map(|offset| self.word(LINE + index * SLOT + offset))
    }

    fn tail(&self) -> &raw::AtomicU64 {
        self.word(0)
    }
}
