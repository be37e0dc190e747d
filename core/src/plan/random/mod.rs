//! Random programs that are right, and random damage to programs, for tests and fuzz targets.
//!
//! [`program`] first writes down, in one order for all ranks, which blocks move what so that a random collective results
//! (`steps`), and then gives every block its share of this order with the signals, semaphores and barriers that keep it
//! (`order`). So no program can end in a deadlock, and each is right by construction.

mod dice;
mod mutate;
mod order;
mod steps;

#[cfg(test)]
mod tests;

pub use mutate::mutant;

use dice::Dice;

use super::check::copy_engine_refusal;
use super::collective;
use super::ir::{self, Plan};
use super::pass::{self, effects};

/// A program that is right, without or with a few needless syncs: only `pass::sync` completes it.
pub fn bare_program(seed: u64) -> Plan {
    let mut dice = Dice::new(seed);
    let (mut plan, steps) = steps::steps(&mut dice);
    order::order(&mut plan, &steps, &mut dice);
    let by_port = |rank: &ir::RankPlan| {
        rank.all_ops().any(|op| matches!(op, ir::Op::Port(put) if put.form == ir::Form::Packets))
    };
    // Only memory channels keep lines whole.
    if dice.one_in(2) && !plan.ranks.iter().any(by_port) {
        plan.settings.protocol = ir::Protocol::Ll128;
    }
    copy_engines(&mut plan, &mut dice);
    plan
}

/// Gives some of the blocks that copy engines can run to them, but no rank's first: packets need a kernel.
fn copy_engines(plan: &mut Plan, dice: &mut Dice) {
    let settings = &plan.settings;
    for block in plan.ranks.iter_mut().flat_map(|rank| rank.blocks.iter_mut().skip(1)) {
        let mut ops = block.ops.iter().map(|operation| &operation.op);
        let can = ops.all(|op| copy_engine_refusal(settings, op).is_none());
        block.copy_engine = can && dice.one_in(2);
    }
}

/// A program that is right. Equal seeds give equal programs.
pub fn program(seed: u64) -> Plan {
    let bare = bare_program(seed);
    // Its structure is right, and it is small.
    pass::sync(&bare).unwrap_or(bare)
}
