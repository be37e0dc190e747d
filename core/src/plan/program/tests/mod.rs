//! Programs are recorded as their authors meant them, and mistakes are told where they were made.

mod concepts;
mod mistakes;

use super::super::check::{FindingKind, check};
use super::super::oracle;
use super::super::simulate::{self, Config};
use super::super::{Op, Operation, Plan};

/// Passes the check, and gives the right result in several orders.
#[track_caller]
fn right(plan: &Plan) {
    assert_eq!(check(plan), [], "{}", plan.name);
    let input = |rank: u64| (0..960).map(|element| element * 64 + rank * 7 + 1).collect();
    let inputs: Vec<Vec<u64>> = (0..plan.ranks.len() as u64).map(input).collect();
    let plan = &sliced(plan);
    let calls = [inputs.clone(), inputs.clone(), inputs.clone()];
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u64::wrapping_add);
    for seed in 0..8 {
        let outputs = simulate::run(plan, &calls, Config { seed, reduction: None }).unwrap();
        for (expected, output) in outputs.iter().flat_map(|output| expected.iter().zip(output)) {
            assert!(expected.as_ref().is_none_or(|expected| expected == output), "{} {seed}", plan.name);
        }
    }
}

/// The same plan with loops of so small units that the simulator's short messages have several slices.
fn sliced(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for operation in blocks.flat_map(|block| &mut block.ops) {
        if let Op::Loop(repeated) = &mut operation.op {
            repeated.unit = 512;
        }
    }
    plan
}

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
