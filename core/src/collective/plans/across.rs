//! Plans for ranks of several hosts: memory channels within a host, port channels between hosts, whose proxies move the data.
//!
//! A port channel's put reads its source after the block has asked for it, so each call ends with a flush: then the caller may write
//! its buffers. One block asks and waits for ports; the others meet it where they use what has come, or where it sends what they have
//! made.

use super::hosts::Hosts;
use super::shape::{Shape, exchange, peers, plain, scratch};
use crate::plan::Kind;
use crate::plan::program::{
    Chunk, CollectiveProgram, MemoryChannel, Pattern, PortChannel, Rank, Reduction, SyncType,
};

/// The block that asks and waits for ports.
const ASKS: u32 = 0;

/// A rank's channels to some of the others.
struct Links<'p> {
    rank: Rank<'p>,
    blocks: u32,
    /// To ranks of the same host, of each block its own.
    near: Vec<Vec<MemoryChannel<'p>>>,
    far: Vec<PortChannel<'p>>,
}

impl<'p> Links<'p> {
    fn new(shape: &Shape, hosts: &Hosts, rank: Rank<'p>, peers: &[u32]) -> Self {
        let (near, far): (Vec<u32>, Vec<u32>) =
            peers.iter().partition(|&&peer| hosts.share(rank.index(), peer));
        let far = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        Self { rank, blocks: shape.blocks, near: shape.channels(&rank, &near), far }
    }

    /// Waits until all these ranks have begun the call.
    fn begin(&self) {
        // What takes longest begins first.
        self.far.iter().for_each(|channel| channel.relaxed_signal(ASKS, SyncType::None));
        for (block, channels) in (0..).zip(&self.near) {
            channels.iter().for_each(|channel| channel.relaxed_signal(block, SyncType::None));
            channels.iter().for_each(|channel| channel.wait(block, SyncType::After));
        }
        self.far.iter().for_each(|channel| channel.wait(ASKS, SyncType::After));
    }

    /// Puts to each of these ranks what `what` says: the chunk there, and the one here.
    fn put(&self, shape: &Shape, what: impl Fn(u32) -> Option<(Chunk, Chunk)>) {
        // First, so that proxies work beside the kernel.
        for channel in &self.far {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put_with_signal(there, here, ASKS);
            }
        }
        for channel in self.near.first().into_iter().flatten() {
            if let Some((there, here)) = what(channel.peer()) {
                channel.put(there, here, &shape.group());
            }
        }
    }

    /// Waits until what these ranks have put has come; those of other hosts put something if `sends` says so.
    fn come(&self, sends: impl Fn(u32) -> bool) {
        exchange(0.., &self.near);
        self.far
            .iter()
            .filter(|channel| sends(channel.peer()))
            .for_each(|channel| channel.wait(ASKS, SyncType::After));
        self.meet();
    }

    /// Orders what one block does behind this after what all have done before it.
    fn meet(&self) {
        if !self.far.is_empty() {
            self.rank.barrier(0..self.blocks);
        }
    }

    /// Waits until ports have read what they were asked to send.
    fn end(&self) {
        self.far.iter().for_each(|channel| channel.flush(ASKS, SyncType::None));
    }
}

/// How long a message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Length {
    Any,
    /// As long as there is scratch for.
    Scratch,
}

/// Up to how many ranks an average may be an all-reduce by hosts: where its sum is complete is found by checks of the whole plan, which
/// take time and memory with the square of the ranks.
const MOST_AVERAGED: u32 = 32;

