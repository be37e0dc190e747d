//! Words in pinned memory that waiting kernels poll: whether a flush has completed, and whether they must leave.

use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, AbortRecord, NO_PEER};

use crate::comm::AbortRecordMemory;
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, KeepAlive, PinnedBuffer};
use crate::sync::raw::{AtomicU32, AtomicU64, Ordering};

/// Slots of two words each, and one record for all of them.
///
/// | offset | word | written by |
/// |---|---|---|
/// | slot + 0 | position behind the latest flush that has completed | the proxy, or a stream for it |
/// | slot + 8 | abort word | the proxy |
/// | behind the slots | [`AbortRecord`] | the first kernel that leaves |
#[derive(Debug)]
pub(super) struct Words {
    rank: u32,
    pinned: Arc<PinnedBuffer>,
    slots: usize,
    record: Arc<AbortRecordMemory>,
}

/// Bytes of a slot: a cache line of the host.
const SLOT: usize = 64;
const FLUSHED: usize = 0;
const ABORT: usize = 8;

impl Words {
    pub(super) fn new(context: &Context, rank: u32, slots: usize) -> Result<Arc<Self>> {
        const { assert!(AbortRecordMemory::BYTES <= SLOT) };
        let pinned = Arc::new(PinnedBuffer::new(context, (slots + 1) * SLOT)?);
        let record = AbortRecordMemory::new(context, &pinned, slots * SLOT)?;
        Ok(Arc::new(Self { rank, pinned, slots, record }))
    }

    /// The abort handle of kernels that wait for slot `slot`, not yet for whom.
    pub(super) fn handle(&self, slot: usize) -> AbortHandle {
        AbortHandle {
            word: self.pinned.device_ptr() + (slot * SLOT + ABORT) as u64,
            claim: self.record.claim_ptr(),
            rank: self.rank,
            peer: NO_PEER,
        }
    }

    /// Address of the flushed position, for kernels.
    pub(super) fn flushed_ptr(&self, slot: usize) -> u64 {
        self.pinned.device_ptr() + (slot * SLOT + FLUSHED) as u64
    }

    /// The flushed position, for a stream that writes it.
    pub(super) fn flushed_slice(&self, slot: usize) -> Result<DeviceSlice> {
        self.pinned.slice(slot * SLOT + FLUSHED..slot * SLOT + FLUSHED + 8)
    }

    /// Tells kernels that every flush before `position` has completed.
    pub(super) fn set_flushed(&self, slot: usize, position: u64) {
        self.word64(slot).store(position, Ordering::Release); // SYNC port.flushed (release)
    }

    /// Tells kernels that wait for this slot to leave.
    pub(super) fn raise(&self, slot: usize) {
        self.word32(slot).store(1, Ordering::Release); // SYNC abort.word
        #[cfg(all(test, not(loom)))]
        tests::raised();
    }

    /// Clears a slot for its next user.
    pub(super) fn reset(&self, slot: usize) {
        self.word64(slot).store(0, Ordering::Relaxed);
        self.word32(slot).store(0, Ordering::Release);
    }

    /// The record of the first kernel that gave up its wait.
    pub(super) fn record(&self) -> Option<AbortRecord> {
        self.record.read()
    }

    pub(super) fn keep_alive(&self) -> KeepAlive {
        // The record keeps the pinned buffer.
        self.record.clone()
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    fn word64(&self, slot: usize) -> &AtomicU64 {
        assert!(slot < self.slots, "a slot that does not exist");
        // SAFETY: aligned, inside the buffer, which lives as long as `self`; only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.pinned.host_ptr().add(slot * SLOT + FLUSHED).as_ptr().cast()) }
    }

    fn word32(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < self.slots, "a slot that does not exist");
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.pinned.host_ptr().add(slot * SLOT + ABORT).as_ptr().cast()) }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::gpu::{Device, Driver};

    thread_local! {
        static RAISED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Has the next [`Words::raise`] of this thread call `then`, when kernels can see that they must leave.
    pub(in crate::proxy) fn once_raised(then: impl FnOnce() + 'static) {
        RAISED.set(Some(Box::new(then)));
    }

    pub(super) fn raised() {
        if let Some(then) = RAISED.take() {
            then();
        }
    }

    #[test]
    fn each_slot_has_two_words_that_nothing_else_has() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let words = Words::new(&context, 7, 3).unwrap();
        assert_eq!((words.slots(), words.record()), (3, None));
        let base = words.pinned.device_ptr();
        for slot in 0..3 {
            let at = base + (SLOT * slot) as u64;
            let (handle, flushed) = (words.handle(slot), words.flushed_slice(slot).unwrap());
            assert_eq!((handle.word, handle.rank, handle.peer), (at + 8, 7, NO_PEER));
            assert_eq!((words.flushed_ptr(slot), flushed.ptr(), flushed.len()), (at, at, 8));
        }
        assert_ne!(words.handle(0).claim, 0);
        let seen = || {
            let load = |slot| {
                let (flushed, abort) = (words.word64(slot), words.word32(slot));
                (flushed.load(Ordering::Relaxed), abort.load(Ordering::Relaxed))
            };
            [0, 1, 2].map(load)
        };
        words.set_flushed(1, 5);
        words.raise(2);
        assert_eq!(seen(), [(0, 0), (5, 0), (0, 1)]);
        words.reset(1);
        words.reset(2);
        assert_eq!(seen(), [(0, 0); 3]);
    }
}
