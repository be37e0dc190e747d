//! Plans for ranks of several hosts: memory channels within a host, port channels between hosts, whose proxies move the data.

use super::by_hosts;
use super::hosts::Hosts;
use super::links::links;
use super::shape::{Shape, peers, plain, scratch};
use crate::plan::Kind;
use crate::plan::program::{CollectiveProgram, Pattern, Reduction};

/// How long a message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Length {
    Any,
    /// As long as there is scratch for.
    Scratch,
}

/// The averages that a collective is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Averages {
    None,
    /// Of types in which a host's sum has room.
    Wide,
    /// Of f16 or FP8 as well: what a host sums up may be too large for them where the average is not.
    Narrow,
}

/// Up to how many ranks an average may be reduced by hosts: where its sum is complete is found by checks of the whole plan, which
/// take time and memory with the square of the ranks.
const MOST_AVERAGED: u32 = 32;

/// The program of a collective; `None` of calls that change places within one buffer, and of a collective of the user's own.
pub(super) fn program(
    kind: &Kind,
    shape: Shape,
    hosts: &Hosts,
    averages: Averages,
) -> Option<(CollectiveProgram, Length)> {
    let n = shape.ranks;
    let moving = |pattern, root: Option<u32>| {
        let name = format!("{} over hosts", kind.name());
        (move_parts(kind, shape.program(&name, pattern), shape, hosts, root), Length::Any)
    };
    // Hosts reduce among themselves first.
    let reduces = match averages {
        Averages::None => true,
        Averages::Wide => n <= MOST_AVERAGED,
        Averages::Narrow => false,
    };
    Some(match *kind {
        Kind::AllReduce if reduces && hosts.are_equal() => {
            (by_hosts::all_reduce(shape, hosts), Length::Scratch)
        }
        Kind::AllReduce => (all_reduce(shape, hosts), Length::Scratch),
        Kind::Reduce { root } if reduces => (by_hosts::reduce(shape, hosts, root), Length::Scratch),
        Kind::Reduce { root } => (reduce(shape, hosts, root), Length::Scratch),
        Kind::ReduceScatter if reduces && hosts.are_equal() => {
            (by_hosts::reduce_scatter(shape, hosts), Length::Scratch)
        }
        Kind::ReduceScatter => (reduce_scatter(shape, hosts), Length::Scratch),
        Kind::AllGather => (by_hosts::all_gather(shape, hosts), Length::Any),
        Kind::Broadcast { root } => (by_hosts::broadcast(shape, hosts, root), Length::Any),
        Kind::AllToAll if !shape.in_place => moving(Pattern::all_to_all(n, 1), None),
        Kind::SendRecv if !shape.in_place => moving(Pattern::send_recv(n, 1), None),
        Kind::Gather { root } => moving(Pattern::gather(n, 1, root), Some(root)),
        Kind::Scatter { root } => moving(Pattern::scatter(n, 1, root), Some(root)),
        Kind::AllToAll | Kind::SendRecv | Kind::Custom(_) => return None,
    })
}

/// Collectives that only move data: each rank writes what the others get to their outputs.
fn move_parts(
    kind: &Kind,
    program: CollectiveProgram,
    shape: Shape,
    hosts: &Hosts,
    root: Option<u32>,
) -> CollectiveProgram {
    let (n, group) = (shape.ranks, shape.group());
    // What rank `from` gives rank `to`: where it belongs, and where it lies.
    let part = |from: u32, to: u32| {
        let (input, output) = (program.rank(from).input(), program.rank(to).output());
        match kind {
            Kind::AllToAll => Some((output.chunk(from), input.chunk(to))),
            Kind::SendRecv if (from + 1) % n == to => Some((output.chunk(0), input.chunk(0))),
            Kind::Gather { .. } if root == Some(to) => Some((output.chunk(from), input.chunk(0))),
            Kind::Scatter { .. } if root == Some(from) => Some((output.chunk(0), input.chunk(to))),
            _ => None,
        }
    };
    for rank in program.ranks() {
        let me = rank.index();
        let mut others = peers(&rank);
        others.retain(|&peer| part(me, peer).is_some() || part(peer, me).is_some());
        let (near, far) = links(&shape, hosts, rank, &others);
        // What takes longest begins first.
        far.tell(|peer| part(peer, me).is_some());
        near.begin();
        far.told(|peer| part(me, peer).is_some());
        far.put(|peer| part(me, peer));
        near.put((&group).into(), |peer| part(me, peer));
        // A gather and a scatter have one plan for calls in place and others, which copies the root's own part, perhaps onto itself.
        if let Some((there, here)) = part(me, me).filter(|_| !shape.in_place) {
            rank.copy(there, here, &group);
        }
        near.come();
        far.come(|peer| part(peer, me).is_some());
        far.end();
    }
    program
}

