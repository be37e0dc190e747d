//! Test data. Each element depends on rank, index and iteration, so a stale, swapped, shifted or missing
//! element is wrong. The expected result is computed here, independently of the kernels, and compared bit by bit.
//!
//! Everything works on blocks of elements in plain loops over arrays, which the compiler turns into vector instructions.
//! `checker.ptx` computes the same on a device.

use aqueduct::collective::{ElementType, ReduceOp};

/// Bits of an f32 that an element lacks.
const F16_DROPS: u32 = 13;
const BF16_DROPS: u32 = 16;

/// Words of 32 bits that are computed at a time.
const WORDS: usize = 1024;
/// Words that one loop computes, which the compiler turns into vector instructions best at this length.
const LANES: usize = 64;

/// Factors of the hash, by rank, iteration and upper half of the index.
const BY_RANK: u32 = 0x85EB_CA6B;
const BY_ITERATION: u32 = 0xC2B2_AE35;
const BY_UPPER: u32 = 0x9E37_79B1;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bytes of `i32` elements, one by one.
    Byte,
    Element(ElementType),
}

/// The right elements of a buffer: the reduction of the data of `ranks` ranks, from rank `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(super) kind: Kind,
    pub(super) op: ReduceOp,
    pub(super) first: u32,
    pub(super) ranks: u32,
    pub(super) iteration: u32,
}

/// Parameters of one all-reduce call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) ty: ElementType,
    pub(crate) op: ReduceOp,
    pub(crate) ranks: u32,
    pub(crate) iteration: u32,
    pub(crate) count: usize,
}

impl Call {
    /// This rank's input.
    pub(crate) fn input(&self, rank: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.count * self.ty.bytes()];
        self.operand(rank).fill(0, &mut bytes);
        bytes
    }

    /// Number of elements of `seen` that differ in any bit from the reduction of all ranks' inputs.
    pub(crate) fn wrong(&self, seen: &[u8]) -> u64 {
        // Every element that a short buffer lacks counts as wrong.
        let lacking = (self.count as u64).abs_diff((seen.len() / self.ty.bytes()) as u64);
        self.result().wrong(0, seen) + lacking
    }

    /// The data of one rank.
    pub(super) fn operand(&self, rank: u32) -> Expected {
        Expected { first: rank, ranks: 1, ..self.result() }
    }

    /// The reduction of the data of all ranks.
    pub(super) fn result(&self) -> Expected {
        let Self { ty, op, ranks, iteration, .. } = *self;
        Expected { kind: Kind::Element(ty), op, first: 0, ranks, iteration }
    }
}

impl Kind {
    /// Bytes of one element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Element(ty) => ty.bytes(),
        }
    }

    /// Bytes that are computed at a time, in whole elements.
    fn block(self) -> usize {
        match self {
            // The bytes of a block may begin and end within a word.
            Self::Byte => (WORDS - 1) * 4,
            Self::Element(ty) => WORDS * ty.bytes(),
        }
    }
}

impl Expected {
    /// Bytes of one rank.
    pub(super) fn bytes(rank: u32, iteration: u32) -> Self {
        Self { kind: Kind::Byte, op: ReduceOp::Sum, first: rank, ranks: 1, iteration }
    }

    /// Writes the elements from index `start` on, as many as fit.
    pub(super) fn fill(&self, start: u64, to: &mut [u8]) {
        let mut at = start;
        for block in to.chunks_mut(self.kind.block()) {
            self.expect(at, block);
            at += (block.len() / self.kind.bytes()) as u64;
        }
    }

    /// Number of elements of `seen`, which begins at index `start`, that differ in any bit.
    pub(super) fn wrong(&self, start: u64, seen: &[u8]) -> u64 {
        let size = self.kind.bytes();
        let mut expected = [0; WORDS * 4];
        let (mut at, mut wrong) = (start, 0);
        for block in seen[..seen.len() / size * size].chunks(self.kind.block()) {
            let expected = &mut expected[..block.len()];
            self.expect(at, expected);
            if block != expected {
                let pairs = block.chunks_exact(size).zip(expected.chunks_exact(size));
                wrong += pairs.filter(|(seen, expected)| seen != expected).count() as u64;
            }
            at += (block.len() / size) as u64;
        }
        wrong
    }

