//! Test data. Each element depends on rank, index and iteration, so a stale, swapped or missing
//! element is wrong. The expected result is computed here, independently of the kernels, and compared bit by bit.

use aqueduct::collective::{ElementType, ReduceOp};
use half::{bf16, f16};

/// A 32-bit hash of (rank, iteration, index).
fn mix(rank: u32, iteration: u32, index: u64) -> u32 {
    let mut h = (index as u32) ^ ((index >> 32) as u32).wrapping_mul(0x9E37_79B1);
    h ^= rank.wrapping_mul(0x85EB_CA6B).wrapping_add(iteration.wrapping_mul(0xC2B2_AE35));
    h = (h ^ (h >> 16)).wrapping_mul(0x7FEB_352D);
    h = (h ^ (h >> 15)).wrapping_mul(0x846C_A68B);
    h ^ (h >> 16)
}

/// A number in -8 .. 8 whose fraction shows wrong rounding.
fn real(rank: u32, iteration: u32, index: u64) -> f32 {
    (mix(rank, iteration, index) >> 8) as f32 / (1u32 << 20) as f32 - 8.0
}

/// How elements of a type are made, reduced and stored as bytes.
trait Element: Copy {
    const SIZE: usize;
    fn make(rank: u32, iteration: u32, index: u64) -> Self;
    fn store(self, to: &mut [u8]);
    /// Reduces the elements of all ranks, in rank order.
    fn reduce(op: ReduceOp, ranks: u32, iteration: u32, index: u64) -> Self;
}

/// Reduces `f32` values in rank order, as the kernels do for every real type.
fn fold(op: ReduceOp, values: impl Iterator<Item = f32>) -> f32 {
    let step = match op {
        ReduceOp::Min => f32::min,
        ReduceOp::Max => f32::max,
        _ => |a: f32, b: f32| a + b,
    };
    values.reduce(step).unwrap_or(0.0)
}

macro_rules! real_element {
    ($ty:ty, $size:literal, $from:expr, $to:expr) => {
        impl Element for $ty {
            const SIZE: usize = $size;

            fn make(rank: u32, iteration: u32, index: u64) -> Self {
                $from(real(rank, iteration, index))
            }

            fn store(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }

            fn reduce(op: ReduceOp, ranks: u32, iteration: u32, index: u64) -> Self {
                $from(fold(op, (0..ranks).map(|r| $to(Self::make(r, iteration, index)))))
            }
        }
    };
}

real_element!(f32, 4, |v| v, |v| v);
real_element!(f16, 2, f16::from_f32, f16::to_f32);
real_element!(bf16, 2, bf16::from_f32, bf16::to_f32);

impl Element for i32 {
    const SIZE: usize = 4;

    fn make(rank: u32, iteration: u32, index: u64) -> Self {
        mix(rank, iteration, index).cast_signed()
    }

    fn store(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_le_bytes());
    }

    fn reduce(op: ReduceOp, ranks: u32, iteration: u32, index: u64) -> Self {
        let step = match op {
            ReduceOp::Min => Self::min,
            ReduceOp::Max => Self::max,
            _ => Self::wrapping_add,
        };
        (0..ranks).map(|r| Self::make(r, iteration, index)).reduce(step).unwrap_or(0)
    }
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
        match self.ty {
            ElementType::F16 => fill::<f16>(self.count, |i| f16::make(rank, self.iteration, i)),
            ElementType::Bf16 => fill::<bf16>(self.count, |i| bf16::make(rank, self.iteration, i)),
            ElementType::I32 => fill::<i32>(self.count, |i| i32::make(rank, self.iteration, i)),
            _ => fill::<f32>(self.count, |i| f32::make(rank, self.iteration, i)),
        }
    }

    /// Number of elements of `seen` that differ in any bit from the reduction of all ranks' inputs.
    pub(crate) fn wrong(&self, seen: &[u8]) -> u64 {
        match self.ty {
            ElementType::F16 => differ::<f16>(self, seen),
            ElementType::Bf16 => differ::<bf16>(self, seen),
            ElementType::I32 => differ::<i32>(self, seen),
            _ => differ::<f32>(self, seen),
        }
    }
}

fn fill<T: Element>(count: usize, make: impl Fn(u64) -> T) -> Vec<u8> {
    let mut bytes = vec![0; count * T::SIZE];
    for (i, to) in bytes.chunks_exact_mut(T::SIZE).enumerate() {
        make(i as u64).store(to);
    }
    bytes
}

fn differ<T: Element>(call: &Call, seen: &[u8]) -> u64 {
    let mut expected = [0u8; 4];
    let expected = &mut expected[..T::SIZE];
    let mut wrong = 0;
    for (i, element) in seen.chunks_exact(T::SIZE).enumerate() {
        T::reduce(call.op, call.ranks, call.iteration, i as u64).store(expected);
        wrong += u64::from(*element != *expected);
    }
    // Every element that a short buffer lacks counts as wrong.
    wrong + (call.count as u64).abs_diff((seen.len() / T::SIZE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(ty: ElementType) -> Call {
        Call { ty, op: ReduceOp::Sum, ranks: 3, iteration: 7, count: 1000 }
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
            assert!(three.wrong(&three.input(0)) > 990, "{ty:?}: one rank's input is not the sum");
            let one = Call { ranks: 1, ..three };
            let stale = Call { iteration: 6, ..one };
            assert!(one.wrong(&stale.input(0)) > 990, "{ty:?}: the last call's data");
            assert!(one.wrong(&one.input(1)) > 990, "{ty:?}: another rank's data");
            assert_eq!(one.wrong(&one.input(0)[..999 * ty.bytes()]), 1, "{ty:?}: one element short");
        }
    }
}
