//! Parts that the plans of built-in collectives share: their shape, how they begin and end.

use std::ops::Range;

use crate::plan::program::{
    Buffer, Chunk, CollectiveProgram, Form, MemoryChannel, Pattern, Protocol, Rank, SyncType,
    ThreadBlockGroup,
};

/// A plan's ranks, the place of its buffers, and its kernel's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Shape {
    pub(in super::super) ranks: u32,
    pub(in super::super) in_place: bool,
    pub(in super::super) blocks: u32,
    pub(in super::super) threads: u32,
    /// Copy engines move what goes to peers instead of threads.
    pub(in super::super) copy_engines: bool,
    /// Some blocks of threads copy what stays here while the others, or a copy engine, move what goes to peers.
    pub(in super::super) own: bool,
}

/// Blocks of threads that copy what stays here beside a copy engine, which does not seem to move both at once: on H100, 256 MiB of an
/// all-gather took 453 us by engines alone, and 366 with these blocks.
const BESIDE_ENGINE: u32 = 16;

impl Shape {
    pub(super) fn program(&self, name: &str, pattern: Pattern) -> CollectiveProgram {
        let pattern = if self.in_place { pattern.in_place() } else { pattern };
        CollectiveProgram::new(name, pattern).threads_per_block(self.threads)
    }

    /// A program that sends packets. Calls alternate between two halves of scratch, so a rank that has begun a call has done
    /// with what the call before the last one sent it.
    pub(super) fn packet_program(&self, name: &str, pattern: Pattern) -> CollectiveProgram {
        self.program(name, pattern).protocol(Protocol::Ll).double_scratch(true)
    }

    /// A program whose chunks have sizes of their own. Nothing is fused, because each move is of one such chunk.
    pub(super) fn variable_program(&self, name: &str, pattern: Pattern) -> CollectiveProgram {
        self.program(name, pattern).variable_chunks(true).double_scratch(true).fusion(false)
    }

    /// The same by copy engines.
    pub(super) fn by_copy_engines(self) -> Self {
        Self { copy_engines: true, ..self }
    }

    /// The same for a rank that has data which stays here, or none.
    pub(super) fn with_own(self, own: bool) -> Self {
        // A single block or rank does all.
        Self { own: own && self.ranks > 1 && (self.copy_engines || self.blocks > 1), ..self }
    }

    /// Copies this rank's own data, beside what goes to the peers.
    pub(super) fn copy_own(&self, rank: &Rank<'_>, dst: Chunk, src: Chunk) {
        let blocks = if self.own { self.threads_of_own() } else { self.threads_to_peers() };
        rank.copy(dst, src, &ThreadBlockGroup::new(blocks));
    }

    /// Blocks of threads that move data to peers.
    fn threads_to_peers(&self) -> Range<u32> {
        0..match (self.copy_engines, self.own) {
            (true, _) => 0,
            (false, false) => self.blocks,
            // As many bytes stay here as go to one peer, and local memory is faster than a link.
            (false, true) => self.blocks - (self.blocks / (self.ranks + 1)).max(1),
        }
    }

    /// Blocks of threads that copy what stays here.
    fn threads_of_own(&self) -> Range<u32> {
        let first = self.threads_to_peers().end;
        match (self.own, self.copy_engines) {
            (false, _) => first..first,
            (true, true) => first..first + self.blocks.min(BESIDE_ENGINE),
            (true, false) => first..self.blocks,
        }
    }

    /// The copy engine's block. It comes behind those of threads: where streams share a hardware queue, its kernels may wait for
    /// blocks before it only.
    pub(super) fn engine(&self) -> Option<u32> {
        self.copy_engines.then(|| self.threads_of_own().end)
    }

    /// All blocks that move data to peers.
    fn movers(&self) -> Range<u32> {
        self.engine().map_or(self.threads_to_peers(), |engine| engine..engine + 1)
    }

    /// The same as a group.
    pub(super) fn group(&self) -> ThreadBlockGroup {
        ThreadBlockGroup::new(self.movers())
    }

    /// Runs `body` for all blocks of `rank` together, once every block has seen that the block of its number has begun at every
    /// peer of `peers`; the call ends when those blocks have also done what `body` says.
    pub(super) fn meet<'p>(&self, rank: &Rank<'p>, peers: &[u32], body: impl FnOnce(&[MemoryChannel<'p>])) {
        let channels = self.channels(rank, peers);
        for (block, channels) in self.movers().zip(&channels) {
            // Relaxed: peers have to know what the rank's stream did before the call, and that is so when its kernel starts. A
            // release of 64 blocks at once took 1.6 us on H100, and one of 128 blocks 2.7.
            channels.iter().for_each(|channel| channel.relaxed_signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
        body(channels.first().map_or(&[], Vec::as_slice));
        exchange(self.movers(), &channels);
        if let Some(engine) = self.engine() {
            rank.copy_engine(engine);
        }
    }

    /// Channels to these peers, of each block its own.
    pub(super) fn channels<'p>(&self, rank: &Rank<'p>, peers: &[u32]) -> Vec<Vec<MemoryChannel<'p>>> {
        self.movers().map(|_| peers.iter().map(|&peer| rank.memory_channel(peer)).collect()).collect()
    }
}

/// Each block tells its peers that it has done what stands before, and waits until they say the same.
pub(super) fn exchange(blocks: impl IntoIterator<Item = u32>, channels: &[Vec<MemoryChannel<'_>>]) {
    for (block, channels) in blocks.into_iter().zip(channels) {
        channels.iter().for_each(|channel| channel.signal(block, SyncType::Before));
        channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
    }
}

/// A new scratch buffer of so many chunks on each rank.
pub(super) fn scratch(program: &CollectiveProgram, chunks: u32) -> Vec<Buffer<'_>> {
    program.ranks().map(|rank| rank.scratch(chunks)).collect()
}

/// The chunk itself, not as packets.
pub(super) fn plain(chunk: Chunk) -> (Chunk, Form) {
    (chunk, Form::Plain)
}

/// All peers, from the next rank on.
pub(super) fn peers(rank: &Rank<'_>) -> Vec<u32> {
    rank.peers().collect()
}
