//! Reduce.

use super::shape::{Shape, peers, plain, scratch};
use crate::plan::program::{CollectiveProgram, Form, Pattern, Reduction, SyncType};

/// All others send their inputs to the root, which reduces what comes. The root says when it has begun, and the others' calls end
/// when it has: they get nothing else from it, and without that they could overwrite packets that it has not read.
pub(super) fn packets(shape: Shape, root: u32) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.packet_program("reduce packets", Pattern::reduce(n, 1, root).cut_into(1));
    let group = shape.group();
    let scratch = scratch(&program, n);
    let part = |from: u32| scratch[root as usize].chunk(from);
    for rank in program.ranks() {
        let (input, output) = (rank.input().chunks(..), rank.output().chunks(..));
        if rank.index() != root {
            let channel = rank.memory_channel(root);
            channel.put_packets(part(rank.index()), input, &group);
            channel.wait(0, SyncType::None);
            continue;
        }
        for peer in rank.peers() {
            rank.memory_channel(peer).relaxed_signal(0, SyncType::None);
        }
        if n > 1 {
            let source = |from: u32| if from == root { plain(input) } else { (part(from), Form::Packets) };
            rank.reduce_in_order(output, (0..n).map(source), Reduction::Sum, &group);
        } else if !shape.in_place {
            rank.copy(output, input, &group);
        }
    }
    program
}

/// Rank r reduces chunk r of all inputs and writes the result to the root's output, so that the root's link carries one message.
pub(super) fn zero_copy(shape: Shape, root: u32) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("reduce zero-copy", Pattern::reduce(n, 1, root));
    let group = shape.group();
    for rank in program.ranks() {
        let me = rank.index();
        shape.meet(&rank, &peers(&rank), |_| {
            let result = program.rank(root).output().chunk(me);
            if n > 1 {
                let inputs = program.ranks().map(|from| plain(from.input().chunk(me)));
                rank.reduce_in_order(result, inputs, Reduction::Sum, &group);
            } else if !shape.in_place {
                rank.copy(result, rank.input().chunk(me), &group);
            }
        });
    }
    program
}
