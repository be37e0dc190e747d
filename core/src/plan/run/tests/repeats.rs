//! Plans whose blocks do the same again and again, as around a ring.

use aqueduct_ptx::plan as ptx;

use super::super::super::lower::{Averages, Ways, lower};
use super::super::super::programs::{Choices, find};
use super::super::super::{Plan, Reduction};
use super::{Rig, alone, close, ranks};

fn ring(collective: &str, ranks: u32, instances: u32) -> Plan {
    let program = find(collective, Some("ring")).unwrap().program(ranks, &Choices::default()).unwrap();
    program.instances(instances).compile().unwrap()
}

/// The description of a rank's kernel.
fn kernel(plan: &Plan, rank: u32) -> ptx::Kernel {
    let sum = Some(Reduction::Sum);
    lower(plan, rank, ptx::Element::I32, sum, &Averages::of(plan), Ways::default()).unwrap().unwrap().kernel
}

fn repeats(kernel: &ptx::Kernel) -> usize {
    let steps = kernel.shapes.iter().flat_map(|shape| &shape.steps);
    steps.filter(|step| matches!(step, ptx::Step::Repeat { .. })).count()
}

#[test]
fn rings_run_as_simulated() {
    let _alone = alone();
    for (plan, number) in
        [(ring("all-reduce", 10, 1), 2), (ring("all-reduce", 11, 2), 2), (ring("all-gather", 12, 1), 1)]
    {
        assert_eq!(repeats(&kernel(&plan, 3)), number, "{} repetitions", plan.name);
        let count = plan.ranks.len();
        let comms = ranks(count);
        let mut rig = Rig::new(&comms, &plan, 1200 * count, &[Some(Reduction::Sum)]).unwrap();
        for elements in [12 * count, 1000 * count, 4 * count] {
            rig.as_simulated(elements, Some(Reduction::Sum));
        }
        drop(rig);
        close(&comms);
    }
}

/// The numbers of a turn take three lines of the table at most.
#[test]
fn the_text_of_a_ring_hardly_grows_with_its_ranks() {
    let lines = |ranks| {
        let kernel = kernel(&ring("all-reduce", ranks, 1), 1);
        ptx::render(&kernel, aqueduct_ptx::Target::new(90)).unwrap().text.lines().count()
    };
    let (few, many) = (lines(16), lines(128));
    assert!(many - few <= 3 * 2 * (128 - 16), "{few} lines of 16 ranks, {many} of 128");
}
