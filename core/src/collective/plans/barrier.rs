//! Barrier.

use super::hosts::Hosts;
use crate::error::Result;
use crate::plan::Plan;
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// Every rank tells all others that it has come, and waits for them: through ports, where they are on another host. It moves no data.
pub(in super::super) fn barrier(ranks: u32, hosts: &Hosts) -> Result<Plan> {
    let pattern = Pattern::custom("barrier", ranks, 0, 0);
    let program = CollectiveProgram::new("barrier", pattern).threads_per_block(32);
    for rank in program.ranks() {
        let (near, far): (Vec<u32>, Vec<u32>) =
            rank.peers().partition(|&peer| hosts.share(rank.index(), peer));
        let near: Vec<_> = near.into_iter().map(|peer| rank.memory_channel(peer)).collect();
        let far: Vec<_> = far.into_iter().map(|peer| rank.port_channel(peer)).collect();
        far.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        near.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        near.iter().for_each(|channel| channel.wait(0, SyncType::None));
        far.iter().for_each(|channel| channel.wait(0, SyncType::None));
    }
    program.compile()
}
