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

/// Blocks of threads that keep up with a copy engine: what stays here is as long as what goes to one peer, and one engine
/// moves either after the other (on H100, 256 MiB of an all-gather took the sum of both times).
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
        let movers = self.movers();
        let blocks = match (self.own, self.copy_engines) {
            (false, _) => movers,
            (true, true) => 0..movers.start,
            (true, false) => movers.end..self.blocks,
        };
        rank.copy(dst, src, &ThreadBlockGroup::new(blocks));
    }

    /// The blocks that move data to peers. A copy engine's comes behind those of threads: where streams share a hardware queue,
    /// its kernels may wait for blocks before it only.
    pub(super) fn movers(&self) -> Range<u32> {
        match (self.copy_engines, self.own) {
            (true, false) => 0..1,
            (true, true) => {
                let engine = self.blocks.min(BESIDE_ENGINE);
                engine..engine + 1
            }
            (false, false) => 0..self.blocks,
            // As many bytes stay here as go to one peer, and local memory is faster than a link.
            (false, true) => 0..self.blocks - (self.blocks / (self.ranks + 1)).max(1),
        }
    }

    /// All blocks that move data to peers.
    pub(super) fn group(&self) -> ThreadBlockGroup {
        ThreadBlockGroup::new(self.movers())
    }

    /// Runs `body` for all blocks of `rank` together, once every block has seen that the block of its number has begun at every
    /// peer of `peers`; the call ends when those blocks have also done what `body` says.
    pub(super) fn meet<'p>(&self, rank: &Rank<'p>, peers: &[u32], body: impl FnOnce(&[MemoryChannel<'p>])) {
        let channels = self.channels(rank, peers);
        let movers = self.movers();
        for (block, channels) in movers.clone().zip(&channels) {
            // Not relaxed, even where peers only write: a write of a peer comes behind what the rank's stream did with the buffer
            // before the call, a copy from it or a fill, and a relaxed signal orders no memory.
            channels.iter().for_each(|channel| channel.signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
        body(channels.first().map_or(&[], Vec::as_slice));
        exchange(movers.start, &channels);
        if self.copy_engines {
            rank.copy_engine(movers.start);
        }
    }

    /// Channels to these peers, of each block its own.
    pub(super) fn channels<'p>(&self, rank: &Rank<'p>, peers: &[u32]) -> Vec<Vec<MemoryChannel<'p>>> {
        self.movers().map(|_| peers.iter().map(|&peer| rank.memory_channel(peer)).collect()).collect()
    }
}

/// Each block, from `first` on, tells its peers that it has done what stands before, and waits until they say the same.
pub(super) fn exchange(first: u32, channels: &[Vec<MemoryChannel<'_>>]) {
    for (block, channels) in (first..).zip(channels) {
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
