//! The plans of the built-in collectives: for each a way for small messages and one for large ones.
//!
//! Small messages go as packets through scratch, in one step. Large ones go from the peers' inputs to the peers' outputs without
//! a copy in between, which needs buffers that the peers reach.
//!
//! All blocks share each range, so that a message need not divide into more parts than the collective itself has. Each block
//! has channels of its own: it touches a peer's buffers once the peer's block of the same number has begun, and no block waits
//! for others of its rank.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod reduce;
mod reduce_scatter;
mod send_recv;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::plan::program::{
    Buffer, Chunk, CollectiveProgram, Form, MemoryChannel, Pattern, Protocol, Rank, SyncType,
    ThreadBlockGroup,
};
use crate::plan::{Kind, Plan};

pub(super) use barrier::barrier;

/// A plan's ranks, the place of its buffers, and its kernel's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) ranks: u32,
    pub(super) in_place: bool,
    pub(super) blocks: u32,
    pub(super) threads: u32,
}

/// The plan for small messages; `None` for a collective of the user's own.
pub(super) fn packets(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    let program = match *kind {
        Kind::AllReduce => all_reduce::packets(shape),
        Kind::AllGather => all_gather::packets(shape),
        Kind::ReduceScatter => reduce_scatter::packets(shape),
        Kind::AllToAll => all_to_all::packets(shape),
        Kind::Broadcast { root } => broadcast::packets(shape, root),
        Kind::Reduce { root } => reduce::packets(shape, root),
        Kind::SendRecv => send_recv::packets(shape),
        Kind::Custom(_) => return None,
    };
    Some(program.compile())
}

/// The plan for large messages on buffers that the peers reach; `None` where there is none: of an all-to-all in place, whose
/// parts change places, and of a collective of the user's own.
pub(super) fn zero_copy(kind: &Kind, shape: Shape) -> Option<Result<Plan>> {
    let program = match *kind {
        Kind::AllReduce => all_reduce::zero_copy(shape),
        Kind::AllGather => all_gather::zero_copy(shape),
        Kind::ReduceScatter => reduce_scatter::zero_copy(shape),
        Kind::AllToAll if !shape.in_place => all_to_all::zero_copy(shape),
        Kind::Broadcast { root } => broadcast::zero_copy(shape, root),
        Kind::Reduce { root } => reduce::zero_copy(shape, root),
        Kind::SendRecv if !shape.in_place => send_recv::zero_copy(shape),
        Kind::AllToAll | Kind::SendRecv | Kind::Custom(_) => return None,
    };
    Some(program.compile())
}

impl Shape {
    fn program(&self, name: &str, pattern: Pattern) -> CollectiveProgram {
        let pattern = if self.in_place { pattern.in_place() } else { pattern };
        CollectiveProgram::new(name, pattern).threads_per_block(self.threads)
    }

    /// A program that sends packets. Calls alternate between two halves of scratch, so a rank that has begun a call has done
    /// with what the call before the last one sent it.
    fn packet_program(&self, name: &str, pattern: Pattern) -> CollectiveProgram {
        self.program(name, pattern).protocol(Protocol::Ll).double_scratch(true)
    }

    /// All blocks.
    fn group(&self) -> ThreadBlockGroup {
        ThreadBlockGroup::new(0..self.blocks)
    }

    /// Runs `body` for all blocks of `rank` together, once every block has seen that the block of its number has begun at every
    /// peer of `peers`; the call ends when those blocks have also done what `body` says. Who reads peers' buffers says `reads`.
    fn meet<'p>(&self, rank: &Rank<'p>, reads: bool, peers: &[u32], body: impl FnOnce(&[MemoryChannel<'p>])) {
        let channels: Vec<Vec<MemoryChannel<'p>>> =
            (0..self.blocks).map(|_| peers.iter().map(|&peer| rank.memory_channel(peer)).collect()).collect();
        for (block, channels) in (0..).zip(&channels) {
            for channel in channels {
                // A write needs to know only that the buffer is there.
                match reads {
                    true => channel.signal(block, SyncType::None),
                    false => channel.relaxed_signal(block, SyncType::None),
                }
            }
            for channel in channels {
                match reads {
                    true => channel.wait(block, SyncType::After),
                    false => channel.relaxed_wait(block, SyncType::After),
                }
            }
        }
        body(channels.first().map_or(&[], Vec::as_slice));
        for (block, channels) in (0..).zip(&channels) {
            channels.iter().for_each(|channel| channel.signal(block, SyncType::Before));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
    }
}

/// A new scratch buffer of so many chunks on each rank.
fn scratch(program: &CollectiveProgram, chunks: u32) -> Vec<Buffer<'_>> {
    program.ranks().map(|rank| rank.scratch(chunks)).collect()
}

/// The chunk itself, not as packets.
fn plain(chunk: Chunk) -> (Chunk, Form) {
    (chunk, Form::Plain)
}

/// All peers, from the next rank on.
fn peers(rank: &Rank<'_>) -> Vec<u32> {
    rank.peers().collect()
}
