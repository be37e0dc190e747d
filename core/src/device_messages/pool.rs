//! Pinned memory and streams by which messages reach the memory of one context's devices.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::blocks::{Block, Stock};
use super::copies::{Copies, Copy};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, ThreadCaptureMode};
use crate::message::device::Reap;
use crate::sync::{Mutex, lock};

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
        let stock = Arc::new(Stock::new(context)?);
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
        self.stock.take().or_else(|| {
            // Drops nothing of the program's: callers have locks.
            self.outward.look();
            self.inward.look();
            self.stock.take()
        })
    }

    /// Begins to copy `from` to the first bytes of `block`; `None` if that cannot be now.
    pub(super) fn fetch(&self, from: &DeviceSlice, block: &Arc<Block>) -> Result<Option<Copy>> {
        self.outward.begin(&block.slice(from.len())?, from, Some(block.clone()))
    }

    /// Begins to copy the first bytes of `block` to `to`; `None` if that cannot be now.
    pub(super) fn store(&self, to: &DeviceSlice, block: Arc<Block>) -> Result<Option<Copy>> {
        self.inward.begin(to, &block.slice(to.len())?, Some(block))
    }

    /// Begins to copy from the memory of a device to that of one; `None` if that cannot be now.
    pub(super) fn copy(&self, to: &DeviceSlice, from: &DeviceSlice) -> Result<Option<Copy>> {
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

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("free", &self.stock.free()).finish_non_exhaustive()
    }
}
