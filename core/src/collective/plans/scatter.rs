//! Scatter. In place the root copies its own part onto itself, as in a gather.

use super::shape::{Shape, peers, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// The root sends each of the others its part. Each of them says when it has begun, and the root's call ends when all have: the
/// root gets nothing else from them, and without that it could overwrite packets that a slow rank has not read.
pub(super) fn packets(shape: Shape, root: u32) -> CollectiveProgram {
    let program = shape.packet_program("scatter packets", Pattern::scatter(shape.ranks, 1, root));
    let (scratch, group) = (scratch(&program, 1), shape.group());
    for rank in program.ranks() {
        let (me, output) = (rank.index(), rank.output().chunk(0));
        if me != root {
            rank.memory_channel(root).relaxed_signal(0, SyncType::None);
            rank.unpack_packets(output, scratch[me as usize].chunk(0), &group);
            continue;
        }
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        for channel in &channels {
            let part = rank.input().chunk(channel.peer());
            channel.put_packets(scratch[channel.peer() as usize].chunk(0), part, &group);
        }
        rank.copy(output, rank.input().chunk(me), &group);
        channels.iter().for_each(|channel| channel.wait(0, SyncType::None));
    }
    program
}

/// The root writes each of the others its part.
pub(super) fn zero_copy(shape: Shape, root: u32) -> CollectiveProgram {
    let program = shape.program("scatter zero-copy", Pattern::scatter(shape.ranks, 1, root));
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let others = if me == root { peers(&rank) } else { vec![root] };
        let shape = shape.with_own(me == root && shape.copy_engines);
        let group = shape.group();
        shape.meet(&rank, &others, |channels| {
            if me != root {
                return;
            }
            shape.copy_own(&rank, rank.output().chunk(0), input.chunk(me));
            for channel in channels {
                let there = program.rank(channel.peer()).output().chunk(0);
                channel.put(there, input.chunk(channel.peer()), &group);
            }
        });
    }
    program
}
