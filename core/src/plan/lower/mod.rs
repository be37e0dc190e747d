//! From a plan to the description of each rank's kernel.
//!
//! One rank's thread blocks become [steps](steps) over numbers; [blocks of one shape](shapes) share a body. Everything
//! that ranks must agree about, such as [where a peer's counters lie](control), follows from the plan alone.

mod averages;
pub(super) mod control;
mod copies;
mod laps;
pub(super) mod mark;
mod operands;
mod refusal;
mod repeats;
mod rows;
mod shapes;
mod steps;
mod teams;
mod ways;

use aqueduct_ptx::plan as ptx;

pub(super) use averages::Averages;
pub(super) use control::Control;
pub(super) use copies::{Copy, End, Part, copies};
use operands::Addresses;
pub(super) use operands::{Address, Store};
pub(super) use teams::{Team, teams};
pub(super) use ways::Ways;

use super::{check, collective, ir, position};
use crate::error::Result;
use ir::{Plan, Reduction};
use steps::Reductions;

/// One rank's kernel, and what its parameters are.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    /// The description.
    pub(super) kernel: ptx::Kernel,
    /// The addresses behind the kernel's fixed parameters, in order.
    pub(super) addresses: Vec<Address>,
}

/// Describes `rank`'s kernel for elements of a type, with `reduction` in place of the plan's own if there is one. A rank without
/// operations of threads has none.
///
/// # Errors
/// [`ErrorKind::Plan`] for what kernels cannot do: the message names the operation.
pub(super) fn lower(
    plan: &Plan,
    rank: u32,
    element: ptx::Element,
    reduction: Option<Reduction>,
    averages: &Averages<'_>,
    ways: Ways<'_>,
) -> Result<Option<Lowered>> {
    let records = ways.records;
    let rank_plan = &plan.ranks[rank as usize];
    let control = Control::of(plan, rank_plan)?;
    let mut addresses = Addresses::default();
    let rows = plan.settings.variable_chunks.then(|| rows::of_rank(plan, rank, &control, &mut addresses));
    let rows = rows.transpose()?;
    let reductions = Reductions { element, reduction, averages };
    let mut blocks = steps::of_rank(plan, rank, &control, reductions, &mut addresses, ways)?;
    let laps = laps::of_rank(plan, rank, &control, &mut addresses)?;
    if blocks.is_empty() {
        // Its scratch has to be cleared before 32 bits of flags start over, and only a kernel does that.
        return match laps {
            None => Ok(None),
            Some(_) => Err(refusal::refused(format!(
                "rank {rank} has no operation of threads, but its scratch gets packets; let it read them, or send none"
            ))),
        };
    }
    if let Some(rows) = &rows {
        rows::open_all(&mut blocks, rows, rank_plan, plan.ranks.len(), &addresses)?;
    }
    let trace = records.map(|records| ptx::Trace { address: addresses.index(Address::Trace), records });
    if trace.is_some() {
        blocks.iter_mut().for_each(|steps| steps.push(ptx::Step::Mark { number: mark::END }));
    }
    let (shapes, blocks) = shapes::shared(blocks);
    let kernel = ptx::Kernel {
        symbol: "aqueduct_plan".to_owned(),
        element,
        ranks: u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX),
        threads: plan.settings.threads_per_block,
        addresses: addresses.len(),
        calls: control.calls(),
        double_scratch: plan.settings.double_scratch,
        packets: laps::packet_form(plan),
        laps,
        rows,
        trace,
        follows: false,
        shapes,
        blocks,
    };
    Ok(Some(Lowered { kernel, addresses: addresses.into_list() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, samples};

    fn records(records: Option<u32>) -> Ways<'static> {
        Ways { records, ..Ways::default() }
    }

    #[test]
    fn ranks_without_operations_have_no_kernel() {
        let mut plan = samples::two_shot(2);
        plan.collective.kind = Kind::Custom("one-sided".into());
        let lowered =
            |plan: &Plan| lower(plan, 1, ptx::Element::I32, None, &Averages::of(plan), Ways::default());
        assert!(lowered(&plan).unwrap().is_some());
        plan.ranks[1].blocks.clear();
        assert!(lowered(&plan).unwrap().is_none());
        let mut plan = samples::one_shot(2, true);
        plan.ranks[1].blocks.clear();
        let error = lowered(&plan).unwrap_err().to_string();
        assert!(
            error.contains("rank 1 has no operation of threads") && error.contains("send none"),
            "{error}"
        );
    }

    fn unmarked(steps: Vec<ptx::Step>) -> Vec<ptx::Step> {
        let mut kept = Vec::new();
        for step in steps {
            match step {
                ptx::Step::Mark { .. } => {}
                ptx::Step::Loop { unit, chunks, body } => {
                    kept.push(ptx::Step::Loop { unit, chunks, body: unmarked(body) });
                }
                step => steps::join(&mut kept, step),
            }
        }
        kept
    }

    /// A kernel without a trace has the text of a traced one whose marks and records are taken away: tracing costs others nothing.
    #[test]
    fn a_kernel_without_trace_has_nothing_of_one() {
        let target = aqueduct_ptx::Target::new(90);
        let text = |kernel: &ptx::Kernel| ptx::render(kernel, target).unwrap().text;
        for plan in samples::all() {
            for rank in 0..u32::try_from(plan.ranks.len()).unwrap() {
                let averages = Averages::of(&plan);
                let lowered = |number| {
                    let ways = records(number);
                    lower(&plan, rank, ptx::Element::F32, None, &averages, ways).unwrap()
                };
                let Some((plain, mut traced)) = lowered(None).zip(lowered(Some(64))) else { continue };
                let of_marks = text(&traced.kernel);
                let marks = traced.kernel.shapes.iter().map(|shape| shape.steps.len()).sum::<usize>();
                assert!(
                    of_marks.matches("%globaltimer").count() > plain.kernel.shapes.len(),
                    "{}",
                    plan.name
                );
                for shape in &mut traced.kernel.shapes {
                    shape.steps = unmarked(std::mem::take(&mut shape.steps));
                }
                assert!(marks > traced.kernel.shapes.iter().map(|shape| shape.steps.len()).sum());
                assert_eq!(traced.addresses.pop(), Some(Address::Trace));
                (traced.kernel.trace, traced.kernel.addresses) = (None, traced.kernel.addresses - 1);
                assert_eq!(traced.kernel, plain.kernel, "{}", plan.name);
                let text = text(&plain.kernel);
                assert!(!text.contains("globaltimer") && !text.contains("k_trace"), "{}", plan.name);
            }
        }
    }
}
