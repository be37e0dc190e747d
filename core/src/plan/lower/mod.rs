//! From a plan to the description of each rank's kernel.
//!
//! One rank's thread blocks become [steps](steps) over numbers; [blocks of one shape](shapes) share a body. Everything
//! that ranks must agree about, such as [where a peer's counters lie](control), follows from the plan alone.

pub(super) mod control;
mod operands;
mod refusal;
mod shapes;
mod steps;

use aqueduct_ptx::plan as ptx;

pub(super) use control::Control;
use operands::Addresses;
pub(super) use operands::{Address, Store};

use super::{ir, position};
use crate::error::Result;
use ir::{Plan, Reduction};

/// One rank's kernel, and what its parameters are.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    /// The description.
    pub(super) kernel: ptx::Kernel,
    /// The addresses behind the kernel's fixed parameters, in order.
    pub(super) addresses: Vec<Address>,
}

/// Describes `rank`'s kernel for elements of a type, with `reduction` in place of the plan's own if there is one.
///
/// # Errors
/// [`ErrorKind::Plan`] for what kernels cannot do: the message names the operation.
pub(super) fn lower(
    plan: &Plan,
    rank: u32,
    element: ptx::Element,
    reduction: Option<Reduction>,
) -> Result<Lowered> {
    let rank_plan = &plan.ranks[rank as usize];
    if rank_plan.blocks.is_empty() {
        return Err(refusal::refused(format!(
            "rank {rank} has no operation, and every rank of a plan runs a kernel; give it one, such as a copy in scratch"
        )));
    }
    let control = Control::of(plan, rank_plan)?;
    let mut addresses = Addresses::default();
    let blocks = steps::of_rank(plan, rank, &control, reduction, &mut addresses)?;
    let laps = steps::laps(plan, rank, &control, &mut addresses)?;
    let (shapes, blocks) = shapes::shared(blocks);
    let kernel = ptx::Kernel {
        symbol: "aqueduct_plan".to_owned(),
        element,
        ranks: u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX),
        threads: plan.settings.threads_per_block,
        addresses: addresses.len(),
        calls: control.calls(),
        double_scratch: plan.settings.double_scratch,
        laps,
        shapes,
        blocks,
    };
    Ok(Lowered { kernel, addresses: addresses.into_list() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, samples};

    #[test]
    fn ranks_without_operations_are_refused() {
        let mut plan = samples::all().remove(0);
        plan.collective.kind = Kind::Custom("one-sided".into());
        plan.ranks[1].blocks.clear();
        let error = lower(&plan, 1, ptx::Element::I32, None).unwrap_err().to_string();
        assert!(error.contains("rank 1 has no operation") && error.contains("give it one"), "{error}");
    }
}
