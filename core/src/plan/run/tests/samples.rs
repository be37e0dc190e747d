//! The samples as kernels.

use super::super::super::check::check;
use super::super::super::{Form, Op, Plan, Protocol, Reduction, oracle, samples};
use super::{Called, Rig, alone, close, ranks};

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