    /// Writes at most a block of elements from index `start` on.
    fn expect(&self, start: u64, to: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            // Most processors have twice as wide vectors as the compiler may assume.
            #[target_feature(enable = "avx2")]
            fn wide(expected: &Expected, start: u64, to: &mut [u8]) {
                expected.compute(start, to);
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has these instructions.
                return unsafe { wide(self, start, to) };
            }
        }
        self.compute(start, to);
    }

    #[inline(always)]
    fn compute(&self, start: u64, to: &mut [u8]) {
        match self.kind {
            Kind::Byte => {
                // Byte `i` is part of word `i / 4`.
                let (skip, mut bytes) = ((start % 4) as usize, [0; WORDS * 4]);
                self.store::<Integer, 4>(start / 4, &mut bytes);
                to.copy_from_slice(&bytes[skip..skip + to.len()]);
            }
            Kind::Element(ElementType::I32) => self.store::<Integer, 4>(start, to),
            Kind::Element(ElementType::F16) => self.store::<Half, 2>(start, to),
            Kind::Element(ElementType::Bf16) => self.store::<BrainHalf, 2>(start, to),
            Kind::Element(_) => self.store::<Single, 4>(start, to),
        }
    }

    #[inline(always)]
    fn store<E: Element<N>, const N: usize>(&self, start: u64, to: &mut [u8]) {
        let to = to.as_chunks_mut::<N>().0;
        match self.op {
            ReduceOp::Min => self.reduce::<E, Least, N>(start, to),
            ReduceOp::Max => self.reduce::<E, Most, N>(start, to),
            _ => self.reduce::<E, Sum, N>(start, to),
        }
    }

    /// Reduces the elements of the ranks in rank order, a few indices at a time, and stores the results.
    #[inline(always)]
    fn reduce<E: Element<N>, O: Operation, const N: usize>(&self, start: u64, to: &mut [[u8; N]]) {
        let first = self.first.wrapping_mul(BY_RANK).wrapping_add(self.iteration.wrapping_mul(BY_ITERATION));
        let mut start = start;
        for to in to.chunks_mut(LANES) {
            let places = places(start);
            let mut sums = [E::Value::default(); LANES];
            for (sum, place) in sums.iter_mut().zip(places) {
                *sum = E::make(mix(first ^ place));
            }
            let mut seed = first;
            for _ in 1..self.ranks {
                seed = seed.wrapping_add(BY_RANK);
                for (sum, place) in sums.iter_mut().zip(places) {
                    *sum = O::apply::<E, N>(*sum, E::make(mix(seed ^ place)));
                }
            }
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = E::bytes(sum);
            }
            start += LANES as u64;
        }
    }
}

/// How elements of a type are made, combined, and stored in `N` bytes. Types instead of closures, because a method can be
/// inlined into code for wider vectors.
trait Element<const N: usize> {
    type Value: Copy + Default;
    fn make(hash: u32) -> Self::Value;
    fn add(a: Self::Value, b: Self::Value) -> Self::Value;
    fn less(a: Self::Value, b: Self::Value) -> bool;
    fn bytes(value: Self::Value) -> [u8; N];
}

/// A reduction.
trait Operation {
    fn apply<E: Element<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value;
}

struct Integer;
struct Single;
struct Half;
struct BrainHalf;
struct Sum;
struct Least;
struct Most;

impl Element<4> for Integer {
    type Value = u32;

    #[inline(always)]
    fn make(hash: u32) -> u32 {
        hash
    }

    #[inline(always)]
    fn add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }

    #[inline(always)]
    fn less(a: u32, b: u32) -> bool {
        a.cast_signed() < b.cast_signed()
    }

    #[inline(always)]
    fn bytes(value: u32) -> [u8; 4] {
        value.to_le_bytes()
    }
}

/// Real numbers, which the kernels of every type reduce as f32.
macro_rules! real_element {
    ($name:ident, $size:literal, $round:expr, $bytes:expr) => {
        impl Element<$size> for $name {
            type Value = f32;

            #[inline(always)]
            fn make(hash: u32) -> f32 {
                $round(real(hash))
            }

            #[inline(always)]
            fn add(a: f32, b: f32) -> f32 {
                a + b
            }

            #[inline(always)]
            fn less(a: f32, b: f32) -> bool {
                a < b
            }

            #[inline(always)]
            fn bytes(value: f32) -> [u8; $size] {
                $bytes(value).to_le_bytes()
            }
        }
    };
}

real_element!(Single, 4, f32::from, f32::from);
real_element!(Half, 2, rounded::<F16_DROPS>, f16_bits);
real_element!(BrainHalf, 2, rounded::<BF16_DROPS>, bf16_bits);

impl Operation for Sum {
    #[inline(always)]
    fn apply<E: Element<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        E::add(a, b)
    }
}

