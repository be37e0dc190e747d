//! Test data. Each element depends on rank, index and iteration, so a stale, swapped, shifted or missing
//! element is wrong. The expected result is computed here, independently of the kernels, and compared bit by bit.
//!
//! Everything works on blocks of elements in plain loops over arrays, which the compiler turns into vector instructions.
//! `checker.ptx` computes the same on a device.

mod element;
mod reduce;

use aqueduct::plan::{Element, Reduction};

use element::{Arithmetic, BrainHalf, Half, Integer, Single};
use reduce::{Data, Least, Most, Sum, seed};

/// The types and reductions whose data is made here.
pub(crate) const TYPES: [Element; 4] = [Element::F32, Element::F16, Element::Bf16, Element::I32];
pub(crate) const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

/// Words of 32 bits that are computed at a time.
const WORDS: usize = 1024;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bytes of `i32` elements, one by one.
    Byte,
    Element(Element),
}

/// The right elements of a buffer: the reduction of the data of `ranks` ranks, from rank `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(super) kind: Kind,
    pub(super) op: Reduction,
    pub(super) first: u32,
    pub(super) ranks: u32,
    pub(super) iteration: u32,
    /// Bits of the hash that a real number is made of.
    pub(super) mask: u32,
}

/// Parameters of one all-reduce call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) ty: Element,
    pub(crate) op: Reduction,
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
        Expected { kind: Kind::Element(ty), op, first: 0, ranks, iteration, mask: !0 }
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
        Self { kind: Kind::Byte, op: Reduction::Sum, first: rank, ranks: 1, iteration, mask: !0 }
    }

    /// The same of coarser real numbers: any sum of those of `ranks` ranks is exact in the element's type, so every order of
    /// additions gives these bits, rounded between or not. Exact for up to 256 ranks; bf16 of more keeps one bit.
    pub(super) fn with_exact_sums(self, ranks: u32) -> Self {
        let significand = match self.kind {
            Kind::Element(Element::F16) => 11,
            Kind::Element(Element::Bf16) => 8,
            _ => 24,
        };
        // A real number is -8 + k * 2^(4 - bits) with 0 <= k < 2^bits, so a sum is a multiple of 2^(4 - bits) up to 8 * ranks.
        let bits = (significand + 1_u32).saturating_sub(ranks.next_power_of_two().ilog2()).max(1);
        Self { mask: !(u32::MAX >> bits), ..self }
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
            Kind::Element(Element::I32) => self.store::<Integer, 4>(start, to),
            Kind::Element(Element::F16) => self.store::<Half, 2>(start, to),
            Kind::Element(Element::Bf16) => self.store::<BrainHalf, 2>(start, to),
            Kind::Element(_) => self.store::<Single, 4>(start, to),
        }
    }

    #[inline(always)]
    fn store<E: Arithmetic<N>, const N: usize>(&self, start: u64, to: &mut [u8]) {
        let data = Data { seed: seed(self.first, self.iteration), ranks: self.ranks, mask: self.mask };
        let to = to.as_chunks_mut::<N>().0;
        match self.op {
            Reduction::Min => data.reduce::<E, Least, N>(start, to),
            Reduction::Max => data.reduce::<E, Most, N>(start, to),
            _ => data.reduce::<E, Sum, N>(start, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn call(ty: Element) -> Call {
        Call { ty, op: Reduction::Sum, ranks: 3, iteration: 7, count: 3000 }
    }

    #[test]
    fn one_rank_reduces_to_its_own_input() {
        for ty in TYPES {
            let one = Call { ranks: 1, ..call(ty) };
            assert_eq!(one.wrong(&one.input(0)), 0, "{ty:?}");
        }
    }

    #[test]
    fn a_stale_or_foreign_or_missing_element_is_wrong() {
        for ty in TYPES {
            let three = call(ty);
            assert!(three.wrong(&three.input(0)) > 2970, "{ty:?}: one rank's input is not the sum");
            let one = Call { ranks: 1, ..three };
            let stale = Call { iteration: 6, ..one };
            assert!(one.wrong(&stale.input(0)) > 2970, "{ty:?}: the last call's data");
            assert!(one.wrong(&one.input(1)) > 2970, "{ty:?}: another rank's data");
            assert_eq!(one.wrong(&one.input(0)[..2999 * ty.bytes()]), 1, "{ty:?}: one element short");
        }
    }

    /// Sums in the opposite order, rounded to the element's type after each addition, are the same bits.
    #[test]
    fn exact_sums_do_not_depend_on_the_order() {
        for (ty, ranks) in TYPES.into_iter().flat_map(|ty| [2, 3, 8, 64, 256].map(|ranks| (ty, ranks))) {
            let call = Call { ranks, ..call(ty) };
            let input = |rank| {
                let mut bytes = vec![0; call.count * ty.bytes()];
                call.operand(rank).with_exact_sums(ranks).fill(0, &mut bytes);
                bytes
            };
            let mut sum = input(ranks - 1);
            for rank in (0..ranks - 1).rev() {
                for (sum, add) in sum.chunks_exact_mut(ty.bytes()).zip(input(rank).chunks_exact(ty.bytes())) {
                    match ty {
                        Element::F16 => {
                            let [a, b] = [&*sum, add].map(|x| f16::from_le_bytes([x[0], x[1]]).to_f32());
                            sum.copy_from_slice(&f16::from_f32(a + b).to_le_bytes());
                        }
                        Element::Bf16 => {
                            let [a, b] = [&*sum, add].map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32());
                            sum.copy_from_slice(&bf16::from_f32(a + b).to_le_bytes());
                        }
                        Element::I32 => {
                            let [a, b] = [&*sum, add].map(|x| i32::from_le_bytes(x.try_into().unwrap()));
                            sum.copy_from_slice(&a.wrapping_add(b).to_le_bytes());
                        }
                        _ => {
                            let [a, b] = [&*sum, add].map(|x| f32::from_le_bytes(x.try_into().unwrap()));
                            sum.copy_from_slice(&(a + b).to_le_bytes());
                        }
                    }
                }
            }
            assert_eq!(call.result().with_exact_sums(ranks).wrong(0, &sum), 0, "{ty:?} of {ranks} ranks");
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
        let kinds = TYPES.map(Kind::Element).into_iter().chain([Kind::Byte]);
        for kind in kinds {
            for origin in [0, (1 << 32) - 1500, (1 << 34) - 6001] {
                let data = Expected { kind, op: Reduction::Max, first: 2, ranks: 3, iteration: 9, mask: !0 };
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

    /// The reduction of a few elements, computed one by one.
    #[test]
    fn a_reduction_is_that_of_the_ranks_inputs() {
        for op in REDUCTIONS {
            let element = |ty: Element, rank: u32, index: usize| -> [u8; 4] {
                let mut bytes = [0; 4];
                let input = Call { op, ..call(ty) }.input(rank);
                bytes[..ty.bytes()].copy_from_slice(&input[index * ty.bytes()..][..ty.bytes()]);
                bytes
            };
            for ty in TYPES {
                for index in [0, 1, 1023, 1024, 2999] {
                    let ranks = (0..3).map(|rank| element(ty, rank, index));
                    let value = |bytes: [u8; 4]| match ty {
                        Element::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                        Element::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                        _ => f32::from_le_bytes(bytes),
                    };
                    let reals = ranks.clone().map(value);
                    let real = match op {
                        Reduction::Min => reals.fold(f32::MAX, f32::min),
                        Reduction::Max => reals.fold(f32::MIN, f32::max),
                        _ => reals.fold(0.0, |a, b| a + b),
                    };
                    let integers = ranks.map(i32::from_le_bytes);
                    let expected = match (ty, op) {
                        (Element::I32, Reduction::Min) => integers.min().unwrap().to_le_bytes(),
                        (Element::I32, Reduction::Max) => integers.max().unwrap().to_le_bytes(),
                        (Element::I32, _) => integers.fold(0, i32::wrapping_add).to_le_bytes(),
                        (Element::F16, _) => u32::from(f16::from_f32(real).to_bits()).to_le_bytes(),
                        (Element::Bf16, _) => u32::from(bf16::from_f32(real).to_bits()).to_le_bytes(),
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
