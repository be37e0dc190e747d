//! Reduce-scatter.

use super::shape::{Shape, peers, plain, scratch};
use crate::plan::program::{CollectiveProgram, Form, Pattern, Reduction};

/// Every rank sends each other rank its part and reduces what comes.
pub(super) fn packets(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.packet_program("reduce-scatter packets", Pattern::reduce_scatter(n, 1));
    let (scratch, group) = (scratch(&program, n), shape.group());
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input(), rank.output().chunk(0));
        for peer in rank.peers() {
            let there = scratch[peer as usize].chunk(me);
            rank.memory_channel(peer).put_packets(there, input.chunk(peer), &group);
        }
        if n > 1 {
            let come = scratch[me as usize];
            let source = |from: u32| {
                if from == me { plain(input.chunk(me)) } else { (come.chunk(from), Form::Packets) }
            };
            rank.reduce_in_order(output, (0..n).map(source), Reduction::Sum, &group);
        } else if !shape.in_place {
            rank.copy(output, input.chunk(me), &group);
        }
    }
    program
}

/// Every rank reads its part of all inputs.
pub(super) fn zero_copy(shape: Shape) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("reduce-scatter zero-copy", Pattern::reduce_scatter(n, 1));
    read_parts(&program, shape);
    program
}

/// The same with parts of sizes of their own.
pub(super) fn variable(shape: Shape) -> CollectiveProgram {
    let program =
        shape.variable_program("reduce-scatter-v zero-copy", Pattern::reduce_scatter(shape.ranks, 1));
    read_parts(&program, shape);
    program
}

/// Every rank reads its part of all inputs.
fn read_parts(program: &CollectiveProgram, shape: Shape) {
    let n = shape.ranks;
    let group = shape.group();
    for rank in program.ranks() {
        let (me, output) = (rank.index(), rank.output().chunk(0));
        shape.meet(&rank, &peers(&rank), |_| {
            if n > 1 {
                let inputs = program.ranks().map(|from| plain(from.input().chunk(me)));
                rank.reduce_in_order(output, inputs, Reduction::Sum, &group);
            } else if !shape.in_place {
                rank.copy(output, rank.input().chunk(me), &group);
            }
        });
    }
}
