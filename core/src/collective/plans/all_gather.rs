//! All-gather.

use super::shape::{Shape, peers, scratch};
use crate::plan::program::{CollectiveProgram, Pattern};

/// Every rank sends its input to all others.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let program = shape.packet_program("all-gather packets", Pattern::all_gather(shape.ranks, 1));
    let (scratch, group) = (scratch(&program, shape.ranks), shape.group());
    for rank in program.ranks() {
        let (me, mine) = (rank.index(), rank.input().chunk(0));
        for peer in rank.peers() {
            rank.memory_channel(peer).put_packets(scratch[peer as usize].chunk(me), mine, &group);
        }
        if !shape.in_place {
            rank.copy(rank.output().chunk(me), mine, &group);
        }
        for peer in rank.peers() {
            rank.unpack_packets(rank.output().chunk(peer), scratch[me as usize].chunk(peer), &group);
        }
    }
    program
}

/// Every rank writes its input to all outputs.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    // Threads alone store what they have loaded once to all outputs, their own as well.
    let shape = shape.with_own(shape.copy_engines && !shape.in_place);
    let program = shape.program("all-gather zero-copy", Pattern::all_gather(shape.ranks, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, mine) = (rank.index(), rank.input().chunk(0));
        shape.meet(&rank, &peers(&rank), |channels| {
            if !shape.in_place {
                shape.copy_own(&rank, rank.output().chunk(me), mine);
            }
            for channel in channels {
                channel.put(program.rank(channel.peer()).output().chunk(me), mine, &group);
            }
        });
    }
    program
}
