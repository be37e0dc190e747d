//! Test data that depends on rank, index and iteration, so that stale, foreign, shifted and missing
//! bytes are wrong.

use aqueduct::collective::CollectiveConfig;
use aqueduct::plan::{Element, Kind, Reduction};

mod types;

pub(crate) use types::{all_variants, elements, outputs, variants};

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

/// The ways of an all-reduce on buffers that were not shown to the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Packets,
    TwoShot,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Packets, Self::TwoShot];

    /// As [`aqueduct::collective::Collective::algorithm`] says.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::TwoShot => "two-shot",
        }
    }

    /// Settings with which every message of up to 128 KiB goes this way.
    pub(crate) fn config(self, variants: impl IntoIterator<Item = (Element, Reduction)>) -> CollectiveConfig {
        let most = if self == Self::Packets { 128 << 10 } else { 0 };
        CollectiveConfig::default().with_variants(variants).with_packet_bytes(most).with_line_bytes(0)
    }
}

/// The result of an all-reduce of all `ranks`' [`elements`].
pub(crate) fn reduced(ty: Element, op: Reduction, ranks: u32, iteration: u32, count: usize) -> Vec<u8> {
    let inputs: Vec<_> = (0..ranks).map(|rank| elements(ty, rank, iteration, count)).collect();
    let outputs = outputs(&Kind::AllReduce, ty, op, &inputs);
    outputs.into_iter().flatten().next().expect("an all-reduce has a result on every rank")
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
