//! The pinned memory of a pool, in blocks.

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, PinnedBuffer};
use crate::message::device::STAGED;
use crate::sync::{Mutex, lock};

/// Blocks of a pool. A block is taken only while a device copies, so no peer can hold any.
const BLOCKS: usize = 8;

/// The blocks. Apart from the lists of copies, which hold blocks.
pub(super) struct Stock {
    memory: Arc<PinnedBuffer>,
    free: Mutex<Vec<usize>>,
}

/// A block of pinned memory: of whoever took it, and of the copy that uses it. Others may have it when both have let go of it.
pub(super) struct Block {
    stock: Arc<Stock>,
    index: usize,
}

impl Stock {
    /// All of its blocks are free.
    ///
    /// # Errors
    /// A driver error, for instance if no more memory can be locked.
    pub(super) fn new(context: &Context) -> Result<Self> {
        let memory = Arc::new(PinnedBuffer::new(context, BLOCKS * STAGED)?);
        Ok(Self { memory, free: Mutex::new((0..BLOCKS).collect()) })
    }

    /// A free block; `None` if there is none now.
    pub(super) fn take(self: &Arc<Self>) -> Option<Arc<Block>> {
        let index = lock(&self.free).pop()?;
        Some(Arc::new(Block { stock: self.clone(), index }))
    }

    /// How many blocks are free.
    pub(super) fn free(&self) -> usize {
        lock(&self.free).len()
    }
}

impl Block {
    /// Its first `length` bytes for the device. Whatever uses them keeps the block.
    pub(super) fn slice(&self, length: usize) -> Result<DeviceSlice> {
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
