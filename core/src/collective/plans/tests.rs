//! The plans are right, by the check and by the simulator.

use super::{Shape, barrier, copied, in_place_differs, packets, through_scratch, variable, zero_copy};
use crate::plan::{Kind, Plan, check, oracle, simulate};

fn kinds(ranks: u32) -> Vec<Kind> {
    let mut kinds =
        vec![Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll, Kind::SendRecv];
    // A root that is neither the first nor the last rank differs in its neighbours.
    let mut roots = vec![0, ranks / 2, ranks - 1];
    roots.dedup();
    for root in roots {
        kinds.extend([Kind::Broadcast { root }, Kind::Reduce { root }]);
        kinds.extend([Kind::Gather { root }, Kind::Scatter { root }]);
    }
    kinds
}

fn all(ranks: u32, blocks: u32) -> Vec<Plan> {
    let mut plans = vec![barrier(ranks).unwrap()];
    for kind in kinds(ranks) {
        for in_place in [false, true].into_iter().filter(|&one| !one || in_place_differs(&kind)) {
            let shape = Shape { ranks, in_place, blocks, threads: 128, copy_engines: false, own: false };
            let made = [
                packets(&kind, shape),
                through_scratch(&kind, shape),
                zero_copy(&kind, shape),
                copied(&kind, shape),
            ];
            plans.extend(made.into_iter().flatten().map(Result::unwrap));
            plans.extend(variable(&kind, shape).filter(|_| !in_place).map(Result::unwrap));
        }
    }
    plans
}

#[track_caller]
fn checked(plan: &Plan) {
    assert_eq!(check::check(plan), [], "{} of {} ranks", plan.name, plan.ranks.len());
}

/// Three calls in several orders give what the collective's definition says.
fn simulated(plan: &Plan) {
    // Of either buffer each chunk has some elements.
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks.max(rank.output_chunks)).max();
    let count = 5 * u64::from(chunks.unwrap_or(1) * plan.ranks.len() as u32);
    let input = |rank: u64| (0..count).map(|element| element * 64 + rank * 7 + 1).collect();
    let inputs: Vec<Vec<u64>> = (0..plan.ranks.len() as u64).map(input).collect();
    let expected = oracle::outputs(&plan.collective.kind, &inputs, u64::wrapping_add);
    let calls = [inputs.clone(), inputs.clone(), inputs];
    for seed in 0..3 {
        let outputs = simulate::run(plan, &calls, simulate::Config { seed, reduction: None }).unwrap();
        for (rank, output) in outputs.iter().flat_map(|outputs| outputs.iter().enumerate()) {
            let what = format!("{} of {}: rank {rank}, seed {seed}", plan.name, plan.ranks.len());
            assert!(expected[rank].as_ref().is_none_or(|expected| expected == output), "{what}");
        }
    }
}

#[test]
fn plans_are_right_for_every_number_of_ranks() {
    for ranks in 1..=8 {
        for plan in all(ranks, 2) {
            checked(&plan);
            if !matches!(plan.collective.kind, Kind::Custom(_)) {
                simulated(&plan);
            }
        }
    }
}

#[test]
fn plans_of_one_block_and_of_many_are_right() {
    for plan in all(3, 1).iter().chain(&all(4, 7)) {
        checked(plan);
    }
}