impl Operation for Least {
    #[inline(always)]
    fn apply<E: Element<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        if E::less(b, a) { b } else { a }
    }
}

impl Operation for Most {
    #[inline(always)]
    fn apply<E: Element<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        if E::less(a, b) { b } else { a }
    }
}

/// The part of the hash that comes from the index, from `start` on.
#[inline(always)]
fn places(start: u64) -> [u32; LANES] {
    let (upper, lower) = ((start >> 32) as u32, start as u32);
    let mut places = [0; LANES];
    if lower.checked_add(LANES as u32).is_some() {
        let upper = upper.wrapping_mul(BY_UPPER);
        for (lane, place) in (0..).zip(&mut places) {
            *place = (lower + lane) ^ upper;
        }
    } else {
        // The index outgrows 32 bits here.
        for (index, place) in (start..).zip(&mut places) {
            *place = index as u32 ^ ((index >> 32) as u32).wrapping_mul(BY_UPPER);
        }
    }
    places
}

/// Mixes the bits of `h`, so that equal inputs only give equal outputs.
#[inline(always)]
fn mix(mut h: u32) -> u32 {
    h = (h ^ (h >> 16)).wrapping_mul(0x7FEB_352D);
    h = (h ^ (h >> 15)).wrapping_mul(0x846C_A68B);
    h ^ (h >> 16)
}

/// A number in -8 .. 8 whose fraction shows wrong rounding. It is exact: 24 bits, a power of two, and a difference that
/// needs no more bits.
#[inline(always)]
fn real(hash: u32) -> f32 {
    // Signed numbers convert faster.
    (hash >> 8).cast_signed() as f32 / (1u32 << 20) as f32 - 8.0
}

/// `value` without its lowest `DROPS` bits, rounded to the nearest, ties to even. It must be finite.
#[inline(always)]
fn rounded<const DROPS: u32>(value: f32) -> f32 {
    let bits = value.to_bits();
    let half = (1 << (DROPS - 1)) - 1 + (bits >> DROPS & 1);
    f32::from_bits((bits + half) & !((1 << DROPS) - 1))
}

/// The f16 nearest to `value`. Its magnitude must be less than 65520, and a multiple of 2^-24 if it is less than 2^-14: sums
/// of [`real`] numbers are.
#[inline(always)]
fn f16_bits(value: f32) -> u16 {
    let bits = rounded::<F16_DROPS>(value).to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7FFF_FFFF);
    // Exponents of f32 have a bias of 127, those of f16 one of 15; the smallest numbers count in 2^-24.
    let normal = (magnitude >> 13).wrapping_sub((127 - 15) << 10);
    let small = (f32::from_bits(magnitude).min(1.0) * (1 << 24) as f32) as i32 as u32;
    (sign | if magnitude < (127 - 14) << 23 { small } else { normal }) as u16
}

