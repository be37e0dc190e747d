//! Plans in which a byte crosses between hosts once for each host that needs it, however many ranks are there: within each host, ranks
//! reduce before they send, and hand on what they got.

use super::hosts::Hosts;
use super::links::links;
use super::shape::{Shape, peers, plain, scratch};
use crate::plan::program::{CollectiveProgram, Pattern, Rank, Reduction, ThreadBlockGroup};

/// The blocks that move the `nth` of `count` parts: as many for each as there are, and at least one. If all blocks shared each part, a plan
/// would have as many operations as there are parts times blocks, and with it those who prepare it would take gigabytes.
fn movers(shape: &Shape, nth: u32, count: u32) -> ThreadBlockGroup {
    let each = (shape.blocks / count).max(1);
    let first = nth * each % shape.blocks;
    ThreadBlockGroup::new(first..first + each)
}

/// Each rank sends its part to one rank of every other host, which hands it on there.
pub(super) fn all_gather(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let program = shape.program("all-gather by hosts", Pattern::all_gather(shape.ranks, 1));
    let group = shape.group();
    let sends = |from: u32, to: u32| !hosts.share(from, to) && hosts.relay(from, hosts.place(to).0) == to;
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunk(0));
        let output = |peer: u32, from: u32| program.rank(peer).output().chunk(from);
        let others = peers(&rank).into_iter();
        let others: Vec<u32> =
            others.filter(|&peer| hosts.share(me, peer) || sends(me, peer) || sends(peer, me)).collect();
        let relayed: Vec<u32> = others.iter().copied().filter(|&peer| sends(peer, me)).collect();
        let (near, far) = links(&shape, hosts, rank, &others);

        far.tell(|peer| sends(peer, me));
        near.begin();
        far.told(|peer| sends(me, peer));
        far.put(|peer| sends(me, peer).then(|| (output(peer, me), input)));
        near.put((&group).into(), |peer| Some((output(peer, me), input)));
        if !shape.in_place {
            rank.copy(output(me, me), input, &group);
        }
        far.come(|peer| sends(peer, me));
        for (nth, &from) in (0..).zip(&relayed) {
            let blocks = movers(&shape, nth, relayed.len() as u32);
            near.put((&blocks).into(), |peer| Some((output(peer, from), output(me, from))));
        }
        near.come();
        far.end();
    }
    program
}

/// The rank that speaks for a host: the root, or the host's first.
fn leader(hosts: &Hosts, root: u32, host: u32) -> u32 {
    if hosts.place(root).0 == host { root } else { hosts.rank(host, 0) }
}

/// The leader of a rank's host, and the peers that the rank exchanges data with: within a host all with the leader, and the leaders with
/// the root.
fn star(hosts: &Hosts, rank: &Rank<'_>, root: u32) -> (u32, Vec<u32>) {
    let me = rank.index();
    let leads = |rank: u32| leader(hosts, root, hosts.place(rank).0) == rank;
    let exchanges = |peer: u32| match hosts.share(me, peer) {
        true => leads(me) || leads(peer),
        false => leads(me) && leads(peer) && (me == root || peer == root),
    };
    let peers = peers(rank).into_iter().filter(|&peer| exchanges(peer)).collect();
    (leader(hosts, root, hosts.place(me).0), peers)
}

/// The root sends to one rank of every other host, which hands it on there.
pub(super) fn broadcast(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let program = shape.program("broadcast by hosts", Pattern::broadcast(shape.ranks, 1, root));
    let group = shape.group();
    let output = |of: u32| program.rank(of).output().chunks(..);
    for rank in program.ranks() {
        let me = rank.index();
        let (leader, others) = star(hosts, &rank, root);
        let (near, far) = links(&shape, hosts, rank, &others);
        let mine = if me == root { rank.input().chunks(..) } else { output(me) };

        far.tell(|_| me != root);
        near.begin();
        far.told(|_| me == root);
        far.put(|peer| (me == root).then(|| (output(peer), mine)));
        if me != root {
            far.come(|_| true);
        }
        near.put((&group).into(), |peer| (me == leader).then(|| (output(peer), mine)));
        if me == root && !shape.in_place {
            rank.copy(output(me), mine, &group);
        }
        near.come();
        far.end();
    }
    program
}

