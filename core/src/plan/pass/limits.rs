//! Limits of what runs plans. MSCCL++'s executor has 64 operations for each block, 16 channels for each block and 8 for each
//! operation, and checks only the first; plans are compiled here, so these limits are those of a kernel.

use super::effects::flat;
use super::geometry::operands;
use super::ir::{ChannelKind, Op, Operation, Plan};
use super::refused;
use crate::error::Result;

/// Most blocks of a rank. All must be resident at once, with up to 1,024 threads each: two on each of 148 multiprocessors are
/// the most that today's GPUs take. A launch asks the device itself.
pub const MAX_BLOCKS: usize = 296;
/// Most operations of a block, those of loops counted once: a compiled kernel holds each.
pub const MAX_OPERATIONS: usize = 1 << 16;
/// Most operands of a move: a kernel holds an address of each.
pub const MAX_OPERANDS: usize = 1 << 10;
/// Most memory channels of a rank, and most port channels: a proxy's trigger has 16 bits for the number.
pub const MAX_CHANNELS: usize = 1 << 16;
/// Most semaphores of a rank.
pub const MAX_SEMAPHORES: usize = 1 << 16;
/// Most switches of a rank.
pub const MAX_SWITCHES: usize = 1 << 8;

/// Refuses a plan that is over one of the limits.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan): the message names rank, number and limit.
pub fn limits(plan: &Plan) -> Result<()> {
    for (index, rank) in plan.ranks.iter().enumerate() {
        let within = |what: &str, count: usize, most: usize| {
            if count <= most {
                return Ok(());
            }
            Err(refused(format!("rank {index} has {count} {what}; the limit is {most}")))
        };
        within("blocks", rank.blocks.len(), MAX_BLOCKS)?;
        within("memory channels", rank.peers(ChannelKind::Memory).len(), MAX_CHANNELS)?;
        within("port channels", rank.peers(ChannelKind::Port).len(), MAX_CHANNELS)?;
        within("semaphores", rank.semaphores.len(), MAX_SEMAPHORES)?;
        within("switches", rank.switches.len(), MAX_SWITCHES)?;
        for (number, block) in rank.blocks.iter().enumerate() {
            let all: usize = block.ops.iter().map(|operation: &Operation| flat(operation).count()).sum();
            within(&format!("operations in block {number}"), all, MAX_OPERATIONS)?;
            for op in block.ops.iter().flat_map(flat) {
                if let Op::Move(moved) = op {
                    let what = format!("operands in a move of block {number}");
                    within(&what, operands(moved).count(), MAX_OPERANDS)?;
                }
            }
        }
    }
    Ok(())
}