/// The bf16 nearest to `value`.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    (rounded::<BF16_DROPS>(value).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn call(ty: ElementType) -> Call {
        Call { ty, op: ReduceOp::Sum, ranks: 3, iteration: 7, count: 3000 }
    }

    #[test]
    fn one_rank_reduces_to_its_own_input() {
        for ty in ElementType::ALL {
            let one = Call { ranks: 1, ..call(ty) };
            assert_eq!(one.wrong(&one.input(0)), 0, "{ty:?}");
        }
    }

    #[test]
    fn a_stale_or_foreign_or_missing_element_is_wrong() {
        for ty in ElementType::ALL {
            let three = call(ty);
            assert!(three.wrong(&three.input(0)) > 2970, "{ty:?}: one rank's input is not the sum");
            let one = Call { ranks: 1, ..three };
            let stale = Call { iteration: 6, ..one };
            assert!(one.wrong(&stale.input(0)) > 2970, "{ty:?}: the last call's data");
            assert!(one.wrong(&one.input(1)) > 2970, "{ty:?}: another rank's data");
            assert_eq!(one.wrong(&one.input(0)[..2999 * ty.bytes()]), 1, "{ty:?}: one element short");
        }
    }

    /// Also swapped ranks, which a sum does not show: the test of a transfer does.
    #[test]
    fn bytes_show_a_wrong_offset_a_stale_iteration_and_a_swapped_rank() {
        let (data, mut right) = (Expected::bytes(1, 7), vec![0; 10_000]);
        data.fill(0, &mut right);
        assert_eq!(data.wrong(0, &right), 0);
        for offset in [1, 2, 3, 4, 8, 128, 4096] {
            assert!(data.wrong(offset, &right) > 9900, "shifted by {offset}");
        }
        assert!(Expected::bytes(0, 7).wrong(0, &right) > 9900);
        assert!(Expected::bytes(1, 6).wrong(0, &right) > 9900);
        assert!(data.wrong(0, &[0xA5; 10_000]) > 9900, "nothing arrived");
        assert_eq!(data.wrong(0, &right[..9000]), 0, "as many as there are");
        right[9999] ^= 1;
        right[0] ^= 0x80;
        assert_eq!(data.wrong(0, &right), 2);
    }

    /// Parts of any size give the same elements, across blocks and where the index outgrows 32 bits.
    #[test]
    fn elements_do_not_depend_on_where_a_part_begins() {
        let kinds = ElementType::ALL.map(Kind::Element).into_iter().chain([Kind::Byte]);
        for kind in kinds {
            for origin in [0, (1 << 32) - 1500, (1 << 34) - 6001] {
                let data = Expected { kind, op: ReduceOp::Max, first: 2, ranks: 3, iteration: 9 };
                let mut whole = vec![0; 9000 * kind.bytes()];
                data.fill(origin, &mut whole);
                for (from, count) in [(0, 9000), (1, 17), (1021, 4099), (4093, 3), (5000, 4000)] {
                    let bytes = from * kind.bytes()..(from + count) * kind.bytes();
                    let mut part = vec![0; bytes.len()];
                    data.fill(origin + from as u64, &mut part);
                    assert!(part == whole[bytes.clone()], "{kind:?} {origin} {from} {count}");
                    assert_eq!(data.wrong(origin + from as u64, &whole[bytes]), 0);
                }
            }
        }
    }

    /// All small numbers, subnormal ones among them, and larger ones with every pattern of lower bits.
    #[test]
    fn numbers_are_rounded_as_ieee_754_says() {
        let small = (0..1 << 14).map(|k| k as f32 / (1 << 20) as f32);
        let large = (0..100_000).map(|k| f32::from_bits(0x3C00_0000 + k * 10_007));
        for value in small.chain(large.take_while(|value| *value < 65_000.0)).flat_map(|v| [v, -v]) {
            let bits = f16::from_f32(value).to_bits();
            assert!(f16_bits(value) == bits || value == 0.0 && bits & 0x7FFF == 0, "{value}");
            let upper = rounded::<BF16_DROPS>(value);
            assert_eq!(upper.to_bits(), bf16::from_f32(value).to_f32().to_bits(), "{value}");
        }
    }

    /// The reduction of a few elements, computed one by one.
    #[test]
    fn a_reduction_is_that_of_the_ranks_inputs() {
        for op in ReduceOp::ALL {
            let element = |ty: ElementType, rank: u32, index: usize| -> [u8; 4] {
                let mut bytes = [0; 4];
                let input = Call { op, ..call(ty) }.input(rank);
                bytes[..ty.bytes()].copy_from_slice(&input[index * ty.bytes()..][..ty.bytes()]);
                bytes
            };
            for ty in ElementType::ALL {
                for index in [0, 1, 1023, 1024, 2999] {
                    let ranks = (0..3).map(|rank| element(ty, rank, index));
                    let value = |bytes: [u8; 4]| match ty {
                        ElementType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                        ElementType::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                        _ => f32::from_le_bytes(bytes),
                    };
                    let reals = ranks.clone().map(value);
                    let real = match op {
                        ReduceOp::Min => reals.fold(f32::MAX, f32::min),
                        ReduceOp::Max => reals.fold(f32::MIN, f32::max),
                        _ => reals.fold(0.0, |a, b| a + b),
                    };
                    let integers = ranks.map(i32::from_le_bytes);
                    let expected = match (ty, op) {
                        (ElementType::I32, ReduceOp::Min) => integers.min().unwrap().to_le_bytes(),
                        (ElementType::I32, ReduceOp::Max) => integers.max().unwrap().to_le_bytes(),
                        (ElementType::I32, _) => integers.fold(0, i32::wrapping_add).to_le_bytes(),
                        (ElementType::F16, _) => u32::from(f16::from_f32(real).to_bits()).to_le_bytes(),
                        (ElementType::Bf16, _) => u32::from(bf16::from_f32(real).to_bits()).to_le_bytes(),
                        _ => real.to_le_bytes(),
                    };
                    let data = Call { op, ..call(ty) }.result();
                    let wrong = data.wrong(index as u64, &expected[..ty.bytes()]);
                    assert_eq!(wrong, 0, "{ty:?} {op:?} {index}");
                }
            }
        }
    }
}
