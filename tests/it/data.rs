//! Test data that depends on rank, index and iteration, so that stale, foreign, shifted and missing
//! bytes are wrong.

use aqueduct::collective::{ElementType, ReduceOp};
use half::{bf16, f16};

/// A 32-bit hash.
pub(crate) fn mix(rank: u32, iteration: u32, index: usize) -> u32 {
    let mut h = (index as u32).wrapping_mul(0x9E37_79B1) ^ rank.wrapping_mul(0x85EB_CA6B);
    h = h.wrapping_add(iteration.wrapping_mul(0xC2B2_AE35));
    h = (h ^ (h >> 16)).wrapping_mul(0x7FEB_352D);
    h = (h ^ (h >> 15)).wrapping_mul(0x846C_A68B);
    h ^ (h >> 16)
}

/// `len` bytes of `rank` in `iteration`.
pub(crate) fn bytes(rank: u32, iteration: u32, len: usize) -> Vec<u8> {
    // Four bytes at a time, because tests are not optimised.
    let mut data = Vec::with_capacity(len.next_multiple_of(4));
    for index in 0..len.div_ceil(4) {
        data.extend_from_slice(&mix(rank, iteration, index).to_le_bytes());
    }
    data.truncate(len);
    data
}

/// `count` elements of `ty` as bytes: reals of both signs with fractions, integers over the whole range.
pub(crate) fn elements(ty: ElementType, rank: u32, iteration: u32, count: usize) -> Vec<u8> {
    let real = |index| (mix(rank, iteration, index) >> 8) as f32 / (1u32 << 20) as f32 - 8.0;
    match ty {
        ElementType::F32 => (0..count).flat_map(|i| real(i).to_le_bytes()).collect(),
        ElementType::F16 => (0..count).flat_map(|i| f16::from_f32(real(i)).to_le_bytes()).collect(),
        ElementType::Bf16 => (0..count).flat_map(|i| bf16::from_f32(real(i)).to_le_bytes()).collect(),
        ElementType::I32 => (0..count).flat_map(|i| mix(rank, iteration, i).to_le_bytes()).collect(),
        other => panic!("no data for {other:?}; extend this function"),
    }
}

/// The result of an all-reduce of all `ranks`' [`elements`].
pub(crate) fn reduced(ty: ElementType, op: ReduceOp, ranks: u32, iteration: u32, count: usize) -> Vec<u8> {
    let inputs: Vec<_> = (0..ranks).map(|rank| elements(ty, rank, iteration, count)).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    aqueduct_ptx::oracle::all_reduce::all_reduce(ty, op, &inputs)
}

/// Asserts that both are equal. The message gives the first difference, the number of differences and the bytes there.
#[track_caller]
pub(crate) fn assert_same(seen: &[u8], expected: &[u8], what: std::fmt::Arguments<'_>) {
    assert_eq!(seen.len(), expected.len(), "{what}: length");
    if seen == expected {
        return;
    }
    let differing: Vec<usize> = (0..seen.len()).filter(|&i| seen[i] != expected[i]).collect();
    if let Some(&first) = differing.first() {
        let end = (first + 16).min(seen.len());
        panic!(
            "{what}: {} of {} bytes differ, from {first}: {:02x?} instead of {:02x?}",
            differing.len(),
            seen.len(),
            &seen[first..end],
            &expected[first..end]
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_differs_by_rank_iteration_and_index() {
        let mine = bytes(0, 0, 4096);
        let same = |other: &[u8]| mine.iter().zip(other).filter(|(a, b)| a == b).count();
        assert!(same(&bytes(1, 0, 4096)) < 64 && same(&bytes(0, 1, 4096)) < 64 && same(&mine[1..]) < 64);
    }

    #[test]
    #[should_panic(expected = "1 of 3 bytes differ, from 1: [09, 03] instead of [02, 03]")]
    fn a_difference_is_shown() {
        assert_same(&[1, 9, 3], &[1, 2, 3], format_args!("case"));
    }
}
