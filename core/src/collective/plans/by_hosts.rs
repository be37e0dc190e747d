//! Plans in which a byte crosses between hosts once for each host that needs it, however many ranks are there: within each host, ranks
//! reduce before they send, and hand on what they got.

use super::hosts::Hosts;
use super::links::Links;
use super::shape::{Shape, plain, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, Rank, Reduction};

/// The peers on a rank's own host, and those of other hosts that are `far`.
fn peers(hosts: &Hosts, rank: &Rank<'_>, far: impl Fn(u32) -> bool) -> (Vec<u32>, Vec<u32>) {
    let (near, others): (Vec<u32>, Vec<u32>) =
        rank.peers().partition(|&peer| hosts.share(rank.index(), peer));
    (near, others.into_iter().filter(|&peer| far(peer)).collect())
}

/// Each rank sends its part to one rank of every other host, which hands it on there.
pub(super) fn all_gather(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let program = shape.program("all-gather by hosts", Pattern::all_gather(shape.ranks, 1));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunk(0));
        let output = |peer: u32, from: u32| program.rank(peer).output().chunk(from);
        let sends = |from: u32, to: u32| hosts.relay(from, hosts.place(to).0) == to;
        let (near, far) = peers(hosts, &rank, |peer| sends(me, peer) || sends(peer, me));
        let relayed: Vec<u32> = far.iter().copied().filter(|&peer| sends(peer, me)).collect();
        let [near, far] = [near, far].map(|peers| Links::new(&shape, hosts, rank, &peers));

        far.tell();
        near.begin();
        far.told();
        far.put(&shape, |peer| sends(me, peer).then(|| (output(peer, me), input)));
        near.put(&shape, |peer| Some((output(peer, me), input)));
        if !shape.in_place {
            rank.copy(output(me, me), input, &group);
        }
        far.come(|peer| sends(peer, me));
        for from in relayed {
            near.put(&shape, |peer| Some((output(peer, from), output(me, from))));
        }
        near.come(|_| true);
        far.end();
    }
    program
}

/// The root sends to one rank of every other host, which hands it on there.
pub(super) fn broadcast(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let program = shape.program("broadcast by hosts", Pattern::broadcast(shape.ranks, 1, root));
    let output = |of: u32| program.rank(of).output().chunks(..);
    for rank in program.ranks() {
        let me = rank.index();
        let first = leader(hosts, root, hosts.place(me).0);
        let (mut near, far) = peers(hosts, &rank, |peer| {
            let (one, other) = if me == root { (peer, me) } else { (me, peer) };
            other == root && leader(hosts, root, hosts.place(one).0) == one
        });
        near.retain(|&peer| me == first || peer == first);
        let [near, far] = [near, far].map(|peers| Links::new(&shape, hosts, rank, &peers));

        far.tell();
        near.begin();
        far.told();
        let mine = if me == root { rank.input().chunks(..) } else { output(me) };
        if me == root {
            far.put(&shape, |peer| Some((output(peer), mine)));
        } else {
            far.come(|_| true);
        }
        near.put(&shape, |peer| (me == first).then(|| (output(peer), mine)));
        if me == root && !shape.in_place {
            rank.copy(output(me), mine, &shape.group());
        }
        near.come(|_| true);
        far.end();
    }
    program
}

/// The rank that speaks for a host: the root, or the host's first.
fn leader(hosts: &Hosts, root: u32, host: u32) -> u32 {
    if hosts.place(root).0 == host { root } else { hosts.rank(host, 0) }
}