/// Every rank sends each other rank its part, which that one reduces.
fn reduce_scatter(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let (n, group) = (shape.ranks, shape.group());
    let program = shape.program("reduce-scatter over hosts", Pattern::reduce_scatter(n, 1));
    let scratch = scratch(&program, n);
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (near, far) = links(&shape, hosts, rank, &peers(&rank));
        let part = |peer: u32| Some((scratch[peer as usize].chunk(me), input.chunk(peer)));
        far.tell(|_| true);
        near.begin();
        far.told(|_| true);
        far.put(part);
        near.put((&group).into(), part);
        near.come();
        far.come(|_| true);
        let come = scratch[me as usize];
        let source = |from: u32| plain(if from == me { input.chunk(me) } else { come.chunk(from) });
        rank.reduce_in_order(rank.output().chunk(0), (0..n).map(source), Reduction::Sum, &group);
        far.end();
    }
    program
}

/// All others send their inputs to the root, which reduces them.
fn reduce(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let (n, group) = (shape.ranks, shape.group());
    let program = shape.program("reduce over hosts", Pattern::reduce(n, 1, root).cut_into(1));
    let scratch = program.rank(root).scratch(n);
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunks(..));
        let others = if me == root { peers(&rank) } else { vec![root] };
        let (near, far) = links(&shape, hosts, rank, &others);
        let sent = |peer: u32| (peer == root).then(|| (scratch.chunk(me), input));
        far.tell(|_| me == root);
        near.begin();
        far.told(|peer| peer == root);
        far.put(sent);
        near.put((&group).into(), sent);
        near.come();
        far.come(|_| me == root);
        if me == root {
            let source = |from: u32| plain(if from == me { input } else { scratch.chunk(from) });
            rank.reduce_in_order(rank.output().chunks(..), (0..n).map(source), Reduction::Sum, &group);
        }
        far.end();
    }
    program
}

/// For hosts with different numbers of ranks: rank r gets chunk r of all inputs, reduces them and sends the result to all others. No begin
/// signal is needed, see [`through_scratch`](super::all_reduce::through_scratch).
fn all_reduce(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("all-reduce over hosts", Pattern::all_reduce(n, 1));
    let (inputs, results) = (scratch(&program, n), scratch(&program, n));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (near, far) = links(&shape, hosts, rank, &peers(&rank));
        let part = |peer: u32| Some((inputs[peer as usize].chunk(me), input.chunk(peer)));
        far.put(part);
        near.put((&group).into(), part);
        near.come();
        far.come(|_| true);
        let mine = rank.output().chunk(me);
        let come = inputs[me as usize];
        let source = |from: u32| plain(if from == me { input.chunk(me) } else { come.chunk(from) });
        rank.reduce_in_order(mine, (0..n).map(source), Reduction::Sum, &group);
        far.meet();
        let result = |peer: u32| Some((results[peer as usize].chunk(me), mine));
        far.put(result);
        near.put((&group).into(), result);
        near.come();
        far.come(|_| true);
        for peer in rank.peers() {
            rank.copy(rank.output().chunk(peer), results[me as usize].chunk(peer), &group);
        }
        far.end();
    }
    program
}
