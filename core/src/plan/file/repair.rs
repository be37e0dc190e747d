//! Adds what plan files leave to MSCCL++'s executor: the missing ends of port channels, and last flushes.

use std::collections::{BTreeMap, BTreeSet};

use super::ir::{Block, Buffer, Op, Plan, RankPlan};

/// Completes a plan that was read.
pub(super) fn complete(plan: &mut Plan) {
    plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks).for_each(flush_at_the_end);
    give_ports_other_ends(&mut plan.ranks);
}

/// A proxy reads the caller's buffer until its put is flushed, and behind the call the buffer is the caller's.
fn flush_at_the_end(block: &mut Block) {
    let mut unflushed = BTreeSet::new();
    for op in block.all_ops() {
        match op {
            Op::Port(put) if put.flush => _ = unflushed.remove(&put.channel),
            Op::Port(put) if put.source.0 != Buffer::Scratch => _ = unflushed.insert(put.channel),
            Op::Flush { channel } => _ = unflushed.remove(channel),
            _ => {}
        }
    }
    let origin = block.ops.last().map_or(0, |last| last.origin);
    block.ops.extend(unflushed.into_iter().map(|channel| Op::Flush { channel }.at(origin)));
}

/// A rank that takes no part in a port channel but as its far end need not name it.
fn give_ports_other_ends(ranks: &mut [RankPlan]) {
    let mut counts = BTreeMap::<(u32, u32), usize>::new();
    for (rank, plan) in (0..).zip(&*ranks) {
        plan.port_channels.iter().for_each(|&peer| *counts.entry((rank, peer)).or_default() += 1);
    }
    for (&(rank, peer), &count) in &counts {
        let there = counts.get(&(peer, rank)).copied().unwrap_or(0);
        // A channel of a rank to itself is wrong, and stays so.
        if rank != peer {
            ranks[peer as usize].port_channels.extend(std::iter::repeat_n(rank, count.saturating_sub(there)));
        }
    }
}