/// The ranks of a host send to one of them, which reduces and sends the sum to the root.
pub(super) fn reduce(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let program = shape.program("reduce by hosts", Pattern::reduce(shape.ranks, 1, root).cut_into(1));
    let group = shape.group();
    // What the others of the host have, with the host's sum in the leader's own place; and at the root the sums of the other hosts.
    let within = |host: u32| {
        let size = hosts.size(host);
        (size > 1).then(|| program.rank(leader(hosts, root, host)).scratch(size))
    };
    let within: Vec<_> = (0..hosts.count()).map(within).collect();
    let between = program.rank(root).scratch(hosts.count());
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunks(..));
        let (host, l) = hosts.place(me);
        let first = leader(hosts, root, host);
        let (mut near, far) = peers(hosts, &rank, |peer| {
            let (one, other) = if me == root { (peer, me) } else { (me, peer) };
            other == root && leader(hosts, root, hosts.place(one).0) == one
        });
        near.retain(|&peer| me == first || peer == first);
        let [near, far] = [near, far].map(|peers| Links::new(&shape, hosts, rank, &peers));

        far.tell();
        near.begin();
        near.put(&shape, |_| Some((within[host as usize]?.chunk(l), input)).filter(|_| me != first));
        near.come(|_| true);
        if me != first {
            continue;
        }
        let mut sum = input;
        if let Some(come) = within[host as usize] {
            sum = come.chunk(l);
            let source = |number: u32| plain(if number == l { input } else { come.chunk(number) });
            rank.reduce_in_order(sum, (0..hosts.size(host)).map(source), Reduction::Sum, &group);
        }
        far.told();
        if me == root {
            far.come(|_| true);
            let source = |other: u32| plain(if other == host { sum } else { between.chunk(other) });
            rank.reduce_in_order(
                rank.output().chunks(..),
                (0..hosts.count()).map(source),
                Reduction::Sum,
                &group,
            );
        } else {
            far.meet();
            far.put(&shape, |_| Some((between.chunk(host), sum)));
        }
        far.end();
    }
    program
}

/// For hosts of equally many ranks: rank l of each host reduces what its host has for the l-th ranks of all hosts, and sends it there. In the
/// order of ranks within each host, then in the order of hosts.
pub(super) fn reduce_scatter(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let (n, count) = (shape.ranks, hosts.count());
    let local = n / count;
    let program = shape.program("reduce-scatter by hosts", Pattern::reduce_scatter(n, 1));
    // What the host's other ranks have, with this host's sums in the rank's own places; and the sums of the other hosts.
    let within = (local > 1).then(|| scratch(&program, n));
    let between = scratch(&program, count);
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (host, l) = hosts.place(me);
        let (near, far) = peers(hosts, &rank, |peer| hosts.place(peer).1 == l);
        let [near, far] = [near, far].map(|peers| Links::new(&shape, hosts, rank, &peers));

        far.tell();
        near.begin();
        // What rank `from` of the host has for rank `to` of another one.
        let place =
            |to: u32, from: u32, other: u32| Some(within.as_ref()?[to as usize].chunk(from * count + other));
        for other in 0..count {
            near.put(&shape, |peer| {
                Some((place(peer, l, other)?, input.chunk(hosts.rank(other, hosts.place(peer).1))))
            });
        }
        near.come(|_| true);
        let own = |other: u32| input.chunk(hosts.rank(other, l));
        let sum = |other: u32| place(me, l, other).unwrap_or_else(|| own(other));
        for other in (0..count).filter(|_| local > 1) {
            let source =
                |from: u32| place(me, from, other).filter(|_| from != l).unwrap_or_else(|| own(other));
            rank.reduce_in_order(
                sum(other),
                (0..local).map(|from| plain(source(from))),
                Reduction::Sum,
                &group,
            );
        }
        far.told();
        far.meet();
        far.put(&shape, |peer| Some((between[peer as usize].chunk(host), sum(hosts.place(peer).0))));
        far.come(|_| true);
        let source =
            |other: u32| plain(if other == host { sum(other) } else { between[me as usize].chunk(other) });
        rank.reduce_in_order(rank.output().chunk(0), (0..count).map(source), Reduction::Sum, &group);
        far.end();
    }
    program
}

/// For hosts of equally many ranks: each host reduces, rank l part l of the message; the l-th ranks of all hosts reduce and gather that
/// part over the hosts, each of them one chunk; then each gives its part to its host. So each byte crosses between hosts as often as with
/// one rank for each host. Elements are reduced in the order of ranks within each host, then in the order of hosts.
///
/// No begin signal is needed. What a rank writes to in the first two steps of a call, its owner has read before it sent what ended the
/// writer's last call. The results are written once their owner has sent something in this call, so it has ended the last one.
pub(super) fn all_reduce(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
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