/// The ranks of a host send to its leader, which reduces and sends the sum to the root.
pub(super) fn reduce(shape: Shape, hosts: &Hosts, root: u32) -> CollectiveProgram {
    let program = shape.program("reduce by hosts", Pattern::reduce(shape.ranks, 1, root).cut_into(1));
    let (group, home) = (shape.group(), hosts.place(root).0);
    // Inputs of a host's other ranks, and the host's sum in the leader's own place.
    let within = |host: u32| {
        let size = hosts.size(host);
        (size > 1).then(|| program.rank(leader(hosts, root, host)).scratch(size))
    };
    let within: Vec<_> = (0..hosts.count()).map(within).collect();
    let sums = program.rank(root).scratch(hosts.count() - 1);
    let sum_of = |host: u32| sums.chunk(host - u32::from(host > home));
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input().chunks(..));
        let (host, l) = hosts.place(me);
        let (leader, others) = star(hosts, &rank, root);
        let (near, far) = links(&shape, hosts, rank, &others);

        far.tell(|_| me == root);
        near.begin();
        near.put((&group).into(), |_| {
            Some((within[host as usize]?.chunk(l), input)).filter(|_| me != leader)
        });
        near.come();
        if me != leader {
            continue;
        }
        let mut mine = input;
        if let Some(come) = within[host as usize] {
            mine = come.chunk(l);
            let source = |number: u32| plain(if number == l { input } else { come.chunk(number) });
            rank.reduce_in_order(mine, (0..hosts.size(host)).map(source), Reduction::Sum, &group);
        }
        if me == root {
            far.come(|_| true);
            let source = |other: u32| plain(if other == host { mine } else { sum_of(other) });
            let output = rank.output().chunks(..);
            rank.reduce_in_order(output, (0..hosts.count()).map(source), Reduction::Sum, &group);
        } else {
            far.told(|_| true);
            far.meet();
            far.put(|_| Some((sum_of(host), mine)));
        }
        far.end();
    }
    program
}

/// For hosts of equally many ranks: rank l of each host reduces what its host has for the l-th ranks of all hosts, and sends it there. In
/// the order of ranks within each host, then in the order of hosts.
pub(super) fn reduce_scatter(shape: Shape, hosts: &Hosts) -> CollectiveProgram {
    let (n, count) = (shape.ranks, hosts.count());
    let local = n / count;
    let program = shape.program("reduce-scatter by hosts", Pattern::reduce_scatter(n, 1));
    // Parts from the host's other ranks, with this host's sums in the rank's own places; and the sums of the other hosts.
    let within = (local > 1).then(|| scratch(&program, n));
    let between = scratch(&program, count);
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input) = (rank.index(), rank.input());
        let (host, l) = hosts.place(me);
        let others = alike(hosts, &rank);
        let (near, far) = links(&shape, hosts, rank, &others);
        // In the scratch of rank `of`: what rank `from` of its host has for the rank of a host that is numbered as `of` is.
        let place =
            |of: u32, from: u32, to: u32| Some(within.as_ref()?[of as usize].chunk(from * count + to));

        far.tell(|_| true);
        near.begin();
        for to in 0..count {
            let blocks = movers(&shape, to, count);
            let part = |peer: u32| input.chunk(hosts.rank(to, hosts.place(peer).1));
            near.put((&blocks).into(), |peer| Some((place(peer, l, to)?, part(peer))));
        }
        near.come();
        let own = |to: u32| input.chunk(hosts.rank(to, l));
        let sum = |to: u32| place(me, l, to).unwrap_or_else(|| own(to));
        for to in (0..count).filter(|_| local > 1) {
            let source = |from: u32| place(me, from, to).filter(|_| from != l).unwrap_or_else(|| own(to));
            let sources = (0..local).map(|from| plain(source(from)));
            rank.reduce_in_order(sum(to), sources, Reduction::Sum, &movers(&shape, to, count));
        }
        far.told(|_| true);
        far.meet();
        far.put(|peer| Some((between[peer as usize].chunk(host), sum(hosts.place(peer).0))));
        far.come(|_| true);
        let source =
            |from: u32| plain(if from == host { sum(host) } else { between[me as usize].chunk(from) });
        rank.reduce_in_order(rank.output().chunk(0), (0..count).map(source), Reduction::Sum, &group);
        far.end();
    }
    program
}

