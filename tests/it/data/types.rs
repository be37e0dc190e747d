//! Every element type: data, and what collectives give of it by their definitions.

use std::sync::LazyLock;

use aqueduct::plan::{Element, Kind, Reduction, oracle};
use half::{bf16, f16};

use super::mix;

/// All types with all reductions.
pub(crate) fn all_variants() -> Vec<(Element, Reduction)> {
    Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))).collect()
}

/// A quarter of them for so many ranks: groups of one to four have all together.
pub(crate) fn variants(ranks: u32) -> Vec<(Element, Reduction)> {
    all_variants().into_iter().skip(ranks as usize % 4).step_by(4).collect()
}

/// `count` elements of `ty` as bytes: reals of both signs with fractions, integers over the whole range.
pub(crate) fn elements(ty: Element, rank: u32, iteration: u32, count: usize) -> Vec<u8> {
    let word = |index| mix(rank, iteration, index);
    let real = |index| (word(index) >> 8) as f32 / (1u32 << 20) as f32 - 8.0;
    let wide = |index| u64::from(word(2 * index)) << 32 | u64::from(word(2 * index + 1));
    // Six exponents up to that of 4.
    let code = |index, least: u8, fraction: u32| {
        let [draw, exponent, ..] = word(index).to_le_bytes();
        draw & 0x80 | (least + exponent % 6) << fraction | draw & ((1 << fraction) - 1)
    };
    let indices = 0..count;
    match ty {
        Element::F32 => indices.flat_map(|i| real(i).to_le_bytes()).collect(),
        Element::F64 => {
            let real = |i| (wide(i) >> 11) as f64 / (1u64 << 49) as f64 - 8.0;
            indices.flat_map(|i| real(i).to_le_bytes()).collect()
        }
        Element::F16 => indices.flat_map(|i| f16::from_f32(real(i)).to_le_bytes()).collect(),
        Element::Bf16 => indices.flat_map(|i| bf16::from_f32(real(i)).to_le_bytes()).collect(),
        Element::F8E4m3 => indices.map(|i| code(i, 4, 3)).collect(),
        Element::F8E5m2 => indices.map(|i| code(i, 12, 2)).collect(),
        Element::I8 | Element::U8 => indices.map(|i| word(i) as u8).collect(),
        Element::I32 | Element::U32 => indices.flat_map(|i| word(i).to_le_bytes()).collect(),
        Element::I64 | Element::U64 => indices.flat_map(|i| wide(i).to_le_bytes()).collect(),
    }
}

/// The expected output of each rank, `None` where nothing is promised. Reals of up to 32 bits are combined as f32 in the order of ranks
/// and rounded once.
pub(crate) fn outputs(kind: &Kind, ty: Element, op: Reduction, inputs: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let (ranks, average) = (inputs.len() as u16, op == Reduction::Avg);
    let step = |a: f32, b: f32| match op {
        Reduction::Sum | Reduction::Avg => a + b,
        Reduction::Prod => a * b,
        Reduction::Min => a.min(b),
        Reduction::Max => a.max(b),
    };
    let end = |result: f32| if average { result / f32::from(ranks) } else { result };
    macro_rules! integers {
        ($type:ty) => {{
            let step = |a: $type, b: $type| match op {
                Reduction::Sum | Reduction::Avg => a.wrapping_add(b),
                Reduction::Prod => a.wrapping_mul(b),
                Reduction::Min => a.min(b),
                Reduction::Max => a.max(b),
            };
            let end = |result: $type| match average {
                true => (i128::from(result) / i128::from(ranks)) as $type,
                false => result,
            };
            collective(kind, inputs, <$type>::from_le_bytes, step, |result| end(result).to_le_bytes())
        }};
    }
    match ty {
        Element::F64 => {
            let step = |a: f64, b: f64| match op {
                Reduction::Sum | Reduction::Avg => a + b,
                Reduction::Prod => a * b,
                Reduction::Min => a.min(b),
                Reduction::Max => a.max(b),
            };
            let end = |result: f64| if average { result / f64::from(ranks) } else { result };
            collective(kind, inputs, f64::from_le_bytes, step, |result| end(result).to_le_bytes())
        }
        Element::F32 => collective(kind, inputs, f32::from_le_bytes, step, |real| end(real).to_le_bytes()),
        Element::F16 => {
            let read = |bytes| f16::from_le_bytes(bytes).to_f32();
            collective(kind, inputs, read, step, |real| f16::from_f32(end(real)).to_le_bytes())
        }
        Element::Bf16 => {
            let read = |bytes| bf16::from_le_bytes(bytes).to_f32();
            collective(kind, inputs, read, step, |real| bf16::from_f32(end(real)).to_le_bytes())
        }
        Element::F8E4m3 => collective(kind, inputs, E4M3.read(), step, |real| [E4M3.nearest(end(real))]),
        Element::F8E5m2 => collective(kind, inputs, E5M2.read(), step, |real| [E5M2.nearest(end(real))]),
        Element::I8 => integers!(i8),
        Element::U8 => integers!(u8),
        Element::I32 => integers!(i32),
        Element::U32 => integers!(u32),
        Element::I64 => integers!(i64),
        Element::U64 => integers!(u64),
    }
}

