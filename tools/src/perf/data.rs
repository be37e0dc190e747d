//! Test data. Each element depends on rank, index and iteration, so a stale, swapped, shifted or missing
//! element is wrong. The expected result is computed here, independently of the kernels, and compared bit by bit.
//!
//! Everything works on blocks of elements in plain loops over arrays, which the compiler turns into vector instructions.
//! `checker.ptx` computes the same on a device.

mod element;
mod reduce;

use aqueduct::collective::{ElementType, ReduceOp};

use element::{BrainHalf, Element, Half, Integer, Single};
use reduce::{Least, Most, Sum, reduce, seed};

/// Words of 32 bits that are computed at a time.
const WORDS: usize = 1024;

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
        let (seed, to) = (seed(self.first, self.iteration), to.as_chunks_mut::<N>().0);
        match self.op {
            ReduceOp::Min => reduce::<E, Least, N>(seed, self.ranks, start, to),
            ReduceOp::Max => reduce::<E, Most, N>(seed, self.ranks, start, to),
            _ => reduce::<E, Sum, N>(seed, self.ranks, start, to),
        }
    }
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
