//! Pinned memory and streams by which messages reach the memory of one context's devices.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::copies::{Copies, Copy};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, PinnedBuffer, ThreadCaptureMode};
use crate::message::device::{Reap, STAGED};
use crate::sync::{Mutex, lock};

/// Blocks of a pool. A block is taken only while a device copies, so no peer can hold any.
const BLOCKS: usize = 8;

/// Memory that could not be unmapped, because its device was at work, is not tried again before.
const PAUSE: Duration = Duration::from_millis(500);

/// The stock of one context: made when the first messenger needs it, and kept until the last one has gone.
pub(super) struct Pool {
    stock: Arc<Stock>,
    /// For copies to the host, and for those into the device's memory: neither waits for the other.
    outward: Copies,
    inward: Copies,
    /// When it was last tried to unmap what nothing uses any more.
    unmapped_at: Mutex<Option<Instant>>,
}

/// The blocks. Apart from the lists of copies, which hold blocks.
struct Stock {
    memory: Arc<PinnedBuffer>,
    free: Mutex<Vec<usize>>,
}

/// A block of pinned memory: of whoever took it, and of the copy that uses it. Others may have it when both have let go of it.
pub(super) struct Block {
    stock: Arc<Stock>,
    index: usize,
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
        let stock = Arc::new(Stock { memory, free: Mutex::new((0..BLOCKS).collect()) });
        let (outward, inward) = (Copies::new(context)?, Copies::new(context)?);
        let pool = Arc::new(Self { stock, outward, inward, unmapped_at: Mutex::default() });
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
            // Drops nothing of the program's: callers have locks.
            self.outward.look();
            self.inward.look();
            take()
        })?;
        Some(Arc::new(Block { stock: self.stock.clone(), index }))
    }

    /// Begins to copy `from` to the first bytes of `block`.
    pub(super) fn fetch(&self, from: &DeviceSlice, block: &Arc<Block>) -> Result<Copy> {
        self.outward.begin(&block.slice(from.len())?, from, Some(block.clone()))
    }

    /// Begins to copy the first bytes of `block` to `to`.
    pub(super) fn store(&self, to: &DeviceSlice, block: Arc<Block>) -> Result<Copy> {
        self.inward.begin(to, &block.slice(to.len())?, Some(block))
    }

    /// Begins to copy from the memory of a device to that of one.
    pub(super) fn copy(&self, to: &DeviceSlice, from: &DeviceSlice) -> Result<Copy> {
        self.inward.begin(to, from, None)
    }

    /// The stream of copies into the device's memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn inward(&self) -> &crate::gpu::Stream {
        self.inward.stream()
    }
}

impl Reap for Pool {
    fn reap(&self) {
        self.outward.reap();
        self.inward.reap();
        let mut unmapped_at = lock(&self.unmapped_at);
        if unmapped_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        *unmapped_at = Some(Instant::now());
        drop(unmapped_at);
        self.inward.context().reap_waiting();
    }

    fn has_leftovers(&self) -> bool {
        self.outward.has_any() || self.inward.has_any() || self.inward.context().unreaped() > 0
    }
}

impl Block {
    /// Its first `length` bytes for the device. Whatever uses them keeps the block.
    fn slice(&self, length: usize) -> Result<DeviceSlice> {
        let at = self.index * STAGED;
        self.stock.memory.slice(at..at + length.min(STAGED))
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
        // and nobody else touches the bytes: the list of copies only holds a share.
        unsafe { std::slice::from_raw_parts(self.address(), length) }.to_vec()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.stock.free).push(self.index);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("free", &lock(&self.stock.free).len()).finish_non_exhaustive()
    }
}
