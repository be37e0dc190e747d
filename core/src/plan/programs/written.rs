//! Programs as their authors wrote them, for tests of everything that works on plans.

use super::super::program::CollectiveProgram;
use super::super::{Plan, pass};
use super::{all_gather, all_reduce, all_to_all, rooted};

/// Programs of a number of ranks, each of which is right once its blocks are synchronised. Not among them is
/// [`all_reduce::two_shot_packets`], which the check accepts only once it is fused.
pub(in super::super) fn all(ranks: u32) -> Vec<CollectiveProgram> {
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
        rooted::gather(ranks, ranks - 1),
        rooted::scatter(ranks, ranks / 2),
        rooted::send_recv(ranks, 2),
        rooted::reduce_scatter(ranks),
    ];
    if ranks.is_power_of_two() {
        programs.push(all_reduce::recursive_halving(ranks));
    }
    programs
}

/// The plan as written, with the syncs that its blocks need.
pub(in super::super) fn synchronised(program: CollectiveProgram) -> Plan {
    pass::sync(&program.build().unwrap()).unwrap()
}
