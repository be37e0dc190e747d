//! All-gather.

use super::program::{CollectiveProgram, Pattern, Protocol, SyncType, ThreadBlockGroup};
use super::{begin, channels, end, ring as ring_of};

/// In n - 1 steps, each rank gives the next one what it got last.
pub(in super::super) fn ring(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allgather_ring", Pattern::all_gather(n, 1));
    for rank in program.ranks() {
        let (next, before) = ring_of(&rank);
        let theirs = program.rank(next.peer()).output();
        rank.copy(rank.output().chunk(rank.index()), rank.input().chunk(0), 0);
        before.relaxed_signal(0, SyncType::None);
        next.wait(0, SyncType::After);
        for step in 0..n - 1 {
            let chunk = (rank.index() + n - step) % n;
            next.put(theirs.chunk(chunk), rank.output().chunk(chunk), 0);
            next.signal(0, SyncType::Before);
            before.wait(0, SyncType::After);
        }
    }
    program
}

/// In place: a block for each peer sends packets, another one unpacks what that peer sent.
pub(in super::super) fn packets(n: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allgather", Pattern::all_gather(n, 1).in_place())
        .protocol(Protocol::Ll)
        .double_scratch(true);
    let scratch: Vec<_> = program.ranks().map(|rank| rank.scratch(n)).collect();
    for rank in program.ranks() {
        let (r, output) = (rank.index(), rank.output());
        for (step, peer) in (0..).zip(rank.peers()) {
            let channel = rank.memory_channel(peer);
            channel.put_packets(scratch[peer as usize].chunk(r), output.chunk(r), step);
            rank.unpack_packets(output.chunk(peer), scratch[r as usize].chunk(peer), n - 1 + step);
        }
    }
    program
}

/// In place: all blocks share each put, and the first one talks to the peers.
pub(in super::super) fn grouped(n: u32, blocks: u32) -> CollectiveProgram {
    let program = CollectiveProgram::new("allgather_tbg", Pattern::all_gather(n, 1).in_place());
    let group = ThreadBlockGroup::new(0..blocks);
    for rank in program.ranks() {
        let mine = rank.output().chunk(rank.index());
        let channels = channels(&rank);
        begin(&channels, 0);
        rank.barrier(0..blocks);
        for channel in &channels {
            channel.put(program.rank(channel.peer()).output().chunk(rank.index()), mine, &group);
        }
        rank.barrier(0..blocks);
        end(&channels, 0);
    }
    program
}
