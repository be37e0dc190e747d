//! Pinned memory and streams by which messages reach the memory of one context's devices.

use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, Event, KeepAlive, PinnedBuffer, Stream, ThreadCaptureMode};
use crate::message::device::{STAGED, Underway};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Blocks of a pool. A block is taken only while a device copies, so no peer can hold any.
const BLOCKS: usize = 8;

/// The stock of one context: made when the first messenger needs it, and kept until the last one has gone.
pub(super) struct Pool {
    stock: Arc<Stock>,
    /// For copies to the host, and for those into the device's memory: neither waits for the other.
    outward: Stream,
    inward: Stream,
}

/// The blocks. Apart from the streams, which hold the blocks that they copy.
struct Stock {
    memory: Arc<PinnedBuffer>,
    free: Mutex<Vec<usize>>,
    /// Of each block, the copy that ends its use, whether somebody waits for that or not.
    last_copies: Mutex<[Option<LastCopy>; BLOCKS]>,
}

/// The event of the copy that ends the use of a block. The stream keeps the block until then.
type LastCopy = (Arc<Event>, Weak<Block>);

/// A block of pinned memory, until it is given back or dropped.
pub(super) struct Block {
    stock: Arc<Stock>,
    index: usize,
    given_back: AtomicBool,
}

/// The pool of a context, as long as somebody has it.
#[derive(Default)]
struct Known(Mutex<Weak<Pool>>);

impl Pool {
    /// The pool of `context`.
    ///
    /// # Errors
    /// A driver error, for instance if no more memory can be locked.
    pub(super) fn of(context: &Context) -> Result<Arc<Self>> {
        let known = &context.slot::<Known>().0;
        if let Some(pool) = lock(known).upgrade() {
            return Ok(pool);
        }
        // No capture of the user's is concerned.
        let _relaxed = ThreadCaptureMode::relaxed(context.driver())?;
        // Without the lock: an allocation drops what the user's streams retain, and that may ask for the pool.
        let memory = Arc::new(PinnedBuffer::new(context, BLOCKS * STAGED)?);
        let (free, last_copies) = (Mutex::new((0..BLOCKS).collect()), Mutex::default());
        let stock = Arc::new(Stock { memory, free, last_copies });
        let pool = Arc::new(Self { stock, outward: Stream::new(context)?, inward: Stream::new(context)? });
        let mut known = lock(known);
        if let Some(other) = known.upgrade() {
            return Ok(other);
        }
        *known = Arc::downgrade(&pool);
        Ok(pool)
    }

    /// A free block; `None` if there is none now.
    pub(super) fn block(&self) -> Option<Arc<Block>> {
        let take = || lock(&self.stock.free).pop();
        let index = take().or_else(|| {
            // Not `Context::reap`, which drops what streams of the user's retain: callers have locks.
            self.stock.reclaim();
            take()
        })?;
        Some(Arc::new(Block { stock: self.stock.clone(), index, given_back: AtomicBool::new(false) }))
    }

    /// Begins to copy `from` to the first bytes of `block`.
    pub(super) fn fetch(&self, from: &DeviceSlice, block: &Arc<Block>) -> Result<Copy> {
        let to = block.slice(from.len())?;
        Copy::begin(&self.outward, &to, from, Arc::downgrade(block))
    }

    /// Begins to copy the first bytes of `block` to `to`.
    pub(super) fn store(&self, to: &DeviceSlice, block: Arc<Block>) -> Result<Copy> {
        let from = block.slice(to.len())?;
        let copy = Copy::begin(&self.inward, to, &from, Arc::downgrade(&block))?;
        block.free_behind(&copy);
        Ok(copy)
    }

    /// Begins to copy from the memory of a device to that of one.
    pub(super) fn copy(&self, to: &DeviceSlice, from: &DeviceSlice) -> Result<Copy> {
        Copy::begin(&self.inward, to, from, Weak::new())
    }
}

impl Stock {
    /// Takes blocks back whose last copies have ended. A device that has failed does not answer, and copies nothing any more.
    fn reclaim(&self) {
        let mut over = Vec::new();
        for last in lock(&self.last_copies).iter_mut() {
            over.extend(last.take_if(|(event, _)| event.is_done().unwrap_or(true)));
        }
        over.iter().filter_map(|(_, block)| block.upgrade()).for_each(|block| block.give_back());
    }
}

impl Block {
    /// Its first `length` bytes for the device. Whatever uses them keeps the block.
    fn slice(self: &Arc<Self>, length: usize) -> Result<DeviceSlice> {
        let at = self.index * STAGED;
        let slice = self.stock.memory.slice(at..at + length.min(STAGED))?;
        Ok(slice.keeping(self.clone() as KeepAlive))
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: the block is within the memory.
        unsafe { self.stock.memory.host_ptr().as_ptr().add(self.index * STAGED) }
    }

    /// Fills its first bytes. Nothing is copying from or to it: the caller has just taken it.
    pub(super) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= STAGED, "longer than a block");
        // SAFETY: within the block, as checked. Whoever has the block has its bytes: the free list gives each one out once, and no
        // device copies before the caller asks for it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(), bytes.len()) };
    }

    /// Its first `length` bytes. The copy to it has ended.
    pub(super) fn bytes(&self, length: usize) -> Vec<u8> {
        assert!(length <= STAGED, "longer than a block");
        // SAFETY: within the block, as checked, which is pinned memory and initialised. No device writes it any more, as the caller says,
        // and nobody else has the block.
        unsafe { std::slice::from_raw_parts(self.address(), length) }.to_vec()
    }

    /// Lets others have it once `copy`, which uses it last, has ended; unless they have it already.
    pub(super) fn free_behind(self: &Arc<Self>, copy: &Copy) {
        if self.given_back.load(Ordering::Acquire) {
            return;
        }
        lock(&self.stock.last_copies)[self.index] = Some((copy.event.clone(), Arc::downgrade(self)));
    }

    /// Lets others have it. The device has ended with it, although its stream may not know that yet.
    pub(super) fn give_back(&self) {
        if !self.given_back.swap(true, Ordering::AcqRel) {
            lock(&self.stock.free).push(self.index);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("free", &lock(&self.stock.free).len()).finish_non_exhaustive()
    }
}

/// A copy under way. Its stream holds everything that it uses until it has ended.
pub(super) struct Copy {
    event: Arc<Event>,
    /// The stream has it until then: nobody need ask for the block to be free again.
    block: Weak<Block>,
}

impl Copy {
    fn begin(stream: &Stream, to: &DeviceSlice, from: &DeviceSlice, block: Weak<Block>) -> Result<Self> {
        let event = Arc::new(Event::new(stream.context())?);
        stream.copy(to, from)?;
        event.record(stream)?;
        Ok(Self { event, block })
    }

    /// Whether it has ended.
    pub(super) fn is_done(&self) -> Result<bool> {
        self.event.is_done().map_err(|error: Error| error.of("read"))
    }
}

impl Underway for Copy {
    fn is_done(&mut self) -> Result<bool> {
        let done = Self::is_done(self)?;
        if done {
            self.block.upgrade().into_iter().for_each(|block| block.give_back());
        }
        Ok(done)
    }
}
