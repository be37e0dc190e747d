//! Barrier.

use crate::error::Result;
use crate::plan::Plan;
use crate::plan::program::{CollectiveProgram, Pattern, SyncType};

/// Every rank tells all others that it has come, and waits for them. It moves no data.
pub(in super::super) fn barrier(ranks: u32) -> Result<Plan> {
    let pattern = Pattern::custom("barrier", ranks, 0, 0);
    let program = CollectiveProgram::new("barrier", pattern).threads_per_block(32);
    for rank in program.ranks() {
        let channels: Vec<_> = rank.peers().map(|peer| rank.memory_channel(peer)).collect();
        channels.iter().for_each(|channel| channel.relaxed_signal(0, SyncType::None));
        channels.iter().for_each(|channel| channel.wait(0, SyncType::None));
    }
    program.compile()
}