/// The program of a collective, perhaps for averages; `None` of calls that change places within one buffer, and of a collective of the user's own.
pub(super) fn program(
    kind: &Kind,
    shape: Shape,
    hosts: &Hosts,
    averages: bool,
) -> Option<(CollectiveProgram, Length)> {
    let n = shape.ranks;
    let moving = |pattern, root: Option<u32>| {
        let name = format!("{} over hosts", kind.name());
        (move_parts(kind, shape.program(&name, pattern), shape, hosts, root), Length::Any)
    };
    Some(match *kind {
        Kind::AllReduce => {
            let fits = hosts.are_equal() && (!averages || n <= MOST_AVERAGED);
            let made = if fits { by_hosts(shape, hosts) } else { all_reduce(shape, hosts) };
            (made, Length::Scratch)
        }
        Kind::Reduce { root } => (reduce(shape, hosts, root), Length::Scratch),
        Kind::ReduceScatter => (reduce_scatter(shape, hosts), Length::Scratch),
        Kind::AllGather => moving(Pattern::all_gather(n, 1), None),
        Kind::AllToAll if !shape.in_place => moving(Pattern::all_to_all(n, 1), None),
        Kind::SendRecv if !shape.in_place => moving(Pattern::send_recv(n, 1), None),
        Kind::Broadcast { root } => moving(Pattern::broadcast(n, 1, root), Some(root)),
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
    let n = shape.ranks;
    // What rank `from` gives rank `to`: where it belongs, and where it lies.
    let part = |from: u32, to: u32| {
        let (input, output) = (program.rank(from).input(), program.rank(to).output());
        match kind {
            Kind::AllGather => Some((output.chunk(from), input.chunk(0))),
            Kind::AllToAll => Some((output.chunk(from), input.chunk(to))),
            Kind::SendRecv if (from + 1) % n == to => Some((output.chunk(0), input.chunk(0))),
            Kind::Broadcast { .. } if root == Some(from) => Some((output.chunks(..), input.chunks(..))),
            Kind::Gather { .. } if root == Some(to) => Some((output.chunk(from), input.chunk(0))),
            Kind::Scatter { .. } if root == Some(from) => Some((output.chunk(0), input.chunk(to))),
            _ => None,
        }
    };
    for rank in program.ranks() {
        let me = rank.index();
        let mut others = peers(&rank);
        others.retain(|&peer| part(me, peer).is_some() || part(peer, me).is_some());
        let links = Links::new(&shape, hosts, rank, &others);
        links.begin();
        links.put(&shape, |peer| part(me, peer));
        // A gather and a scatter have one plan for calls in place and others, which copies the root's own part, perhaps onto itself.
        if let Some((there, here)) = part(me, me).filter(|_| !shape.in_place) {
            rank.copy(there, here, &shape.group());
        }
        links.come(|peer| part(peer, me).is_some());
        links.end();
    }
    program
}

/// Every rank sends each other rank its part, which that one reduces.
fn reduce_scatter(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("reduce-scatter over hosts", Pattern::reduce_scatter(n, 1));
    let scratch = scratch(&program, n);
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let links = Links::new(&shape, hosts, rank, &peers(&rank));
        links.begin();
        links.put(&shape, |peer| Some((scratch[peer as usize].chunk(me), input.chunk(peer))));
        links.come(|_| true);
        let come = scratch[me as usize];
        let source = |from: u32| plain(if from == me { input.chunk(me) } else { come.chunk(from) });
        rank.reduce_in_order(rank.output().chunk(0), (0..n).map(source), Reduction::Sum, &shape.group());
        links.end();
    }
    program
}

/// All others send their inputs to the root, which reduces them.
fn reduce(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let n = shape.ranks;
    let program = shape.program("reduce over hosts", Pattern::reduce(n, 1, root).cut_into(1));
    let scratch = program.rank(root).scratch(n);
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunks(..));
        let others = if me == root { peers(&rank) } else { vec![root] };
        let links = Links::new(&shape, hosts, rank, &others);
        links.begin();
        links.put(&shape, |peer| (peer == root).then(|| (scratch.chunk(me), input)));
        links.come(|_| me == root);
        if me == root {
            let source = |from: u32| plain(if from == me { input } else { scratch.chunk(from) });
            rank.reduce_in_order(
                rank.output().chunks(..),
                (0..n).map(source),
                Reduction::Sum,
                &shape.group(),
            );
        }
        links.end();
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
        let links = Links::new(&shape, hosts, rank, &peers(&rank));
        links.put(&shape, |peer| Some((inputs[peer as usize].chunk(me), input.chunk(peer))));
        links.come(|_| true);
        let mine = rank.output().chunk(me);
        let come = inputs[me as usize];
        let source = |from: u32| plain(if from == me { input.chunk(me) } else { come.chunk(from) });
        rank.reduce_in_order(mine, (0..n).map(source), Reduction::Sum, &group);
        links.meet();
        links.put(&shape, |peer| Some((results[peer as usize].chunk(me), mine)));
        links.come(|_| true);
        for peer in rank.peers() {
            rank.copy(rank.output().chunk(peer), results[me as usize].chunk(peer), &group);
        }
        links.end();
    }
    program
}

