//! Every element type and reduction as kernels: against the simulator, and against the definition.

use super::super::super::samples::{self, copies, elements};
use super::super::super::{Element, Plan, Protocol, Reduction, programs};
use super::samples::by_lines;
use super::{ExecutorConfig, Rig, alone, close, ranks};

/// Vectors of an operation that takes all threads of a block.
const MANY: usize = 520;

/// Plans of each way that data are reduced: LL16 and LL128 packets, own and peers' memory, switches, copy engines, and sums of some
/// ranks that are passed on.
fn plans() -> Vec<Plan> {
    let named = |name: &str| samples::all().into_iter().find(|plan| plan.name == name).unwrap();
    let compiled = |collective: &str, name: &str| {
        let program = programs::find(collective, Some(name)).unwrap();
        program.program(3, &programs::Choices::default()).unwrap().compile().unwrap()
    };
    vec![
        samples::one_shot(2, true),
        by_lines(&samples::one_shot(2, true)).unwrap(),
        samples::two_shot(3),
        samples::packet_two_shot(),
        named("reading"),
        named("switch"),
        copies::all_reduce(2),
        compiled("all-reduce", "ring"),
        compiled("reduce", "direct"),
    ]
}

/// Elements of messages: ends of vectors, of chunks and of LL128 units, and an operation for all threads of a block.
fn counts(plan: &Plan, element: Element, reduction: Reduction) -> Vec<usize> {
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(1) as usize;
    let vector = 16 / element.bytes();
    let freely = plan.collective.kind.divides_freely();
    let mut counts = match freely {
        true => vec![1, 3, chunks * vector - 1, chunks * vector + 1, 5 * chunks * vector + 1],
        false => vec![1, 3, vector - 1, vector + 1, 5 * vector + 1],
    };
    if plan.settings.protocol == Protocol::Ll128 {
        counts.extend([60 * vector - 1, 60 * vector + 1]);
    }
    if reduction == Reduction::Sum {
        counts.extend([0, MANY * vector + 1]);
    }
    counts.into_iter().map(|count| if freely { count } else { count * chunks }).collect()
}

/// Each type and reduction goes through two plans, one after the other through all.
#[test]
fn types_and_reductions_run_as_simulated_and_defined() {
    run_as_simulated_and_defined(2);
}

#[test]
#[ignore = "takes half a minute; run it with ci/deep.sh programs"]
fn types_and_reductions_run_through_every_plan() {
    run_as_simulated_and_defined(plans().len());
}

/// Each type and reduction goes through so many of the plans.
fn run_as_simulated_and_defined(count: usize) {
    let _alone = alone();
    let plans = plans();
    for (nth, plan) in plans.iter().enumerate() {
        let mut variants = Vec::new();
        for (at, element) in Element::ALL.into_iter().enumerate() {
            let taken =
                |reduction: usize| (0..count).any(|more| (at + reduction + 4 * more) % plans.len() == nth);
            let reductions = (0..).zip(Reduction::ALL).filter(|(reduction, _)| taken(*reduction));
            variants.extend(reductions.map(|(_, reduction)| (element, Some(reduction))));
        }
        let comms = ranks(plan.ranks.len());
        let config = |_| ExecutorConfig::default();
        let mut rig = Rig::of_variants(&comms, plan, MANY * 16 * 4 + 4, &variants, config).unwrap();
        for (element, reduction) in variants {
            rig.element = element;
            for (turn, count) in counts(plan, element, reduction.unwrap()).into_iter().enumerate() {
                if turn % 2 == 1 {
                    rig.data = elements::noise;
                    rig.as_simulated(count, reduction);
                    continue;
                }
                rig.data = elements::exact;
                let called = rig.compared(count, reduction);
                let kind = &plan.collective.kind;
                let expected = elements::outputs(kind, element, reduction.unwrap(), &called.inputs);
                for (rank, (seen, expected)) in called.outputs.iter().zip(&expected).enumerate() {
                    assert!(
                        expected.as_ref().is_none_or(|expected| expected == seen),
                        "{} of {count} {element:?}, {reduction:?}, rank {rank}: {seen:x?} instead of {expected:x?}",
                        plan.name
                    );
                }
            }
        }
        drop(rig);
        close(&comms);
    }
}
