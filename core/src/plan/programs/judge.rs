//! Whether a plan is right, by the check and by the simulator against the oracle.

use super::super::simulate::{self, Config};
use super::super::{Op, Plan, check, oracle};

/// Passes the check, and gives the right results in several orders.
#[track_caller]
pub(in super::super) fn right(plan: &Plan) {
    assert_eq!(check::check(plan), [], "{} of {}", plan.name, plan.ranks.len());
    runs(plan);
}

/// Gives the right results in several orders.
#[track_caller]
pub(in super::super) fn runs(plan: &Plan) {
    let plan = &sliced(plan);
    let input = |rank: u64| (0..720).map(|element| element * 64 + rank * 7 + 1).collect();
    let inputs: Vec<Vec<u64>> = (0..plan.ranks.len() as u64).map(input).collect();
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u64::wrapping_add);
    let calls = [inputs.clone(), inputs.clone(), inputs];
    for seed in 0..4 {
        let outputs = simulate::run(plan, &calls, Config { seed, reduction: None }).unwrap();
        for (rank, output) in outputs.iter().flat_map(|outputs| outputs.iter().enumerate()) {
            let expected = &expected[rank];
            assert!(
                expected.as_ref().is_none_or(|expected| expected == output),
                "{} of {}: rank {rank}, seed {seed}",
                plan.name,
                plan.ranks.len()
            );
        }
    }
}

/// The same plan with loops of so small units that a short message has several slices.
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