/// For hosts of equally many ranks: each host reduces, rank l part l of the message; the l-th ranks of all hosts reduce and gather that
/// part over the hosts, each of them one chunk; then each gives its part to its host. So each byte crosses between hosts as often as with
/// one rank for each host. Elements are reduced in the order of ranks within each host, then in the order of hosts.
///
/// No begin signal is needed. What a rank writes to in the first two steps of a call, its owner has read before it sent what ended the
/// writer's last call. The results are written once their owner has sent something in this call, so it has ended the last one.
fn by_hosts(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let (n, count) = (shape.ranks, hosts.count());
    let local = n / count;
    let program = shape.program("all-reduce by hosts", Pattern::all_reduce(n, 1));
    let part = |l: u32| l * count..(l + 1) * count;
    // Of the host's other ranks, of the other hosts, and the results.
    let (within, between, results) = (scratch(&program, n), scratch(&program, count), scratch(&program, n));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input(), rank.output());
        let (host, l) = hosts.place(me);
        let near: Vec<u32> = rank.peers().filter(|&peer| hosts.share(me, peer)).collect();
        let far: Vec<u32> =
            rank.peers().filter(|&peer| !hosts.share(me, peer) && hosts.place(peer).1 == l).collect();
        let [near, far] = [near, far].map(|peers| Links::new(&shape, hosts, rank, &peers));

        near.put(&shape, |peer| {
            let to = hosts.place(peer).1;
            Some((within[peer as usize].chunks(part(l)), input.chunks(part(to))))
        });
        near.come(|_| true);
        let mine = output.chunks(part(l));
        let source = |from: u32| {
            plain(if from == l { input.chunks(part(l)) } else { within[me as usize].chunks(part(from)) })
        };
        if local > 1 {
            rank.reduce_in_order(mine, (0..local).map(source), Reduction::Sum, &group);
        } else if !shape.in_place {
            rank.copy(mine, input.chunks(part(l)), &group);
        }
        far.meet();
        far.put(&shape, |peer| {
            let to = hosts.place(peer).0;
            Some((between[peer as usize].chunk(host), output.chunk(l * count + to)))
        });
        far.come(|_| true);
        let reduced = output.chunk(l * count + host);
        let source = |from: u32| plain(if from == host { reduced } else { between[me as usize].chunk(from) });
        rank.reduce_in_order(reduced, (0..count).map(source), Reduction::Sum, &group);
        far.meet();
        far.put(&shape, |peer| Some((results[peer as usize].chunk(l * count + host), reduced)));
        far.come(|_| true);
        for other in (0..count).filter(|&other| other != host) {
            let chunk = l * count + other;
            rank.copy(output.chunk(chunk), results[me as usize].chunk(chunk), &group);
        }
        if local > 1 {
            rank.barrier(0..shape.blocks);
            near.put(&shape, |peer| Some((results[peer as usize].chunks(part(l)), mine)));
            near.come(|_| true);
            for other in (0..local).filter(|&other| other != l) {
                rank.copy(output.chunks(part(other)), results[me as usize].chunks(part(other)), &group);
            }
        }
        far.end();
    }
    program
}
