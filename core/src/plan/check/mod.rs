//! Finds what is wrong with a plan without running it.
//!
//! [`structure`] looks at each operation alone: ranges, types, channels. [`limits`] counts what kernels have bounds for. [`check`]
//! then runs the plan once on symbols: every chunk is the set of inputs that it is made of, every access is compared with those
//! before it by vector clocks, and two or three calls follow each other as in a stream. Because signals, waits and packets are
//! counted, the order in which blocks run changes nothing, so one run speaks for all.

mod cells;
mod clock;
mod copy_engine;
mod ends;
mod finding;
mod limits;
mod packets;
mod pairing;
mod reductions;
mod resolution;
mod run;
mod semaphores;
mod structure;
mod sums;
mod values;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use copy_engine::refusal as copy_engine_refusal;
pub(super) use ends::Ends;
pub use finding::{Finding, FindingKind, Location};
pub use limits::{
    LOOP_UNIT, MAX_BLOCKS, MAX_CHANNELS, MAX_OPERANDS, MAX_OPERATIONS, MAX_SEMAPHORES, MAX_SWITCHES, limits,
};
pub(super) use run::sums;
pub use structure::structure;
pub(super) use sums::{Sum, Sums};

use finding::MOST;

use super::ir::Plan;
use super::{collective, cursor, geometry, ir, position};

/// Finds the mistakes of a plan: none, if it is right for every size that it divides.
///
/// At most 32 findings, the most basic first: a plan of wrong structure, or over a limit of what runs plans, is not run.
pub fn check(plan: &Plan) -> Vec<Finding> {
    let mut findings = structure(plan);
    if findings.is_empty() {
        findings = limits(plan);
    }
    if findings.is_empty() {
        findings = pairing::pairing(plan);
        findings.extend(reductions::mixed(plan));
        // Left over signals would end waits of the next call, and what follows would only confuse.
        let calls = match findings.is_empty() {
            true if plan.settings.double_scratch => 3,
            true => 2,
            false => 1,
        };
        findings.extend(run::run(plan, calls));
    }
    findings.truncate(MOST);
    findings
}
