//! Reduce-scatter.

use super::hosts::Hosts;
use super::links::{links, meet_with_rows};
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
    program
}

/// The same with parts of sizes of their own, of ranks of any hosts. Ranks of other hosts put their parts into this rank's scratch.
pub(super) fn variable(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.variable_program("reduce-scatter-v zero-copy", Pattern::reduce_scatter(n, 1));
    let scratch = (hosts.count() > 1).then(|| scratch(&program, n));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input(), rank.output().chunk(0));
        let (near, far) = links(&shape, hosts, rank, &peers(&rank));
        let place = |of: u32, from: u32| Some(scratch.as_ref()?[of as usize].chunk(from));
        meet_with_rows(&near, &far);
        far.put(|peer| Some((place(peer, me)?, input.chunk(peer))));
        far.come(|_| true);
        let part = |from: u32| {
            let far = place(me, from).filter(|_| !hosts.share(me, from));
            plain(far.unwrap_or_else(|| program.rank(from).input().chunk(me)))
        };
        match n {
            1 => rank.copy(output, input.chunk(me), &group),
            _ => rank.reduce_in_order(output, (0..n).map(part), Reduction::Sum, &group),
        }
        near.come();
        far.end();
    }
    program
}
