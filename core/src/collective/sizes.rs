//! Sizes of a collective's kernels and memory, the same on every rank.

use super::config::CollectiveConfig;
use super::plans::Shape;
use crate::channel::Geometry;
use crate::plan::Kind;

/// The blocks of kernels that send packets, which have as many of them as the message needs, and of those that reach the peers' buffers,
/// where nothing was measured.
pub(super) fn usual_blocks(geometry: Geometry) -> (u32, u32) {
    if geometry.software { (2, 2) } else { (64, 32) }
}

/// The shape of kernels of up to `blocks` blocks: all of them must be resident on the smallest device.
pub(super) fn shape(geometry: Geometry, blocks: u32) -> Shape {
    let blocks = blocks.min(geometry.sms.max(1));
    let threads = if geometry.software { 128 } else { 512 };
    Shape { ranks: 1, in_place: false, blocks, threads, copy_engines: false, own: false }
}

/// The largest message that goes as packets: as many bytes leave a rank as in the longest one-shot all-reduce.
pub(super) fn packet_bytes(kind: &Kind, ranks: u32, geometry: Geometry) -> u64 {
    let copies = match kind {
        Kind::AllReduce | Kind::Broadcast { .. } | Kind::Reduce { .. } => ranks,
        _ => 2,
    };
    one_shot_limit(copies, geometry.software)
}

/// The smallest message that copy engines move where nothing was measured; 0 for none. Between H200s they move 391 GB/s, and
/// kernels 355 to 373; but they begin later. What reduces has to be measured: its kernels reduce while they move.
pub(super) fn copy_bytes(kind: &Kind, geometry: Geometry, nvlink: bool) -> u64 {
    match kind {
        Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce { .. } => 0,
        _ if geometry.software => 1 << 20,
        _ if nvlink => 64 << 20,
        _ => 0,
    }
}

/// The blocks of kernels that push. On four H200 128 blocks of 512 threads took 292 us for 64 MiB where `zero_copy` took 320 to 326; 96 of
/// them were hardly better than that.
pub(super) fn push_blocks(geometry: Geometry) -> u32 {
    if geometry.software { 2 } else { 128 }
}

/// The fewest blocks for which pushing is worth while, as far as is known.
const FEWEST_PUSH_BLOCKS: u32 = 112;

/// The smallest message that is pushed where the caller says nothing; 0 for none. On four H200, a call of 16 MiB took 87 us, and 89 by
/// `zero_copy`; one of 64 MiB 292, and 320 to 326; one of 4 MiB 29, and 26.
pub(super) fn push_bytes(kind: &Kind, ranks: u32, geometry: Geometry, nvlink: bool) -> u64 {
    let resident = push_blocks(geometry).min(geometry.sms);
    match kind {
        Kind::AllReduce if ranks > 2 && nvlink && !geometry.software && resident >= FEWEST_PUSH_BLOCKS => {
            32 << 20
        }
        _ => 0,
    }
}

/// Bytes of a slice of a message that is pushed; `None` where the scratch is too short for slices that are worth while. A collective may
/// take `scratch`, which is half of what is left, and slices of buffers that peers do not reach have `staging` bytes.
pub(super) fn push_slice(geometry: Geometry, scratch: u64, staging: usize) -> Option<u64> {
    let usual: u64 = if geometry.software { 256 << 10 } else { 64 << 20 };
    // The caller may give `staging` more than its share. Two plans have two such slices each; of the rest, two plans that push take half.
    let rest = scratch.saturating_mul(2).saturating_sub((staging as u64).saturating_mul(4));
    let slice = usual.min(scratch / 8).min(rest / 4);
    // Each slice waits twice for all ranks. On four H200 1 GiB in one took 4.54 ms, in 16 slices of 64 MiB 4.61,
    // and 5.0 by `zero_copy`.
    (slice >= usual / 4).then_some(slice / 16 * 16)
}

