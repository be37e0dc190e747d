//! Gather. The root's own part may already lie where it belongs: then the root copies it onto itself, so that calls in place and
//! others are one plan, and only the root needs to know which it is.

use super::shape::{Shape, peers, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// All others send their inputs to the root. The root says when it has begun, and the others' calls end when it has: they get
/// nothing else from it, and without that they could overwrite packets that it has not read.
pub(super) fn packets(shape: Shape, root: u32) -> CollectiveProgram {
    let program = shape.packet_program("gather packets", Pattern::gather(shape.ranks, 1, root));
    let (scratch, group) = (scratch(&program, shape.ranks), shape.group());
    let come = scratch[root as usize];
    for rank in program.ranks() {
        let (me, mine) = (rank.index(), rank.input().chunk(0));
        if me != root {
            let channel = rank.memory_channel(root);
            channel.put_packets(come.chunk(me), mine, &group);
            channel.wait(0, SyncType::None);
            continue;
        }
        for peer in rank.peers() {
            rank.memory_channel(peer).relaxed_signal(0, SyncType::None);
        }
        rank.copy(rank.output().chunk(me), mine, &group);
        for peer in rank.peers() {
            rank.unpack_packets(rank.output().chunk(peer), come.chunk(peer), &group);
        }
    }
    program
}

/// All others write their inputs to the root's output.
pub(super) fn zero_copy(shape: Shape, root: u32) -> CollectiveProgram {
    let program = shape.program("gather zero-copy", Pattern::gather(shape.ranks, 1, root));
    for rank in program.ranks() {
        let (me, mine) = (rank.index(), rank.input().chunk(0));
        let others = if me == root { peers(&rank) } else { vec![root] };
        // A copy engine's block only waits at the root, for which threads copy.
        let shape = shape.with_own(me == root && shape.copy_engines);
        let group = shape.group();
        shape.meet(&rank, &others, |channels| match channels {
            [to_root] if me != root => to_root.put(program.rank(root).output().chunk(me), mine, &group),
            _ => shape.copy_own(&rank, rank.output().chunk(me), mine),
        });
    }
    program
}
