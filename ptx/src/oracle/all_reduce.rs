//! The result that every all-reduce kernel must compute, to the bit.

use super::half::{bf16_from_f32, f16_from_f32, f16_to_f32};
use crate::collective::{ElementType, ReduceOp};

/// The result of an all-reduce over `inputs` (bytes of rank 0, 1, ...; equal lengths, whole elements), which every
/// rank receives.
///
/// # Panics
/// If there is no input, or the lengths differ or are no multiple of the element.
pub fn all_reduce(ty: ElementType, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    let element = ty.bytes();
    let bytes = inputs[0].len();
    assert!(bytes.is_multiple_of(element) && inputs.iter().all(|input| input.len() == bytes));
    let operands = |at: usize| inputs.iter().map(move |input| &input[at..at + element]);
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let float = |at, load: &dyn Fn(&[u8]) -> f32| {
        operands(at).map(load).reduce(|acc, x| float_step(op, acc, x)).expect("an input")
    };
    let mut out = Vec::with_capacity(bytes);
    for at in (0..bytes).step_by(element) {
        match ty {
            ElementType::F32 => out.extend(float(at, &|b| f32::from_bits(word(b))).to_bits().to_le_bytes()),
            ElementType::F16 => out.extend(f16_from_f32(float(at, &|b| f16_to_f32(half(b)))).to_le_bytes()),
            ElementType::Bf16 => {
                let sum = float(at, &|b| f32::from_bits(u32::from(half(b)) << 16));
                out.extend(bf16_from_f32(sum).to_le_bytes());
            }
            ElementType::I32 => {
                let steps = operands(at).map(|b| word(b).cast_signed());
                let total = steps.reduce(|acc, x| int_step(op, acc, x)).expect("an input");
                out.extend(total.to_le_bytes());
            }
        }
    }
    out
}

/// One step as PTX does it: every NaN result is the canonical one, and -0 is below +0.
fn float_step(op: ReduceOp, a: f32, b: f32) -> f32 {
    let ordered = |least: bool| match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if (a.total_cmp(&b).is_lt()) == least => a,
        _ => b,
    };
    let result = match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Min => ordered(true),
        ReduceOp::Max => ordered(false),
    };
    if result.is_nan() { f32::from_bits(0x7fff_ffff) } else { result }
}

fn int_step(op: ReduceOp, a: i32, b: i32) -> i32 {
    match op {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn the_order_is_that_of_the_ranks() {
        let inputs: Vec<_> = [1e30f32, -1e30, 1.0].iter().map(|&v| f32s(&[v])).collect();
        let forward: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let backward: Vec<&[u8]> = inputs.iter().rev().map(Vec::as_slice).collect();
        assert_eq!(all_reduce(ElementType::F32, ReduceOp::Sum, &forward), f32s(&[1.0]));
        assert_eq!(all_reduce(ElementType::F32, ReduceOp::Sum, &backward), f32s(&[0.0]));
    }

    #[test]
    fn numbers_win_over_nan_and_zeros_have_an_order() {
        let (a, b) = (f32s(&[f32::NAN, 0.0, -3.0]), f32s(&[2.0, -0.0, 5.0]));
        assert_eq!(all_reduce(ElementType::F32, ReduceOp::Min, &[&a, &b]), f32s(&[2.0, -0.0, -3.0]));
        assert_eq!(all_reduce(ElementType::F32, ReduceOp::Max, &[&a, &b]), f32s(&[2.0, 0.0, 5.0]));
    }

    #[test]
    fn half_sums_round_once() {
        // 2048 + 1 + 1 in binary16 steps stays 2048; rounded once it is 2050.
        let inputs = [2048.0f32, 1.0, 1.0].map(|v| f16_from_f32(v).to_le_bytes());
        let inputs: Vec<&[u8]> = inputs.iter().map(<[u8; 2]>::as_slice).collect();
        let sum = all_reduce(ElementType::F16, ReduceOp::Sum, &inputs);
        assert_eq!(f16_to_f32(u16::from_le_bytes([sum[0], sum[1]])), 2050.0);
    }
}
