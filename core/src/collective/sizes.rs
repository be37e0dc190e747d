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
    fn no_rule_sends_a_reduction_to_copy_engines() {
        let limit = |kind| copy_bytes(&kind, Geometry { sms: 132, software: false }, true);
        assert_eq!([limit(Kind::AllGather), limit(Kind::SendRecv)], [64 << 20; 2]);
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::Reduce { root: 0 }] {
            assert_eq!(limit(kind), 0, "a table has to say it");
        }
    }
}
