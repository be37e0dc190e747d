//! Results against the collectives' definitions, and what becomes of plans that lack synchronisation.

mod types;

use super::super::{Op, Operand, Plan, Reduction, oracle, samples};
use super::{Config, run};

/// Inputs that differ by call, rank and element.
fn inputs(plan: &Plan, call: u32, elements: u32) -> Vec<Vec<u64>> {
    let ranks = u32::try_from(plan.ranks.len()).unwrap();
    let input = |rank: u32| {
        (0..elements).map(|element| u64::from(1 + (call * 7 + rank * 3 + element * 5) % 11)).collect()
    };
    (0..ranks).map(input).collect()
}

/// Runs three calls of a sum and says whether all results are right.
fn right(plan: &Plan, elements: u32, seed: u64) -> bool {
    let calls: Vec<_> = (0..3).map(|call| inputs(plan, call, elements)).collect();
    let outputs = run(plan, &calls, Config { seed, reduction: Some(Reduction::Sum) }).unwrap();
    outputs.iter().zip(&calls).all(|(outputs, inputs)| {
        let expected = oracle::outputs(&plan.collective.kind, inputs, u64::wrapping_add);
        let right = |(expected, output): (&Option<Vec<u64>>, &Vec<u64>)| {
            expected.as_ref().is_none_or(|expected| expected == output)
        };
        expected.iter().zip(outputs).all(right)
    })
}

#[test]
fn samples_give_the_right_results_in_every_order() {
    for plan in samples::all() {
        for seed in 0..20 {
            // Four chunks of 16 bytes or more.
            assert!(right(&plan, 48, seed), "{} {seed}", plan.name);
        }
    }
}

#[test]
fn messages_may_end_within_a_chunk() {
    for plan in [samples::one_shot(4, true), samples::two_shot(3), samples::packet_two_shot()] {
        for elements in (1..20).chain([47, 48, 49, 1023]) {
            assert!(right(&plan, elements, u64::from(elements)), "{} {elements}", plan.name);
        }
    }
    let plan = samples::all().into_iter().find(|plan| plan.name == "reading").unwrap();
    let error = run(&plan, &[vec![vec![1u64; 6]; 2]], Config { seed: 0, reduction: None }).unwrap_err();
    assert!(error.to_string().contains("6 elements do not divide into 4 chunks"), "{error}");
}

#[test]
fn a_missing_sync_gives_a_wrong_result_in_some_order() {
    let mut plan = samples::two_shot(2);
    for rank in 0..2 {
        samples::ops(&mut plan, rank, 0).retain(|operation| operation.op != Op::Sync);
    }
    let wrong = (0..100).filter(|&seed| !right(&plan, 48, seed)).count();
    assert!(wrong > 10, "{wrong}");
}

#[test]
fn a_rank_that_does_not_wait_for_its_peer_to_begin_is_found() {
    let mut plan = samples::two_shot(2);
    for rank in 0..2 {
        samples::ops(&mut plan, rank, 0).drain(..2);
    }
    let wrong = (0..100).filter(|&seed| !right(&plan, 48, seed)).count();
    assert!(wrong > 10, "{wrong}");
}

#[test]
fn a_deadlock_says_who_waits_for_what() {
    let mut plan = samples::two_shot(2);
    let ops = samples::ops(&mut plan, 1, 0);
    let last = ops.iter().rposition(|operation| matches!(operation.op, Op::Signal { .. })).unwrap();
    ops.remove(last);
    let error = run(&plan, &[vec![vec![1u64; 4]; 2]], Config { seed: 0, reduction: None }).unwrap_err();
    let expected = "deadlock: rank 0 block 0 operation 6 waits for a signal of rank 1 (Memory channel 0)";
    assert!(error.to_string().contains(expected), "{error}");
}

/// The last of a rank to go on may be a put that waits for its own flush: its proxy still has something to do.
#[test]
fn a_put_with_flush_is_no_deadlock() {
    let mut plan = samples::all().into_iter().find(|plan| plan.name == "port").unwrap();
    for rank in 0..2 {
        // Only rank 0 puts, both chunks with signal and flush; rank 1 just waits.
        let ops = samples::ops(&mut plan, rank, 0);
        let put = ops.iter().find(|operation| matches!(operation.op, Op::Port(_))).cloned().unwrap();
        ops.retain(|operation| matches!(operation.op, Op::Wait { .. }));
        ops.truncate(1);
        if rank == 0 {
            *ops = vec![put];
        }
    }
    let calls = vec![vec![vec![1u64; 4]; 2]];
    for seed in 0..200 {
        run(&plan, &calls, Config { seed, reduction: None }).unwrap();
    }
}

#[test]
fn a_malformed_plan_or_input_is_refused() {
    let mut plan = samples::two_shot(2);
    let config = Config { seed: 0, reduction: None };
    assert!(run(&plan, &[vec![vec![1u64; 4]]], config).is_err(), "one input for two ranks");
    let uneven = [vec![vec![1u64; 4], vec![1; 3]], vec![vec![1; 3], vec![1; 4]]];
    for call in uneven {
        assert!(run(&plan, &[call], config).is_err(), "a shorter input of one rank");
    }
    assert!(
        run(&plan, &[vec![vec![1u64; 4]; 2], vec![vec![1; 3]; 2]], config).is_err(),
        "another length in a later call"
    );
    samples::change(&mut plan, 0, 0, 0, |moved| {
        moved.targets[0] = Operand::local(super::super::Buffer::Scratch, 9)
    });
    let error = run(&plan, &[vec![vec![1u64; 4]; 2]], config).unwrap_err();
    assert!(error.to_string().contains("bounds: rank 0 block 0 operation 3"), "{error}");
    let mut plan = samples::one_shot(2, true);
    plan.ranks[0].scratch_chunks = u32::MAX;
    let error = run(&plan, &[vec![vec![1u64; 4]; 2]], config).unwrap_err();
    assert!(error.to_string().contains("simulate a smaller message"), "{error}");
}
