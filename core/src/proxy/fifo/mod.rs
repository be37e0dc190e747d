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

use aqueduct_ptx::abi::{self, AbortHandle, ProxyTrigger};

use self::ring::{Consumer, Storage};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::gpu::{BufferOptions, Context, GpuBuffer, HandlePolicy, KeepAlive, PinnedBuffer, Stream};
use crate::sync::{AtomicBool, Ordering, raw};

/// Bytes of a slot.
const SLOT: usize = size_of::<ProxyTrigger>();
/// Words with different writers, and the slots, lie on different cache lines of host and GPU.
const LINE: usize = 128;
/// The upper half of a head that gives no more positions.
const CLOSED: u32 = 1 << 31;

/// A queue with many producers, the threads of one GPU's kernels, and one consumer, a thread of the host.
///
/// | what | where | written by |
/// |---|---|---|
/// | slots ([`ProxyTrigger`], 32 bytes) | pinned host memory | producers |
/// | head: next position to hand out | device memory | producers, by an atomic add |
/// | tail: the consumer's position | pinned host memory | the consumer |
/// | cached tail | device memory | producers that had to look at the tail |
///
/// A producer takes a position from the head, waits until `tail > position - size`, fences, and writes the slot with the
/// position's lap bit in each of its four words. A slot is never cleared and a trigger of zeros is as good as any other.
/// The bit makes a trigger whole; the fence publishes the data that it speaks of. A thread that pushes for its group
/// does so behind the group's barrier.
///
/// [`FifoConsumer::pop`] tells producers that a slot is free, and threads that wait for a position (`fifo_sync`) that its
/// trigger has been dealt with: that the consumer is done with it, not that a transfer it started has completed.
///
/// The tail is host memory that kernels read, and read only when the copy in their own memory says that the FIFO is full.
/// MSCCL++ before 0.7 had instead a replica of the tail in device memory which the host renewed with a copy
/// (`flushTail`, at an interval or when a handler returned `FlushFifoTailAndContinue`): producers waited for that copy,
/// and a `sync` whose handler forgot to ask for it waited for the interval. Here a pop is seen as soon as it is stored,
/// so neither exists.
///
/// A FIFO is [closed](Self::close) by setting the top bit of the head. A position taken after that is none: its thread takes it
/// back and leaves with `LEFT_CLOSED`. So a closed FIFO is drained, with nothing lost, when the head has come back to the
/// tail, and a push that finds room costs nothing for it, because only one that finds none looks.
///
/// A kernel that is told to leave while it waits for room has taken a position that nobody writes. The FIFO is then
/// stuck at that position: drop it and make another one. Cheap to clone; all clones are one FIFO.
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
    /// For what the host writes and reads of the head.
    control: Stream,
    capacity: u32,
    /// Whether there is a [`FifoConsumer`].
    consumed: AtomicBool,
}

impl Fifo {
    /// Slots unless somebody asks for another number.
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

    /// What kernels push with. `abort` is where those that wait learn that they must leave.
    ///
    /// Plain addresses: retain [`keep_alive`](Self::keep_alive), and what keeps `abort` alive, while a kernel uses them.
    pub fn device_handle(&self, abort: AbortHandle) -> abi::Fifo {
        let (host, device) = (self.memory.host.device_ptr(), self.memory.device.ptr());
        abi::Fifo {
            slots: host + LINE as u64,
            head: device,
            tail: host,
            tail_cache: device + LINE as u64,
            capacity: self.memory.capacity,
            capacity_log2: self.memory.capacity.ilog2(),
            abort,
        }
    }

    /// What keeps the memory behind [`device_handle`](Self::device_handle) alive.
    pub fn keep_alive(&self) -> KeepAlive {
        self.memory.clone()
    }

    /// Ends pushing: from now on pushes leave with `LEFT_CLOSED`. Positions taken before will still be written, and have to be
    /// consumed until [`FifoConsumer::is_drained`]. Works while kernels run. There is no way back.
    ///
    /// # Errors
    /// Timeout, and what the driver says.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        // The upper half only, so that atomic additions to the whole are neither lost nor undone; positions stay below 2^63.
        let upper = self.memory.device.slice(4..8)?;
        self.memory.control.write_value32(&upper, CLOSED)?; // SYNC fifo.closed
        self.memory.control.synchronize(deadline)
    }

    /// The consuming end. When it is dropped another one can be had, which goes on where it stopped.
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
    /// The oldest trigger that has not been popped, once it is there. What its producer published before it can be read.
    /// Never waits; the same trigger until it is popped.
    pub fn poll(&mut self) -> Option<ProxyTrigger> {
        self.ring.poll()
    }

    /// Gives the slot of the polled trigger back to the producers, and releases who waits for its position.
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

    /// Whether every position that was taken before the FIFO was closed has been popped. Asks the device, so ask when
    /// [`poll`](Self::poll) has nothing. While kernels keep pushing in vain it may say no once more than needed.
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
        // Fewer than 2^32 positions are ever under way, so the lower half tells.
        Ok(head[0] == self.position() as u32)
    }

    /// Position of the trigger that [`poll`](Self::poll) looks for: the number of triggers popped so far.
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
