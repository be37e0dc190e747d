//! One reduction in all of a collective.

use super::collective::Kind;
use super::finding::{Finding, FindingKind};
use super::ir::{Plan, Reduction};

/// The finding that moves of one collective reduce differently: which elements meet in which order would decide the result.
pub(super) fn mixed(plan: &Plan) -> Option<Finding> {
    if !matches!(plan.collective.kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. }) {
        return None;
    }
    let mut reductions = plan.reductions();
    let first: Reduction = reductions.next()?;
    let other = reductions.find(|&other| other != first)?;
    let message = format!(
        "some operations reduce by {} and some by {}; a collective has one reduction",
        name(first),
        name(other)
    );
    Some(Finding::new(FindingKind::Operands, None, message))
}

fn name(reduction: Reduction) -> String {
    format!("{reduction:?}").to_lowercase()
}
