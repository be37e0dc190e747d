//! Classical collectives as programs, for tests of everything that works on plans. They ask for the syncs that order ranks and
//! blocks, and leave those inside a block to the passes, as authors do.

pub(super) mod all_gather;
pub(super) mod all_reduce;
pub(super) mod all_to_all;
pub(super) mod rooted;

pub(super) mod judge;

mod mscclpp;
mod tests;

use super::program::{CollectiveProgram, MemoryChannel, Rank, SyncType};
use super::{Plan, pass, program};

/// Programs of a number of ranks, each of which is right once its blocks are synchronised. Not among them is
/// [`all_reduce::two_shot_packets`], which the check accepts only once it is fused.
pub(super) fn all(ranks: u32) -> Vec<CollectiveProgram> {
    let mut programs = vec![
        all_gather::ring(ranks),
        all_gather::packets(ranks),
        all_gather::grouped(ranks, 4),
        all_reduce::ring(ranks),
        all_reduce::one_shot_packets(ranks),
        all_reduce::two_shot(ranks, 2),
        all_reduce::switch(ranks),
        all_to_all::direct(ranks, 2),
        all_to_all::pipelined(ranks, 2),
        rooted::broadcast_line(ranks, ranks - 1),
        rooted::reduce(ranks, ranks / 2),
        rooted::send_recv(ranks, 2),
        rooted::reduce_scatter(ranks),
    ];
    if ranks.is_power_of_two() {
        programs.push(all_reduce::recursive_halving(ranks));
    }
    programs
}

/// The plan as written, with the syncs that its blocks need.
pub(super) fn synchronised(program: CollectiveProgram) -> Plan {
    pass::sync(&program.build().unwrap()).unwrap()
}

/// A channel to each other rank.
fn channels<'p>(rank: &Rank<'p>) -> Vec<MemoryChannel<'p>> {
    rank.peers().map(|peer| rank.memory_channel(peer)).collect()
}

/// All ranks have begun the call: block `tb` may touch what is theirs.
fn begin(channels: &[MemoryChannel<'_>], tb: u32) {
    channels.iter().for_each(|channel| channel.relaxed_signal(tb, SyncType::Both));
    channels.iter().for_each(|channel| channel.relaxed_wait(tb, SyncType::Both));
}

/// All ranks have done what block `tb` did until here.
fn end(channels: &[MemoryChannel<'_>], tb: u32) {
    channels.iter().for_each(|channel| channel.signal(tb, SyncType::Before));
    channels.iter().for_each(|channel| channel.wait(tb, SyncType::After));
}

/// Channels to the next rank and the rank before of a ring. Of two ranks these are one: the k-th channel to a rank pairs with
/// that rank's k-th channel back, so a second one would lead past the other's.
fn ring<'p>(rank: &Rank<'p>) -> (MemoryChannel<'p>, MemoryChannel<'p>) {
    let peers: Vec<u32> = rank.peers().collect();
    let next = rank.memory_channel(peers[0]);
    match peers[..] {
        [_, .., before] => (next, rank.memory_channel(before)),
        _ => (next, next),
    }
}

/// The place of `peer` among the peers of `rank`, in ascending order.
fn slot(rank: u32, peer: u32) -> u32 {
    if peer < rank { peer } else { peer - 1 }
}
