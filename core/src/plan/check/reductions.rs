//! One reduction in all of a collective.

use super::collective::Kind;
use super::finding::{Finding, FindingKind};
use super::ir::{Op, Plan, Reduction};
use super::position::Position;

/// The finding that moves of one collective reduce differently: which elements meet in which order would decide the result.
pub(super) fn mixed(plan: &Plan) -> Option<Finding> {
    if !matches!(plan.collective.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. }) {
        return None;
    }
    let mut reductions = plan.reductions();
    let first: Reduction = reductions.next()?;
    let other = reductions.find(|&other| other != first)?;
    let message = format!(
        "reduces by {}, and other operations by {}; a collective has one reduction",
        name(other),
        name(first)
    );
    let differs = |op: &Op| matches!(op, Op::Move(moved) if moved.reduction == Some(other));
    let position = (0..).zip(&plan.ranks).find_map(|(rank, _)| Position::first(plan, rank, differs));
    Some(Finding::new(FindingKind::Operands, position, message))
}

fn name(reduction: Reduction) -> String {
    format!("{reduction:?}").to_lowercase()
}
