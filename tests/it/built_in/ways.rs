//! Ways that a caller asks for: LL128 packets and copy engines.

use aqueduct::plan::{Element, Kind, Reduction};

use super::{Bench, PACKETS, PLACES, config, kinds};
use crate::group::Rank;

/// The smallest message that copy engines move.
const COPIES: usize = 1024;

/// Messages of a middling size as LL128 packets, if the caller says so.
pub(super) fn lines(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let settings = config().with_packet_bytes(256).with_line_bytes(PACKETS);
        let mut bench = Bench::new(rank, kind, settings);
        let (limit, inputs) = (bench.limit(), bench.whole()[0]);
        let way = |part: usize| bench.collective.algorithm(false, inputs * part, Element::F32, None).unwrap();
        assert_eq!(way(limit), "lines");
        assert_ne!(way(limit + 1), "lines");
        assert_eq!(way(1), "packets");
        for place in &PLACES[..3] {
            for part in [limit, limit - 1, limit / 2 + 1] {
                bench.run(*place, part, Reduction::Sum);
            }
        }
        rank.barrier();
    }
}

/// Larger messages by copy engines, if the caller says so: in place and not, captured, and between calls of kernels.
pub(super) fn copies(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let settings = config().with_packet_bytes(256).with_copy_bytes(COPIES as u64);
        // Two ranks reduce in the output what engines have brought there.
        let pair = rank.comm.size() == 2;
        let [out_of_place, in_place] = match kind {
            Kind::Reduce { .. } => ["zero-copy"; 2],
            Kind::ReduceScatter if !pair => ["zero-copy"; 2],
            Kind::AllReduce | Kind::ReduceScatter if pair => ["copy-engine", "zero-copy"],
            Kind::AllToAll | Kind::SendRecv => ["copy-engine", "staged"],
            _ => ["copy-engine"; 2],
        };
        let mut bench = Bench::new(rank, kind, settings);
        let whole = bench.whole();
        let parts = whole.into_iter().max().unwrap();
        let least = (COPIES / 4).div_ceil(parts);
        let way = |in_place: bool, part: usize| {
            let buffers = &bench.shown[usize::from(in_place)];
            bench.collective.algorithm_on(buffers, whole[0] * part, Element::F32, None).unwrap()
        };
        assert_eq!([way(false, least), way(true, least)], [out_of_place, in_place]);
        assert_eq!(way(false, least - 1), "zero-copy");
        let hidden = bench.collective.algorithm(false, whole[0] * least, Element::F32, None).unwrap();
        assert_ne!(hidden, "copy-engine", "peers reach the buffers");
        for place in [PLACES[1], PLACES[3]] {
            // Chunks that end within a vector, and messages that are shorter than all chunks.
            for part in [least, least - 1, 3 * least + 5, least + 1, 8 * least] {
                bench.run(place, part, Reduction::Sum);
            }
            bench.replays(place, least + 3);
        }
        rank.barrier();
    }
}
