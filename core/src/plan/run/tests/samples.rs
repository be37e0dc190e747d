//! The samples as kernels.

use super::super::super::check::check;
use super::super::super::{
    Block, Buffer, Collective, Form, Kind, Move, Op, Operand, Plan, Protocol, RankPlan, Reduction, Settings,
    Share, oracle, samples,
};
use super::{Called, Rig, alone, close, ranks};
use crate::plan::program::tests::concepts;

/// The plan with LL128 packets, if it has packets and may have these.
pub(super) fn by_lines(plan: &Plan) -> Option<Plan> {
    let packets =
        |op: &Op| matches!(op, Op::Move(moved) if moved.targets.iter().any(|to| to.form == Form::Packets));
    let mut lines = plan.clone();
    lines.settings.protocol = Protocol::Ll128;
    (plan.ranks.iter().any(|rank| rank.all_ops().any(packets)) && check(&lines).is_empty()).then_some(lines)
}

#[test]
fn samples_run_as_their_collectives_say() {
    let _alone = alone();
    let lines: Vec<Plan> = samples::all().iter().filter_map(by_lines).collect();
    assert!(lines.len() >= 4, "{} samples", lines.len());
    for plan in samples::all().into_iter().chain(lines) {
        // Every sample divides 96; sizes grow and shrink, so that chunks of scratch would overlap if they moved. The longest one
        // is for all threads of a block, the others for few.
        let sizes: &[usize] = if plan.collective.kind.divides_freely() {
            &[96, 7, 1000, 16_320, 1, 960, 33]
        } else {
            &[96, 12, 1200, 16_320, 24, 960]
        };
        let comms = ranks(plan.ranks.len());
        let mut rig = Rig::new(&comms, &plan, 16_320, &[Some(Reduction::Sum)]).unwrap();
        for &elements in sizes {
            let Called { inputs, outputs, .. } = rig.call(elements, Some(Reduction::Sum));
            let expected = oracle::outputs(&plan.collective.kind, &inputs, i32::wrapping_add);
            for (rank, expected) in expected.iter().enumerate() {
                let Some(expected) = expected else { continue };
                assert_eq!(&outputs[rank], expected, "{} of {elements}, rank {rank}", plan.name);
            }
        }
        drop(rig);
        close(&comms);
    }
}

/// The examples of MSCCL++'s document of concepts.
#[test]
fn completed_examples_run_as_they_are_simulated() {
    let _alone = alone();
    for plan in concepts::completed() {
        let comms = ranks(plan.ranks.len());
        let reduction = plan.reductions().next();
        let mut rig = Rig::new(&comms, &plan, 4800, &[reduction]).unwrap();
        [96, 4800, 192].into_iter().for_each(|elements| rig.as_simulated(elements, reduction));
        drop(rig);
        close(&comms);
    }
}

/// Half of a copy, whose end is another one where kernels have LL128 packets: between two of their units.
#[test]
fn shares_end_where_they_are_simulated() {
    let _alone = alone();
    let comms = ranks(1);
    for protocol in [Protocol::Simple, Protocol::Ll128] {
        let half = Move {
            sources: vec![Operand::local(Buffer::Input, 0)],
            targets: vec![Operand::local(Buffer::Output, 0)],
            count: 1,
            reduction: None,
            share: Some(Share { member: 0, of: 2 }),
        };
        let rank = RankPlan {
            input_chunks: 1,
            output_chunks: 1,
            blocks: vec![Block::new(vec![Op::Move(Box::new(half)).at(0)])],
            ..RankPlan::default()
        };
        let plan = Plan {
            name: "half".into(),
            collective: Collective { kind: Kind::Custom("half".into()), in_place: false },
            settings: Settings { protocol, ..Settings::default() },
            ranks: vec![rank],
        };
        let mut rig = Rig::new(&comms, &plan, 1200, &[None]).unwrap();
        for elements in [4, 96, 500, 1000, 1200] {
            rig.as_simulated(elements, None);
        }
    }
    close(&comms);
}