/// Bytes of a slice of a large message on buffers that peers do not reach, where a collective may take so much scratch.
pub(super) fn staging_bytes(
    ranks: u32,
    config: &CollectiveConfig,
    geometry: Geometry,
    scratch: u64,
) -> usize {
    let usual: usize = if geometry.software { 256 << 10 } else { 16 << 20 };
    let wanted =
        config.staging_bytes.unwrap_or_else(|| usual.min(usize::try_from(scratch / 8).unwrap_or(usize::MAX)));
    // At least a vector for each rank.
    wanted.max(16 * ranks as usize)
}

/// The largest message that goes as packets where each rank sends it to all others.
///
/// One-shot sends `n - 1` times the bytes at half the efficiency, so the point where its lower latency no longer pays
/// moves down as ranks are added: on 4 H200s it takes 5 us at 128 KiB where two-shot takes 10. An interpreter pays per
/// packet, not per latency, and changes over much earlier.
fn one_shot_limit(ranks: u32, software: bool) -> u64 {
    let total: u64 = if software { 32 << 10 } else { 1 << 20 };
    total / u64::from(ranks.next_power_of_two().max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_packets_falls_with_ranks() {
        let limit = |ranks, software| packet_bytes(&Kind::AllReduce, ranks, Geometry { sms: 132, software });
        assert_eq!(limit(4, false), 256 << 10);
        assert!(limit(16, false) < limit(2, false));
        assert!(limit(4, true) < limit(4, false));
        let all_gather =
            |ranks| packet_bytes(&Kind::AllGather, ranks, Geometry { sms: 132, software: false });
        assert_eq!(all_gather(16), limit(2, false), "of the output, which has a part of each rank");
    }

    #[test]
    fn a_rule_pushes_all_reduces_of_more_than_two_ranks_that_nvlink_joins() {
        let h200 = Geometry { sms: 132, software: false };
        let all_reduce = |ranks, geometry, nvlink| push_bytes(&Kind::AllReduce, ranks, geometry, nvlink);
        assert_eq!([3, 4, 8].map(|ranks| all_reduce(ranks, h200, true)), [32 << 20; 3]);
        assert_eq!([1, 2].map(|ranks| all_reduce(ranks, h200, true)), [0; 2]);
        assert_eq!(all_reduce(4, h200, false), 0);
        assert_eq!(all_reduce(4, Geometry { sms: 112, ..h200 }, true), 32 << 20);
        assert_eq!(all_reduce(4, Geometry { sms: 111, ..h200 }, true), 0, "too few blocks");
        assert_eq!(all_reduce(4, Geometry { software: true, ..h200 }, true), 0);
        assert_eq!(push_bytes(&Kind::ReduceScatter, 4, h200, true), 0);
    }

    #[test]
    fn slices_that_are_pushed_are_as_long_as_there_is_scratch_for() {
        let h200 = Geometry { sms: 132, software: false };
        let slice = |scratch: u64, staging: usize| push_slice(h200, scratch << 20, staging << 20);
        assert_eq!(slice(512, 16), Some(64 << 20));
        assert_eq!(slice(4096, 16), Some(64 << 20));
        assert_eq!(slice(256, 16), Some(32 << 20));
        assert_eq!(slice(128, 16), Some(16 << 20));
        assert_eq!(slice(127, 15), None);
        // Slices of the other way get their scratch first, because the caller has named it.
        assert_eq!(slice(512, 224), Some(32 << 20));
        assert_eq!(slice(512, 256), None);
        assert_eq!(push_slice(Geometry { software: true, ..h200 }, 512 << 20, 1024), Some(256 << 10));
    }

    #[test]
    fn no_rule_sends_a_reduction_to_copy_engines() {
        let limit = |kind| copy_bytes(&kind, Geometry { sms: 132, software: false }, true);
        assert_eq!([limit(Kind::AllGather), limit(Kind::SendRecv)], [64 << 20; 2]);
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 0 }] {
            assert_eq!(limit(kind), 0, "a table has to say it");
        }
    }
}
