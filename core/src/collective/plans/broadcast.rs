//! Broadcast.

use super::shape::{Shape, peers, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// The root sends its input to all others. Each of them says when it has begun, and the root's call ends when all have: the
/// root gets nothing else from them, and without that it could overwrite packets that a slow rank has not read.
pub(super) fn packets(shape: Shape, root: u32) -> CollectiveProgram {
    let pattern = Pattern::broadcast(shape.ranks, 1, root).cut_into(1);
    let program = shape.packet_program("broadcast packets", pattern);
    let (scratch, group) = (scratch(&program, 1), shape.group());
    for rank in program.ranks() {
        let (input, output) = (rank.input().chunks(..), rank.output().chunks(..));
        if rank.index() == root {
            let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
            for channel in &channels {
                channel.put_packets(scratch[channel.peer() as usize].chunks(..), input, &group);
            }
            if !shape.in_place {
                rank.copy(output, input, &group);
            }
            channels.iter().for_each(|channel| channel.wait(0, SyncType::None));
        } else {
            rank.memory_channel(root).relaxed_signal(0, SyncType::None);
            rank.unpack_packets(output, scratch[rank.index() as usize].chunks(..), &group);
        }
    }
    program
}

/// The others share the root's input: each reads its part of it and writes that to all but the root, so that no link carries
/// more than one message.
pub(super) fn zero_copy(shape: Shape, root: u32) -> CollectiveProgram {
    let n = shape.ranks;
    let parts = n.saturating_sub(1).max(1);
    let program = shape.program("broadcast zero-copy", Pattern::broadcast(n, parts, root));
    let group = shape.group();
    for rank in program.ranks() {
        shape.meet(&rank, &peers(&rank), |channels| {
            if rank.index() == root {
                if !shape.in_place {
                    rank.copy(rank.output().chunks(..), rank.input().chunks(..), &group);
                }
                return;
            }
            let part = (rank.index() + n - root) % n - 1;
            let part = part * n..(part + 1) * n;
            let mine = rank.output().chunks(part.clone());
            for channel in channels.iter().filter(|channel| channel.peer() == root) {
                channel.get(mine, program.rank(root).input().chunks(part.clone()), &group);
            }
            for channel in channels.iter().filter(|channel| channel.peer() != root) {
                channel.put(program.rank(channel.peer()).output().chunks(part.clone()), mine, &group);
            }
        });
    }
    program
}

/// By copy engines, which push faster than they pull: the root puts its part to each of the others, which put it on to all but the
/// root.
pub(super) fn copied(shape: Shape, root: u32) -> CollectiveProgram {
    let n = shape.ranks;
    let parts = n.saturating_sub(1).max(1);
    let shape = shape.by_copy_engines();
    let program = shape.program("broadcast by copy engines", Pattern::broadcast(n, parts, root));
    let part = |rank: u32| {
        let part = (rank + n - root) % n - 1;
        part * n..(part + 1) * n
    };
    for rank in program.ranks() {
        let (me, output) = (rank.index(), rank.output());
        let shape = shape.with_own(me == root && !shape.in_place);
        let engine = shape.engine().unwrap_or(0);
        shape.meet(&rank, &peers(&rank), |channels| {
            let there = |peer: u32, of: u32| program.rank(peer).output().chunks(part(of));
            let (to_root, others): (Vec<_>, Vec<_>) =
                channels.iter().copied().partition(|channel| channel.peer() == root);
            if me == root {
                for channel in &others {
                    let peer = channel.peer();
                    channel.put(there(peer, peer), rank.input().chunks(part(peer)), engine);
                    channel.signal(engine, SyncType::Before);
                }
                if !shape.in_place {
                    shape.copy_own(&rank, output.chunks(..), rank.input().chunks(..));
                }
            } else {
                to_root.iter().for_each(|channel| channel.wait(engine, SyncType::After));
                for channel in others {
                    channel.put(there(channel.peer(), me), output.chunks(part(me)), engine);
                }
            }
        });
    }
    program
}
