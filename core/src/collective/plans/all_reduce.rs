//! All-reduce. Every element is reduced in the order of ranks, so all ranks get the same bits.

use super::shape::{Shape, peers, plain, scratch};
use crate::plan::program::{CollectiveProgram, Form, Pattern, Reduction};

/// One-shot: every rank sends its whole input to all others and reduces what comes.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.packet_program("all-reduce packets", Pattern::all_reduce(n, 1));
    let (scratch, group) = (scratch(&program, n * n), shape.group());
    let part = |at: u32, from: u32| scratch[at as usize].chunks(from * n..(from + 1) * n);
    for rank in program.ranks() {
        let me = rank.index();
        let (input, output) = (rank.input().chunks(..), rank.output().chunks(..));
        for peer in rank.peers() {
            rank.memory_channel(peer).put_packets(part(peer, me), input, &group);
        }
        if n > 1 {
            let source = |from: u32| if from == me { plain(input) } else { (part(me, from), Form::Packets) };
            rank.reduce_in_order(output, (0..n).map(source), Reduction::Sum, &group);
        } else if !shape.in_place {
            rank.copy(output, input, &group);
        }
    }
    program
}

/// Two-shot: rank r reduces chunk r of all inputs and writes the result to all outputs.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce zero-copy", Pattern::all_reduce(n, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let me = rank.index();
        shape.meet(&rank, true, &peers(&rank), |channels| {
            let mine = rank.output().chunk(me);
            if n > 1 {
                let inputs = program.ranks().map(|from| plain(from.input().chunk(me)));
                rank.reduce_in_order(mine, inputs, Reduction::Sum, &group);
            } else if !shape.in_place {
                rank.copy(mine, rank.input().chunk(me), &group);
            }
            for channel in channels {
                channel.put(program.rank(channel.peer()).output().chunk(me), mine, &group);
            }
        });
    }
    program
}
