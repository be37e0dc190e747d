//! The samples as kernels.

use super::super::super::{Reduction, oracle, samples, simulate};
use super::{Called, Rig, alone, close, ranks};

#[test]
fn samples_run_as_their_collectives_say() {
    let _alone = alone();
    for plan in samples::all() {
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
            let combine = |a: i32, b: i32| simulate::Element::combine(a, b, Reduction::Sum);
            let expected = oracle::outputs(&plan.collective.kind, &inputs, combine);
            for (rank, expected) in expected.iter().enumerate() {
                let Some(expected) = expected else { continue };
                assert_eq!(&outputs[rank], expected, "{} of {elements}, rank {rank}", plan.name);
            }
        }
        drop(rig);
        close(&comms);
    }
}
