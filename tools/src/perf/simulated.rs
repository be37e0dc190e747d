//! Expects of a plan whose collective nobody knows what the simulator gives: its outputs, or the inputs of one that has no outputs.

use anyhow::Result;
use aqueduct::plan::{Kind, Plan, simulate};

use super::data::{Call, Expected};

/// The longest message that is simulated, in bytes: the simulator takes a second for it, or several where there are many ranks.
pub(super) const LONGEST: usize = 256 << 10;

/// The byte that the simulator fills outputs with before a call.
pub(super) const GARBAGE: u8 = 0x5A;

/// A plan whose results only the simulator knows.
pub(super) struct Simulated {
    plan: Plan,
}

impl Simulated {
    /// For a collective of the author's own.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let mut plan = plan.clone();
        if !matches!(plan.collective.kind, Kind::Custom(_)) {
            return None;
        }
        if plan.ranks.iter().all(|rank| rank.output_chunks == 0) {
            // It leaves its result in the input.
            plan.collective.in_place = true;
            plan.ranks.iter_mut().for_each(|rank| rank.output_chunks = rank.input_chunks);
        }
        Some(Self { plan })
    }

    /// The output of each rank in `call`, whose data `operand` makes for each rank; `None` for a message that is too long.
    pub(super) fn outputs(
        &self,
        call: &Call,
        operand: impl Fn(u32) -> Expected,
    ) -> Result<Option<Vec<Vec<u8>>>> {
        if call.count * call.ty.bytes() > LONGEST {
            return Ok(None);
        }
        let ranks = &self.plan.ranks;
        // Without any input a message is an output, of which the simulator is told a chunk.
        let chunks = match ranks.iter().all(|rank| rank.input_chunks == 0) {
            true => ranks.iter().map(|rank| rank.output_chunks).max().unwrap_or(0).max(1),
            false => 1,
        };
        let input = |rank| {
            let mut bytes = vec![0; call.count / chunks as usize * call.ty.bytes()];
            operand(rank).fill(0, &mut bytes);
            bytes
        };
        let inputs = (0..call.ranks).map(input).collect();
        let config = simulate::Config { seed: u64::from(call.iteration), reduction: Some(call.op) };
        Ok(simulate::run_bytes(&self.plan, call.ty, &[inputs], config)?.pop())
    }
}
