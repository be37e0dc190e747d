//! The words by which an abort reaches kernels.

use std::fmt;
use std::sync::{Arc, Weak};

use aqueduct_ptx::abi::{AbortHandle, AbortRecord, NO_PEER};

use super::abort_record::AbortRecordMemory;
use crate::abort::{Abort, AbortCause, AbortListener, AbortWord};
use crate::error::Result;
use crate::gpu::{Context, KeepAlive, PinnedBuffer};
use crate::group::peer_state::Waiters;
use crate::sync::{Mutex, lock};
use crate::transport::completion::KernelAbort;

/// The words in pinned host memory that this communicator's kernels poll, and the record that the first kernel to leave
/// fills.
///
/// Kernels that wait for one rank poll that rank's word, all others the group's. An abort raises all of them; the
/// departure of a rank raises its own and the group's. Kernels that wait for signals of a connection with a word of its own poll
/// that one, which the departure of the peer raises as well.
pub(crate) struct AbortMemory {
    rank: u32,
    pinned: Arc<PinnedBuffer>,
    /// The group's word, then one per rank.
    words: Vec<AbortWord>,
    /// The words of connections, with their peers.
    connections: Mutex<Vec<(u32, Weak<KernelAbort>)>>,
    streams: Mutex<Vec<Weak<dyn StreamWaits>>>,
    /// Its record lies behind the words, in another cache line.
    record: Arc<AbortRecordMemory>,
}

impl fmt::Debug for AbortMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortMemory")
            .field("rank", &self.rank)
            .field("words", &self.words)
            .finish_non_exhaustive()
    }
}

/// Waits of streams for words, which see no abort word.
pub(crate) trait StreamWaits: Send + Sync {
    /// Writes to all words what ends the waits, now and later. Must not block.
    fn end(&self);
}

impl AbortMemory {
    /// Allocates words and record, and attaches every word to `abort`.
    pub(crate) fn new(context: &Context, abort: &Abort, rank: u32, size: u32) -> Result<Arc<Self>> {
        const APART: usize = 256;
        let count = size as usize + 1;
        let record_at = (count * size_of::<u32>()).next_multiple_of(APART);
        let pinned = Arc::new(PinnedBuffer::new(context, record_at + AbortRecordMemory::BYTES)?);
        let record = AbortRecordMemory::new(context, &pinned, record_at)?;
        let host = pinned.host_ptr();
        let word = |index| {
            // SAFETY: the buffer begins with `count` words.
            let word = unsafe { host.cast::<u32>().add(index) };
            // SAFETY: aligned, in memory that the `Arc` keeps; the host accesses it through this word only.
            unsafe { AbortWord::from_ptr(word, pinned.clone()) }
        };
        let words: Vec<AbortWord> = (0..count).map(word).collect();
        words.iter().for_each(|word| abort.attach(word.clone()));
        let (connections, streams) = (Mutex::default(), Mutex::default());
        let memory = Arc::new(Self { rank, pinned, words, connections, streams, record });
        abort.listen(&(memory.clone() as Arc<dyn AbortListener>));
        Ok(memory)
    }

    /// The handle for kernels that wait for any rank.
    pub(crate) fn handle(&self) -> AbortHandle {
        self.handle_at(0, NO_PEER)
    }

    /// The handle for kernels that wait for `peer` only.
    pub(crate) fn handle_for(&self, peer: u32) -> AbortHandle {
        self.handle_at(peer as usize + 1, peer)
    }

    /// The handle for kernels that wait for signals of a connection to `peer` that [`follow`](Self::follow) was called for.
    pub(crate) fn handle_of(&self, connection: &KernelAbort, peer: u32) -> AbortHandle {
        self.handle_with(connection.device_ptr(), peer)
    }

    /// Raises the word of a connection, too, when its peer departs; at once if it has.
    pub(crate) fn follow(&self, peer: u32, connection: &Arc<KernelAbort>) {
        let mut connections = lock(&self.connections);
        connections.retain(|(_, known)| known.strong_count() > 0);
        // Under the lock: either `dismiss` finds the connection in the list, or its word is visible here.
        if self.words[peer as usize + 1].is_raised() {
            connection.raise();
        }
        connections.push((peer, Arc::downgrade(connection)));
    }

    /// Ends `waits`, too, when kernels that wait for any rank are to leave; at once if they are.
    pub(crate) fn end_with_kernels(&self, waits: &Arc<dyn StreamWaits>) {
        let mut streams = lock(&self.streams);
        streams.retain(|known| known.strong_count() > 0);
        // Under the lock: either `end_streams` finds the waits in the list, or the word is visible here.
        if self.words[0].is_raised() {
            waits.end();
        }
        streams.push(Arc::downgrade(waits));
    }

    fn end_streams(&self) {
        lock(&self.streams).iter().filter_map(Weak::upgrade).for_each(|waits| waits.end());
    }

    fn handle_at(&self, word: usize, peer: u32) -> AbortHandle {
        debug_assert!(word < self.words.len(), "a word of a rank that does not exist");
        self.handle_with(self.pinned.device_ptr() + (word * size_of::<u32>()) as u64, peer)
    }

    fn handle_with(&self, word: u64, peer: u32) -> AbortHandle {
        AbortHandle { word, claim: self.record.claim_ptr(), rank: self.rank, peer }
    }

    pub(crate) fn keep_alive(&self) -> KeepAlive {
        // The record keeps the pinned buffer, and with it the words.
        self.record.clone()
    }

    pub(crate) fn record(&self) -> Option<AbortRecord> {
        self.record.read()
    }
}

impl Waiters for AbortMemory {
    fn dismiss(&self, peer: u32) {
        [0, peer as usize + 1].iter().filter_map(|index| self.words.get(*index)).for_each(AbortWord::raise);
        let connections = lock(&self.connections);
        let of_peer = connections.iter().filter(|(other, _)| *other == peer);
        of_peer.filter_map(|(_, word)| word.upgrade()).for_each(|word| word.raise());
        self.end_streams();
    }

    fn abandoned(&self) -> Option<Option<u32>> {
        self.record().map(|record| (record.peer != NO_PEER).then_some(record.peer))
    }
}

impl AbortListener for AbortMemory {
    fn aborted(&self, _: &AbortCause) {
        self.end_streams();
    }
}
