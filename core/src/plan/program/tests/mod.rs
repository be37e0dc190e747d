//! Programs are recorded as their authors meant them, and mistakes are told where they were made.

pub(in crate::plan) mod concepts;
mod copy_engines;
mod mistakes;
mod words;

use super::super::check::{FindingKind, check};
use super::super::{Op, Operation, Plan};

/// The findings' kinds, each once, and the findings as text.
fn diagnosis(plan: &Plan) -> (Vec<FindingKind>, String) {
    let findings = check(plan);
    let mut kinds: Vec<FindingKind> = Vec::new();
    for finding in &findings {
        if !kinds.contains(&finding.kind) {
            kinds.push(finding.kind);
        }
    }
    (kinds, findings.iter().map(|finding| format!("{finding}\n")).collect())
}

/// The operations of a block.
fn ops(plan: &Plan, rank: usize, block: usize) -> Vec<&Op> {
    plan.ranks[rank].blocks[block].ops.iter().map(op).collect()
}

fn op(operation: &Operation) -> &Op {
    &operation.op
}
