//! Every element type and reduction, against the definition.

use super::super::super::samples::{self, elements};
use super::super::super::{Element, Plan, Reduction, programs};
use super::super::{Bf16, Config, Element as _, F8E4m3, F16, run_bytes};

/// Samples, and plans that pass on sums of some ranks.
fn plans() -> Vec<Plan> {
    let compiled = |name: &str| {
        let program = programs::find("all-reduce", Some(name)).unwrap();
        program.program(4, &programs::Choices::default()).unwrap().compile().unwrap()
    };
    samples::all().into_iter().chain(["ring", "recursive-halving"].map(compiled)).collect()
}

#[test]
fn results_are_those_of_the_definition() {
    for plan in plans() {
        let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(1) as usize;
        let reduces = plan.reductions().next().is_some();
        for element in Element::ALL {
            let vector = 16 / element.bytes();
            let counts = match plan.collective.kind.divides_freely() {
                true => [1, chunks * vector - 1, chunks * vector + 3],
                false => [1, vector - 1, vector + 3].map(|count| chunks * count),
            };
            for (seed, reduction) in (0..).zip(if reduces { &Reduction::ALL[..] } else { &[Reduction::Sum] })
            {
                let count = counts[seed as usize % 3];
                let inputs: Vec<Vec<u8>> = (0..)
                    .zip(&plan.ranks)
                    .map(|(rank, _)| elements::exact(element, 1, rank, count))
                    .collect();
                let expected = elements::outputs(&plan.collective.kind, element, *reduction, &inputs);
                let config = Config { seed, reduction: Some(*reduction) };
                let seen = run_bytes(&plan, element, &[inputs], config).unwrap().remove(0);
                for (seen, expected) in seen.iter().zip(expected) {
                    assert!(
                        expected.as_ref().is_none_or(|expected| expected == seen),
                        "{} of {count} {element:?}, {reduction:?}: {seen:x?} instead of {expected:x?}",
                        plan.name
                    );
                }
            }
        }
    }
}

/// Sums of types of 16 bits are rounded once, and averages only where the sum is complete.
#[test]
fn results_are_rounded_once() {
    // 2048 + 1 + 1 is 2050 in f32; binary16 has no 2049 between.
    let sources = [0x6800, 0x3c00, 0x3c00].map(F16);
    assert_eq!(F16::reduce(&sources, Reduction::Sum, 1), F16(0x6801));
    // Their average is 683.3, and that of the rounded sum 682.7.
    assert_eq!(F16::reduce(&sources, Reduction::Avg, 3), F16(0x6157));
    // A third is rounded to the type, not to one in between.
    assert_eq!(Bf16::reduce(&[Bf16(0x3f80), Bf16(0)], Reduction::Avg, 3), Bf16(0x3eab));
    // Only the result saturates, not the sums before it: 448 + 448 - 448.
    let sources = [0x7e, 0x7e, 0xfe].map(F8E4m3);
    assert_eq!(F8E4m3::reduce(&sources, Reduction::Sum, 1), F8E4m3(0x7e));
    assert_eq!(F8E4m3::reduce(&sources[..2], Reduction::Sum, 1), F8E4m3(0x7e));
}

#[test]
fn integers_wrap_and_their_averages_round_towards_zero() {
    assert_eq!(i8::reduce(&[100, 100, 100], Reduction::Sum, 1), 44);
    assert_eq!(i8::reduce(&[-3, -4], Reduction::Avg, 2), -3);
    assert_eq!(i8::reduce(&[100, 100], Reduction::Avg, 2), -28);
    assert_eq!(i8::reduce(&[-127, -1], Reduction::Avg, 128), -1);
    assert_eq!(u8::reduce(&[250, 10], Reduction::Avg, 300), 0);
    assert_eq!(u64::reduce(&[u64::MAX, 0], Reduction::Avg, 2), u64::MAX / 2);
    assert_eq!(i64::reduce(&[i64::MIN, 3], Reduction::Prod, 1), i64::MIN);
}

#[test]
fn a_nan_loses_and_zeros_have_an_order() {
    let of = |reduction, sources: [f32; 2]| f32::reduce(&sources, reduction, 1).to_bits();
    for (one, other) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!(of(Reduction::Min, [one, other]), (-0.0_f32).to_bits());
        assert_eq!(of(Reduction::Max, [one, other]), 0.0_f32.to_bits());
    }
    for reduction in [Reduction::Min, Reduction::Max] {
        for sources in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            assert_eq!(of(reduction, sources), 1.0_f32.to_bits());
        }
        assert!(f32::reduce(&[f32::NAN; 2], reduction, 1).is_nan());
    }
}

#[test]
fn bytes_that_are_no_elements_are_refused() {
    let plan = samples::one_shot(2, true);
    let config = Config { seed: 0, reduction: None };
    let error = run_bytes(&plan, Element::F16, &[vec![vec![0; 3]; 2]], config).unwrap_err();
    assert!(error.to_string().contains("whole elements of f16"), "{error}");
}
