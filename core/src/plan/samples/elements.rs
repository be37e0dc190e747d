//! Data of every element type, and collectives of it by their definitions. Shares nothing with the simulator or the kernels.

use std::cmp::Ordering;
use std::sync::OnceLock;

use aqueduct_ptx::oracle::half::{bf16_from_f32, f16_from_f32, f16_to_f32};

use super::super::{Element, Kind, Reduction, oracle};

/// Bits that look random: among floating-point numbers there are NaN, infinities and subnormal ones.
pub(in crate::plan) fn noise(element: Element, call: u32, rank: u32, count: usize) -> Vec<u8> {
    let mut state = (u64::from(call) << 32 | u64::from(rank) << 8 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..count * element.bytes()).map(|_| byte()).collect()
}

/// Integers of any bits, and floating-point numbers of which sums and products over four ranks are exact in every type, so that the
/// order of ranks does not matter.
pub(in crate::plan) fn exact(element: Element, call: u32, rank: u32, count: usize) -> Vec<u8> {
    if integer(element) {
        return noise(element, call, rank, count);
    }
    let draws = noise(Element::U8, call, rank, count);
    let value = |draw: u8| [1.0, -1.0, 2.0, -2.0][usize::from(draw % 4)];
    draws.into_iter().flat_map(|draw| float_bytes(element, value(draw))).collect()
}

/// The expected output of each rank, `None` where nothing is promised. The inputs are [`exact`].
pub(in crate::plan) fn outputs(
    kind: &Kind,
    element: Element,
    reduction: Reduction,
    inputs: &[Vec<u8>],
) -> Vec<Option<Vec<u8>>> {
    let size = element.bytes();
    let reduces = matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. });
    let average = reduces && reduction == Reduction::Avg;
    let ranks = inputs.len() as u8;
    if integer(element) {
        let signed = matches!(element, Element::I8 | Element::I32 | Element::I64);
        let value = |bytes: &[u8]| {
            let fill = if signed && bytes[size - 1] >= 0x80 { 0xff } else { 0 };
            i128::from_le_bytes(std::array::from_fn(|at| *bytes.get(at).unwrap_or(&fill)))
        };
        let wrapped = |value: i128| value.to_le_bytes()[..size].to_vec();
        let combine = |a: i128, b: i128| match reduction {
            Reduction::Sum | Reduction::Avg => a.wrapping_add(b),
            Reduction::Prod => a.wrapping_mul(b),
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
        };
        let divided = |sum: i128| if average { value(&wrapped(sum)) / i128::from(ranks) } else { sum };
        let outputs = oracle::outputs(kind, &split(inputs, size, value), combine);
        return joined(outputs, |sum| wrapped(divided(sum)));
    }
    let combine = |a: f64, b: f64| match (reduction, a.partial_cmp(&b).expect("numbers")) {
        (Reduction::Sum | Reduction::Avg, _) => a + b,
        (Reduction::Prod, _) => a * b,
        (Reduction::Min, Ordering::Greater) | (Reduction::Max, Ordering::Less) => b,
        (Reduction::Min | Reduction::Max, _) => a,
    };
    let divided = |sum: f64| if average { sum / f64::from(ranks) } else { sum };
    let outputs = oracle::outputs(kind, &split(inputs, size, |bytes| float(element, bytes)), combine);
    joined(outputs, |sum| float_bytes(element, divided(sum)))
}

fn split<T>(inputs: &[Vec<u8>], size: usize, value: impl Fn(&[u8]) -> T) -> Vec<Vec<T>> {
    inputs.iter().map(|input| input.chunks_exact(size).map(&value).collect()).collect()
}

fn joined<T>(outputs: Vec<Option<Vec<T>>>, bytes: impl Fn(T) -> Vec<u8>) -> Vec<Option<Vec<u8>>> {
    let all = |values: Vec<T>| values.into_iter().flat_map(&bytes).collect();
    outputs.into_iter().map(|output| output.map(all)).collect()
}

/// Whether the bytes are the same elements; all NaN count as one.
pub(in crate::plan) fn same(element: Element, left: &[u8], right: &[u8]) -> bool {
    let nan = |bytes: &[u8]| !integer(element) && float(element, bytes).is_nan();
    let elements = |bytes: &[u8]| bytes.chunks_exact(element.bytes()).map(<[u8]>::to_vec).collect::<Vec<_>>();
    left.len() == right.len()
        && elements(left).iter().zip(&elements(right)).all(|(a, b)| a == b || nan(a) && nan(b))
}

fn integer(element: Element) -> bool {
    use Element::{I8, I32, I64, U8, U32, U64};
    matches!(element, I8 | U8 | I32 | U32 | I64 | U64)
}

fn float(element: Element, bytes: &[u8]) -> f64 {
    let bits = bytes.iter().rfold(0_u64, |bits, &byte| bits << 8 | u64::from(byte));
    match element {
        Element::F64 => f64::from_bits(bits),
        Element::F32 => f32::from_bits(bits as u32).into(),
        Element::F16 => f16_to_f32(bits as u16).into(),
        Element::Bf16 => f32::from_bits((bits as u32) << 16).into(),
        // The upper half of a binary16.
        Element::F8E5m2 => f16_to_f32((bits as u16) << 8).into(),
        _ if bits & 0x7f == 0x7f => f64::NAN,
        // Beside the sign, a binary16 of other bias without its lower fraction bits.
        _ => f64::from(f16_to_f32(((bits & 0x80) << 8 | (bits & 0x7f) << 7) as u16)) * 256.0,
    }
}

fn float_bytes(element: Element, value: f64) -> Vec<u8> {
    match element {
        Element::F64 => value.to_le_bytes().to_vec(),
        Element::F32 => (value as f32).to_le_bytes().to_vec(),
        Element::F16 => f16_from_f32(value as f32).to_le_bytes().to_vec(),
        Element::Bf16 => bf16_from_f32(value as f32).to_le_bytes().to_vec(),
        _ => vec![nearest(element, value)],
    }
}

/// The FP8 code of which the value is nearest, the even one of two.
fn nearest(element: Element, value: f64) -> u8 {
    static VALUES: [OnceLock<Vec<f64>>; 2] = [OnceLock::new(), OnceLock::new()];
    let (table, largest) = if element == Element::F8E4m3 { (0, 0x7e) } else { (1, 0x7b) };
    let values =
        VALUES[table].get_or_init(|| (0..=largest).map(|code| float(element, &[code])).collect::<Vec<_>>());
    let distance = |code: u8| (values[usize::from(code)] - value.abs()).abs();
    let nearer = |a: &u8, b: &u8| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2)));
    (0..=largest).min_by(nearer).unwrap_or(0) | if value.is_sign_negative() { 0x80 } else { 0 }
}
