//! The reduction of the data of several ranks, a few elements at a time.

use super::element::Arithmetic;

/// Words that one loop computes, which the compiler turns into vector instructions best at this length.
const LANES: usize = 64;

/// Factors of the hash, by rank, iteration and upper half of the index.
const BY_RANK: u32 = 0x85EB_CA6B;
const BY_ITERATION: u32 = 0xC2B2_AE35;
const BY_UPPER: u32 = 0x9E37_79B1;

/// A reduction.
pub(super) trait Operation {
    /// An element of one rank's data.
    #[inline(always)]
    fn make<E: Arithmetic<N>, const N: usize>(hash: u32, mask: u64, _odd_rank: bool) -> E::Value {
        E::term(hash, mask)
    }

    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value;

    /// The result, once the data of all `ranks` ranks is combined.
    #[inline(always)]
    fn end<E: Arithmetic<N>, const N: usize>(value: E::Value, _ranks: u32) -> E::Value {
        value
    }
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Least;
pub(super) struct Most;
pub(super) struct Average;

impl Operation for Sum {
    #[inline(always)]
    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        E::add(a, b)
    }
}

impl Operation for Product {
    #[inline(always)]
    fn make<E: Arithmetic<N>, const N: usize>(hash: u32, mask: u64, odd_rank: bool) -> E::Value {
        E::factor(hash, mask, odd_rank)
    }

    #[inline(always)]
    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        E::mul(a, b)
    }
}

impl Operation for Least {
    #[inline(always)]
    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        if E::less(b, a) { b } else { a }
    }
}

impl Operation for Most {
    #[inline(always)]
    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        if E::less(a, b) { b } else { a }
    }
}

impl Operation for Average {
    #[inline(always)]
    fn apply<E: Arithmetic<N>, const N: usize>(a: E::Value, b: E::Value) -> E::Value {
        E::add(a, b)
    }

    #[inline(always)]
    fn end<E: Arithmetic<N>, const N: usize>(value: E::Value, ranks: u32) -> E::Value {
        E::divided(value, ranks)
    }
}

/// The part of the hash that comes from rank and iteration.
#[inline(always)]
pub(super) fn seed(rank: u32, iteration: u32) -> u32 {
    rank.wrapping_mul(BY_RANK).wrapping_add(iteration.wrapping_mul(BY_ITERATION))
}

/// The data of some ranks.
#[derive(Clone, Copy)]
pub(super) struct Data {
    /// The [`seed`] of the first rank.
    pub(super) seed: u32,
    pub(super) first: u32,
    pub(super) ranks: u32,
    /// Bits of the hash that a real number is made of.
    pub(super) mask: u64,
    /// An element is zero on ranks whose number plus the element's place has one of these bits.
    pub(super) thin: u32,
}

impl Data {
    /// Reduces the elements in rank order, a few indices at a time, and stores the results.
    #[inline(always)]
    pub(super) fn reduce<E: Arithmetic<N>, O: Operation, const N: usize>(
        self,
        mut start: u64,
        to: &mut [[u8; N]],
    ) {
        for to in to.chunks_mut(LANES) {
            let places = places(start);
            let mut sums = [E::Value::default(); LANES];
            for (sum, place) in sums.iter_mut().zip(places) {
                *sum = self.element::<E, O, N>(0, place);
            }
            for offset in 1..self.ranks {
                for (sum, place) in sums.iter_mut().zip(places) {
                    *sum = O::apply::<E, N>(*sum, self.element::<E, O, N>(offset, place));
                }
            }
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = E::bytes(O::end::<E, N>(sum, self.ranks));
            }
            start += LANES as u64;
        }
    }

    /// The element at `place` of the rank that is so far from the first one.
    #[inline(always)]
    fn element<E: Arithmetic<N>, O: Operation, const N: usize>(self, offset: u32, place: u32) -> E::Value {
        let rank = self.first.wrapping_add(offset);
        let seed = self.seed.wrapping_add(offset.wrapping_mul(BY_RANK));
        // Made in any case: without a branch it is a vector instruction.
        let made = O::make::<E, N>(mix(seed ^ place), self.mask, rank & 1 != 0);
        if place.wrapping_add(rank) & self.thin != 0 { E::Value::default() } else { made }
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
