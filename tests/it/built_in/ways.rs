//! Ways that a caller asks for: LL128 packets, copy engines and pushing.

use aqueduct::ErrorKind;
use aqueduct::plan::{Element, Kind, Reduction};

use super::{Bench, PACKETS, PLACES, Place, config, kinds};
use crate::group::{Rank, soon};

/// The smallest message that copy engines move.
const COPIES: usize = 1024;
/// The smallest message that is pushed.
const PUSHED: usize = 4096;
/// A slice of one on the software device.
const SLICE: usize = 256 << 10;

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

/// Larger all-reduces pushed into scratch, if the caller says so: in place and not, in one slice and in several, captured, and between
/// calls of the other ways. Two ranks push nothing, nor does another collective.
pub(super) fn pushes(rank: &Rank) {
    let settings = || config().with_packet_bytes(256).with_push_bytes(PUSHED as u64);
    let usual = Bench::new(rank, Kind::ReduceScatter, settings());
    let count = PUSHED * rank.comm.size() as usize;
    let way = usual.collective.algorithm_on(&usual.shown[0], count, Element::F32, None).unwrap();
    assert_eq!(way, "zero-copy");
    let pushing = rank.comm.size() > 2;
    let mut bench = Bench::with_buffers(rank, Kind::AllReduce, settings(), 3 * SLICE);
    let least = PUSHED / 4;
    let long = if pushing { "push" } else { "zero-copy" };
    for shown in &bench.shown {
        let way = |count: usize| bench.collective.algorithm_on(shown, count, Element::F32, None).unwrap();
        assert_eq!([64, 65, least - 1, least].map(way), ["packets", "zero-copy", "zero-copy", long]);
        assert_eq!(way(SLICE), long, "four slices");
    }
    let hidden = bench.collective.algorithm(false, least, Element::F32, None).unwrap();
    assert_eq!(hidden, "two-shot", "peers reach the outputs");
    for place in [PLACES[1], PLACES[3]] {
        // Chunks that end within a vector, and other ways between.
        for count in [least, 1, least + 1, least - 1, 3 * least + 5, 64] {
            bench.run(place, count, Reduction::Sum);
            bench.run(place, count, Reduction::Max);
        }
        bench.replays(place, least + 3);
        if pushing {
            in_slices(&mut bench, place);
        }
    }
    if pushing {
        nothing_is_done_on_short_buffers(&mut bench);
    }
    rank.barrier();
}

/// Also a last slice that is shorter than a vector for each rank.
fn in_slices(bench: &mut Bench<'_>, place: Place) {
    let says = bench.collective.explain(place.in_place, true, SLICE, Element::F32, None).unwrap();
    let words =
        format!("{} bytes are at least {PUSHED}, and the buffers are shown to the peers: pushed", 4 * SLICE);
    assert!(says.contains(&words) && says.contains("the caller's push_bytes"), "{says}");
    for count in [SLICE / 4 + 1, SLICE / 4, SLICE / 2 + 1027] {
        bench.run(place, count, Reduction::Sum);
    }
    bench.replays(place, SLICE / 4 + 514);
}

/// A rank whose buffer ends within the second slice is found out before the first is launched.
fn nothing_is_done_on_short_buffers(bench: &mut Bench<'_>) {
    let (rank, count) = (bench.rank, SLICE / 2);
    let short = rank.buffer(if rank.me() == 1 { 2 * SLICE - 4 } else { 2 * SLICE });
    let shown = bench.collective.buffers(&bench.buffers[0], &short, soon()).unwrap();
    let error = bench.collective.launch_on(&bench.stream, &shown, count, Element::F32, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
    let words = match rank.me() {
        1 => "needs 524288 bytes of output, which has 524284",
        _ => "the buffer that rank 1 has shown has 524284 bytes; this call needs 524288",
    };
    assert!(error.to_string().contains(words), "{error} does not say {words}");
    rank.barrier();
    bench.run(PLACES[3], PUSHED, Reduction::Sum);
}
