//! How an abort reaches kernels.

use std::sync::Arc;

use aqueduct_ptx::abi::{ABORT_RECORD_COMPLETE, AbortHandle, AbortRecord, NO_PEER};

use crate::abort::{Abort, AbortRecordCell, AbortWord};
use crate::error::Result;
use crate::gpu::{Context, KeepAlive, PinnedBuffer};
use crate::group::standing::Waiters;

/// The words that this communicator's kernels poll and the record they fill, in pinned host memory.
///
/// Kernels that wait for one rank poll that rank's word, all others the group's. An abort raises all of them; the
/// departure of a rank raises its own and the group's.
#[derive(Debug)]
pub(crate) struct AbortMemory {
    rank: u32,
    pinned: Arc<PinnedBuffer>,
    /// The group's, then one per rank.
    words: Vec<AbortWord>,
    record: AbortRecordCell<AbortRecord>,
    /// Where the record is: behind the words, in another cache line.
    record_at: usize,
}

impl AbortMemory {
    /// Allocates them and has `abort` raise every word.
    pub(crate) fn new(context: &Context, abort: &Abort, rank: u32, size: u32) -> Result<Arc<Self>> {
        const APART: usize = 256;
        const { assert!(APART.is_multiple_of(align_of::<AbortRecord>())) };
        let count = size as usize + 1;
        let record_at = (count * size_of::<u32>()).next_multiple_of(APART);
        let pinned = Arc::new(PinnedBuffer::new(context, record_at + size_of::<AbortRecord>())?);
        let host = pinned.host_ptr();
        let word = |index| {
            // SAFETY: the buffer begins with `count` words.
            let word = unsafe { host.cast::<u32>().add(index) };
            // SAFETY: aligned, in memory that the `Arc` keeps; the host accesses it through this word only.
            unsafe { AbortWord::from_ptr(word, pinned.clone()) }
        };
        let words: Vec<AbortWord> = (0..count).map(word).collect();
        words.iter().for_each(|word| abort.attach(word.clone()));
        // SAFETY: inside the buffer, which is longer.
        let record = unsafe { host.add(record_at) }.cast::<AbortRecord>();
        // SAFETY: aligned (asserted above), inside the buffer that the `Arc` keeps, beginning with the state word, all
        // integers; written by kernels only.
        let record = unsafe { AbortRecordCell::from_ptr(record, pinned.clone()) };
        Ok(Arc::new(Self { rank, pinned, words, record, record_at }))
    }

    /// For kernels that wait for any rank.
    pub(crate) fn handle(&self) -> AbortHandle {
        self.handle_at(0)
    }

    /// For kernels that wait for `peer` only.
    pub(crate) fn handle_for(&self, peer: u32) -> AbortHandle {
        self.handle_at(peer as usize + 1)
    }

    fn handle_at(&self, word: usize) -> AbortHandle {
        debug_assert!(word < self.words.len(), "a word of a rank that does not exist");
        AbortHandle {
            word: self.pinned.device_ptr() + (word * size_of::<u32>()) as u64,
            record: self.pinned.device_ptr() + self.record_at as u64,
            rank: self.rank,
            reserved: 0,
        }
    }

    pub(crate) fn keep_alive(&self) -> KeepAlive {
        self.pinned.clone()
    }

    pub(crate) fn record(&self) -> Option<AbortRecord> {
        self.record.read(ABORT_RECORD_COMPLETE)
    }
}

impl Waiters for AbortMemory {
    fn dismiss(&self, peer: u32) {
        [0, peer as usize + 1].iter().filter_map(|index| self.words.get(*index)).for_each(AbortWord::raise);
    }

    fn abandoned(&self) -> Option<Option<u32>> {
        self.record().map(|record| (record.peer != NO_PEER).then_some(record.peer))
    }
}
