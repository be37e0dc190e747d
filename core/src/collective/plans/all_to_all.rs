//! All-to-all.

use super::hosts::Hosts;
use super::links::{links, meet_with_rows};
use super::shape::{Shape, peers, scratch};
use crate::plan::program::{CollectiveProgram, Pattern};

/// Every rank sends each other rank its part. In place, a part that comes replaces the one that was sent to the same rank.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let program = shape.packet_program("all-to-all packets", Pattern::all_to_all(shape.ranks, 1));
    let (scratch, group) = (scratch(&program, shape.ranks), shape.group());
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input(), rank.output());
        for peer in rank.peers() {
            let there = scratch[peer as usize].chunk(me);
            rank.memory_channel(peer).put_packets(there, input.chunk(peer), &group);
        }
        if !shape.in_place {
            rank.copy(output.chunk(me), input.chunk(me), &group);
        }
        for peer in rank.peers() {
            rank.unpack_packets(output.chunk(peer), scratch[me as usize].chunk(peer), &group);
        }
    }
    program
}

/// Out of place: every rank writes its parts to the others' outputs.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    let program = shape.program("all-to-all zero-copy", Pattern::all_to_all(shape.ranks, 1));
    write_parts(&program, shape.with_own(true));
    program
}

/// The same with each block doing everything, as its times were measured once.
#[cfg(test)]
pub(super) fn by_all_blocks(shape: Shape) -> CollectiveProgram {
    let program = shape.program("all-to-all zero-copy", Pattern::all_to_all(shape.ranks, 1));
    write_parts(&program, shape);
    program
}

/// The same with parts of sizes of their own, of ranks of any hosts.
pub(super) fn variable(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let program = shape.variable_program("all-to-all-v zero-copy", Pattern::all_to_all(shape.ranks, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (near, far) = links(&shape, hosts, rank, &peers(&rank));
        let part = |peer: u32| Some((program.rank(peer).output().chunk(me), input.chunk(peer)));
        meet_with_rows(&near, &far);
        far.put(part);
        shape.copy_own(&rank, rank.output().chunk(me), input.chunk(me));
        near.put((&group).into(), part);
        near.come();
        far.come(|_| true);
        far.end();
    }
    program
}

/// Every rank writes its parts to the others' outputs.
fn write_parts(program: &CollectiveProgram, shape: Shape) {
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        shape.meet(&rank, &peers(&rank), |channels| {
            shape.copy_own(&rank, rank.output().chunk(me), input.chunk(me));
            for channel in channels {
                let there = program.rank(channel.peer()).output().chunk(me);
                channel.put(there, input.chunk(channel.peer()), &group);
            }
        });
    }
}