fn collective<T: Copy, const BYTES: usize>(
    kind: &Kind,
    inputs: &[Vec<u8>],
    read: impl Fn([u8; BYTES]) -> T,
    step: impl Fn(T, T) -> T,
    write: impl Fn(T) -> [u8; BYTES],
) -> Vec<Option<Vec<u8>>> {
    let values = |input: &Vec<u8>| input.as_chunks().0.iter().map(|&bytes| read(bytes)).collect();
    let inputs: Vec<Vec<T>> = inputs.iter().map(values).collect();
    let bytes = |output: Vec<T>| output.into_iter().flat_map(&write).collect();
    oracle::outputs(kind, &inputs, step).into_iter().map(|output| output.map(bytes)).collect()
}

/// Values of the finite codes of an FP8 type without sign, which ascend.
struct Fp8(Vec<f32>);

/// Beside the sign, a binary16 of other bias without its lower fraction bits.
static E4M3: LazyLock<Fp8> =
    LazyLock::new(|| Fp8((0..0x7f).map(|code| f16::from_bits(code << 7).to_f32() * 256.0).collect()));
/// The upper half of a binary16.
static E5M2: LazyLock<Fp8> =
    LazyLock::new(|| Fp8((0..0x7c).map(|code| f16::from_bits(code << 8).to_f32()).collect()));

impl Fp8 {
    fn read(&self) -> impl Fn([u8; 1]) -> f32 {
        |[code]| self.0[usize::from(code & 0x7f)] * if code < 0x80 { 1.0 } else { -1.0 }
    }

    /// The nearest code, the even one of two; the largest one for all that is larger.
    fn nearest(&self, real: f32) -> u8 {
        let size = real.abs().min(self.0[self.0.len() - 1]);
        let above = self.0.partition_point(|&value| value < size);
        let distance = |code: usize| (f64::from(self.0[code]) - f64::from(size)).abs();
        let nearer = |a: &usize, b: &usize| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2)));
        let nearest = [above, above.saturating_sub(1)].into_iter().min_by(nearer).unwrap_or(above);
        nearest as u8 | if real.is_sign_negative() { 0x80 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fp8_code_survives_and_what_is_too_large_saturates() {
        for (format, largest, value) in [(&*E4M3, 0x7e, 448.0), (&*E5M2, 0x7b, 57344.0)] {
            assert_eq!(format.read()([largest]), value);
            for code in (0..=largest).flat_map(|code| [code, 0x80 | code]) {
                assert_eq!(format.nearest(format.read()([code])), code);
            }
            assert_eq!([format.nearest(1e6), format.nearest(f32::NEG_INFINITY)], [largest, 0x80 | largest]);
        }
    }

    #[test]
    fn sums_are_rounded_once() {
        // 16 + 1 + 1 is 18 of E4M3, whose neighbour below is 16.
        let inputs = [0x58, 0x38, 0x38].map(|code| vec![code]);
        let of = |op| outputs(&Kind::AllReduce, Element::F8E4m3, op, &inputs).remove(0);
        assert_eq!(of(Reduction::Sum), Some(vec![0x59]));
        assert_eq!(of(Reduction::Avg), Some(vec![E4M3.nearest(6.0)]));
    }
}
