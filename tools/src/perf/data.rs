//! Test data. Each element depends on rank, index and iteration, so a stale, swapped, shifted or missing
//! element is wrong. The expected result is computed here, independently of the kernels, and compared bit by bit: reals of up to 4 bytes
//! are combined as f32 in the order of the ranks and rounded to their type once, others in their own type.
//!
//! Everything works on blocks of elements in plain loops over arrays, which the compiler turns into vector instructions.
//! `checker.ptx` computes the same on a device.

mod element;
mod reduce;
#[cfg(test)]
mod tests;

use aqueduct::plan::{Element, Reduction};

use element::{
    Arithmetic, BrainHalf, Double, E4m3, E5m2, Half, Signed8, Signed32, Signed64, Single, Unsigned8,
    Unsigned32, Unsigned64,
};
use reduce::{Average, Data, Least, Most, Product, Sum, seed};

/// Elements that are computed at a time.
const BLOCK: usize = 1024;

/// Bytes of the largest element.
const LARGEST: usize = 8;

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
    /// Bits of the hash that a real number is made of; types of up to 4 bytes know the upper half.
    pub(super) mask: u64,
    /// An element is zero on ranks whose number plus the element's place has one of these bits.
    pub(super) thin: u32,
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
        Expected { kind: Kind::Element(ty), op, first: 0, ranks, iteration, mask: !0, thin: 0 }
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
            Self::Byte => (BLOCK - 1) * 4,
            Self::Element(ty) => BLOCK * ty.bytes(),
        }
    }
}

impl Expected {
    /// Bytes of one rank.
    pub(super) fn bytes(rank: u32, iteration: u32) -> Self {
        Self { kind: Kind::Byte, op: Reduction::Sum, first: rank, ranks: 1, iteration, mask: !0, thin: 0 }
    }

    /// The same of coarser real numbers, of which every sum or product over `ranks` ranks is exact in the element's type: every
    /// order of operations gives the same bits, rounded between or not. The smallest and the largest are exact anyway, and integers
    /// wrap.
    pub(super) fn exact(self, ranks: u32) -> Self {
        // Bits of the significand, and the largest power of two; the smallest is at least as far from 1.
        let (significand, power) = match self.kind {
            Kind::Element(Element::F64) => (53, 1023),
            Kind::Element(Element::F32) => (24, 127),
            Kind::Element(Element::F16) => (11, 15),
            Kind::Element(Element::Bf16) => (8, 127),
            Kind::Element(Element::F8E4m3) => (4, 8),
            Kind::Element(Element::F8E5m2) => (3, 15),
            Kind::Element(_) | Kind::Byte => return self,
        };
        match self.op {
            Reduction::Sum | Reduction::Avg => {
                // A term is -8 + k * 2^(4 - bits) with 0 <= k < 2^bits, so a sum is a multiple of 2^(4 - bits) up to 8 * ranks. Where
                // one bit is too much for so many ranks, one of 2, 4, .. of them has a term and the others have zero.
                let log = ranks.next_power_of_two().ilog2();
                let thin = log.saturating_sub(significand);
                let bits = significand + 1 - (log - thin);
                Self { mask: !(u64::MAX >> bits), thin: (1 << thin) - 1, ..self }
            }
            Reduction::Prod => {
                // A factor is 1 or 2 on even ranks, 1 or 1/2 on odd ones, of any sign; of very many ranks only the sign is left.
                let bits = if ranks <= 2 * power { 2 } else { 1 };
                Self { mask: !(u64::MAX >> bits), ..self }
            }
            Reduction::Min | Reduction::Max => self,
        }
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
        let mut expected = [0; BLOCK * LARGEST];
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
                let (skip, mut bytes) = ((start % 4) as usize, [0; BLOCK * 4]);
                self.store::<Unsigned32, 4>(start / 4, &mut bytes);
                to.copy_from_slice(&bytes[skip..skip + to.len()]);
            }
            Kind::Element(ty) => match ty {
                Element::F32 => self.store::<Single, 4>(start, to),
                Element::F64 => self.store::<Double, 8>(start, to),
                Element::F16 => self.store::<Half, 2>(start, to),
                Element::Bf16 => self.store::<BrainHalf, 2>(start, to),
                Element::F8E4m3 => self.store::<E4m3, 1>(start, to),
                Element::F8E5m2 => self.store::<E5m2, 1>(start, to),
                Element::I8 => self.store::<Signed8, 1>(start, to),
                Element::U8 => self.store::<Unsigned8, 1>(start, to),
                Element::I32 => self.store::<Signed32, 4>(start, to),
                Element::U32 => self.store::<Unsigned32, 4>(start, to),
                Element::I64 => self.store::<Signed64, 8>(start, to),
                Element::U64 => self.store::<Unsigned64, 8>(start, to),
            },
        }
    }

    #[inline(always)]
    fn store<E: Arithmetic<N>, const N: usize>(&self, start: u64, to: &mut [u8]) {
        let Self { first, ranks, iteration, mask, thin, .. } = *self;
        let data = Data { seed: seed(first, iteration), first, ranks, mask, thin };
        let to = to.as_chunks_mut::<N>().0;
        match self.op {
            Reduction::Sum => data.reduce::<E, Sum, N>(start, to),
            Reduction::Prod => data.reduce::<E, Product, N>(start, to),
            Reduction::Min => data.reduce::<E, Least, N>(start, to),
            Reduction::Max => data.reduce::<E, Most, N>(start, to),
            Reduction::Avg => data.reduce::<E, Average, N>(start, to),
        }
    }
}
