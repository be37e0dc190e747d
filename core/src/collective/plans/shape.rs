//! Parts that the plans of built-in collectives share: their shape, how they begin and end.

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
    /// Copy engines move the data instead of threads: one block for what goes to peers, and one for what stays here.
    pub(in super::super) copy_engines: bool,
}

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
        Self { blocks: 1, copy_engines: true, ..self }
    }

    /// Copies this rank's own data, beside what goes to the peers.
    pub(super) fn copy_own(&self, rank: &Rank<'_>, dst: Chunk, src: Chunk) {
        if self.copy_engines {
            rank.copy(dst, src, self.blocks);
            rank.copy_engine(self.blocks);
        } else {
            rank.copy(dst, src, &self.group());
        }
    }

    /// All blocks that move data to peers.
    pub(super) fn group(&self) -> ThreadBlockGroup {
        ThreadBlockGroup::new(0..self.blocks)
    }

    /// Runs `body` for all blocks of `rank` together, once every block has seen that the block of its number has begun at every
    /// peer of `peers`; the call ends when those blocks have also done what `body` says.
    pub(super) fn meet<'p>(&self, rank: &Rank<'p>, peers: &[u32], body: impl FnOnce(&[MemoryChannel<'p>])) {
        let channels = self.channels(rank, peers);
        for (block, channels) in (0..).zip(&channels) {
            // Not relaxed, even where peers only write: a write of a peer comes behind what the rank's stream did with the buffer
            // before the call, a copy from it or a fill, and a relaxed signal orders no memory.
            channels.iter().for_each(|channel| channel.signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
        body(channels.first().map_or(&[], Vec::as_slice));
        exchange(&channels);
        if self.copy_engines {
            rank.copy_engine(0);
        }
    }

    /// Channels to these peers, of each block its own.
    pub(super) fn channels<'p>(&self, rank: &Rank<'p>, peers: &[u32]) -> Vec<Vec<MemoryChannel<'p>>> {
        (0..self.blocks).map(|_| peers.iter().map(|&peer| rank.memory_channel(peer)).collect()).collect()
    }
}

/// Each block tells its peers that it has done what stands before, and waits until they say the same.
pub(super) fn exchange(channels: &[Vec<MemoryChannel<'_>>]) {
    for (block, channels) in (0..).zip(channels) {
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