/// The peers of a rank's host, and those of other hosts that are numbered as the rank is.
fn alike(hosts: &Hosts, rank: &Rank<'_>) -> Vec<u32> {
    let (me, l) = (rank.index(), hosts.place(rank.index()).1);
    peers(rank).into_iter().filter(|&peer| hosts.share(me, peer) || hosts.place(peer).1 == l).collect()
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
    // A part has a chunk for each host.
    let chunk = |part: u32, of: u32| part * count + of;
    let chunks: Vec<_> = (0..count).map(|of| (of, movers(&shape, of, count))).collect();
    // Of the host's other ranks, of the other hosts, and the results.
    let (within, between, results) = (scratch(&program, n), scratch(&program, count), scratch(&program, n));
    let group = shape.group();
    for rank in program.ranks() {
        let (me, input, output) = (rank.index(), rank.input(), rank.output());
        let (host, l) = hosts.place(me);
        let (near, far) = links(&shape, hosts, rank, &alike(hosts, &rank));

        for (of, blocks) in &chunks {
            let part = |peer: u32| input.chunk(chunk(hosts.place(peer).1, *of));
            near.put(blocks.into(), |peer| Some((within[peer as usize].chunk(chunk(l, *of)), part(peer))));
        }
        near.come();
        for (of, blocks) in &chunks {
            let (mine, own) = (output.chunk(chunk(l, *of)), input.chunk(chunk(l, *of)));
            let source =
                |from: u32| plain(if from == l { own } else { within[me as usize].chunk(chunk(from, *of)) });
            if local > 1 {
                rank.reduce_in_order(mine, (0..local).map(source), Reduction::Sum, blocks);
            } else if !shape.in_place {
                rank.copy(mine, own, blocks);
            }
        }
        far.meet();
        far.put(|peer| {
            let to = hosts.place(peer).0;
            Some((between[peer as usize].chunk(host), output.chunk(chunk(l, to))))
        });
        far.come(|_| true);
        let reduced = output.chunk(chunk(l, host));
        let source = |from: u32| plain(if from == host { reduced } else { between[me as usize].chunk(from) });
        rank.reduce_in_order(reduced, (0..count).map(source), Reduction::Sum, &group);
        far.meet();
        far.put(|peer| Some((results[peer as usize].chunk(chunk(l, host)), reduced)));
        far.come(|_| true);
        let take = |part: u32, of: u32, blocks: &ThreadBlockGroup| {
            rank.copy(output.chunk(chunk(part, of)), results[me as usize].chunk(chunk(part, of)), blocks);
        };
        chunks.iter().filter(|(of, _)| *of != host).for_each(|(of, blocks)| take(l, *of, blocks));
        if local > 1 {
            for (of, blocks) in &chunks {
                let at = chunk(l, *of);
                near.put(blocks.into(), |peer| Some((results[peer as usize].chunk(at), output.chunk(at))));
            }
            near.come();
            for part in (0..local).filter(|&part| part != l) {
                chunks.iter().for_each(|(of, blocks)| take(part, *of, blocks));
            }
        }
        far.end();
    }
    program
}
