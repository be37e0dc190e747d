//! Predicts how long a plan takes on a described machine.
//!
//! The model runs the plan's operations in the order of their times. A block has two clocks, one of the thread that signals and
//! waits and one of all others, which meet at syncs. Links and memories are served in the order in which moves begin, so that
//! blocks share them; latencies and the rates of a single block come from the [`Machine`]. `docs/plans.md` says what is left out.

mod links;
mod machine;
mod packets;
mod refusal;
mod run;
mod sizes;
mod timeline;

#[cfg(test)]
mod tests;

pub use machine::Machine;
pub use timeline::{Arrow, ArrowKind, End, Span, Timeline};

use super::ir::Plan;
use super::{check, cursor, geometry, ir, run as execute};
use crate::error::Result;

/// Calls of a prediction, of which all but the first count: ranks that wait for each other less than once a call run apart by and
/// by.
const CALLS: u32 = 5;
/// Operations above which a prediction is of one call, so that a plan of millions takes seconds.
const LARGE: usize = 200_000;

/// Microseconds of one call with `bytes` of input on each rank (of output, if no rank has an input), of calls that follow each
/// other as in the replay of a graph.
///
/// # Errors
/// `Plan` for a plan of wrong structure, one whose ranks wait for each other for ever, and one that the machine cannot run;
/// `InvalidUsage` for a size that its chunks do not divide.
pub fn predict(plan: &Plan, machine: &Machine, bytes: u64) -> Result<f64> {
    let calls = if plan.operations() > LARGE { 1 } else { CALLS };
    let ends = run::run(plan, machine, bytes, calls, None)?;
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    let time = if calls == 1 { last } else { (last - first) / u64::from(calls - 1) };
    Ok(time as f64 / 1e6)
}

/// When each operation of one call begins and ends.
///
/// # Errors
/// As for [`predict`]; `Plan` for a call of more than a million operations.
pub fn timeline(plan: &Plan, machine: &Machine, bytes: u64) -> Result<Timeline> {
    let mut spans = Vec::new();
    run::run(plan, machine, bytes, 1, Some(&mut spans))?;
    Ok(Timeline::new(plan, spans))
}
