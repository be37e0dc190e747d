//! All-reduces of every type and reduction, on buffers anywhere, between threads with a device each, and between processes.

use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GraphExec, Stream};
use aqueduct::plan::{Element, Kind, Reduction};

use crate::data::{Way, assert_same, elements, reduced, variants};
use crate::group::{Machine, Rank, config, processes, processes_each, soon, threads};

const CANARY: u8 = 0xA5;
const F32_SUM: (Element, Reduction) = (Element::F32, Reduction::Sum);

/// A prepared all-reduce of one rank, and the number of its calls so far.
struct Bench<'a> {
    rank: &'a Rank,
    stream: Stream,
    reduce: Collective,
    iteration: u32,
}

fn prepare(rank: &Rank, config: CollectiveConfig) -> Collective {
    Collective::prepare(&rank.comm, Kind::AllReduce, config, soon()).unwrap()
}

/// Placement of a call's buffers.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In place.
    Same,
    /// Out of place.
    Apart,
    /// Out of place; input and output start one and three elements after a multiple of 256 bytes.
    Odd,
    /// In place, one element after a multiple of 256 bytes.
    OddSame,
}

const PLACES: [Place; 4] = [Place::Same, Place::Odd, Place::Apart, Place::OddSame];

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, config: CollectiveConfig) -> Self {
        Self {
            rank,
            stream: Stream::new(rank.comm.context()).unwrap(),
            reduce: prepare(rank, config),
            iteration: 0,
        }
    }

    /// Runs one call with fresh data and checks every byte of both buffers, also those outside the call.
    fn call(&mut self, ty: Element, op: Reduction, count: usize, place: Place) {
        self.iteration += 1;
        let (me, ranks) = (self.rank.me(), self.rank.comm.size());
        let (input_at, output_at) = match place {
            Place::Same | Place::Apart => (0, 0),
            Place::Odd => (ty.bytes(), 3 * ty.bytes()),
            Place::OddSame => (ty.bytes(), ty.bytes()),
        };
        let len = count * ty.bytes();
        let framed = |at: usize, data: &[u8]| {
            let mut canvas = vec![CANARY; len + 256];
            canvas[at..at + data.len()].copy_from_slice(data);
            canvas
        };
        let mine = framed(input_at, &elements(ty, me, self.iteration, count));
        let (first, second) = (self.rank.buffer(len + 256), self.rank.buffer(len + 256));
        first.upload(0, &mine, soon()).unwrap();
        second.fill(CANARY, soon()).unwrap();
        let input = first.slice(input_at..input_at + len).unwrap();
        let in_place = matches!(place, Place::Same | Place::OddSame);
        let target = if in_place { &first } else { &second };
        let output = target.slice(output_at..output_at + len).unwrap();
        self.reduce.launch(&self.stream, &input, &output, count, ty, op).unwrap();
        self.stream.synchronize(soon()).unwrap();

        let what = format!(
            "rank {me} of {ranks}: {} {} of {count}, {place:?}, {}, call {}",
            ty.name(),
            op.name(),
            self.reduce.algorithm(in_place, count, ty, None).unwrap(),
            self.iteration
        );
        let mut seen = vec![0; len + 256];
        target.download(0, &mut seen, soon()).unwrap();
        let expected = reduced(ty, op, ranks, self.iteration, count);
        assert_same(&seen, &framed(output_at, &expected), format_args!("{what}"));
        if !in_place {
            first.download(0, &mut seen, soon()).unwrap();
            assert_same(&seen, &mine, format_args!("{what}: the input"));
        }
    }
}

/// Element counts around a packet, a warp, a vector per rank and a slice; they grow and shrink.
const COUNTS: [usize; 21] =
    [0, 1, 2, 3, 4, 5, 31, 257, 1023, 4097, 20_001, 4096, 4095, 1024, 256, 255, 33, 8, 7, 1, 0];

/// Element types and reductions, all of them over all numbers of ranks, with changing sizes and placements.
fn types_and_reductions(rank: &Rank, way: Way) {
    let variants = variants(rank.comm.size());
    let mut bench = Bench::new(rank, way.config(variants.clone()));
    let mut n = 0;
    for (ty, op) in variants {
        let vector = 16 / ty.bytes();
        for count in [1021, vector + 1, if op == Reduction::Sum { 0 } else { 3 }, vector - 1] {
            bench.call(ty, op, count, PLACES[n % 4]);
            n += 1;
        }
        // Shift the placement, or each count would always get the same one.
        n += 1;
    }
    rank.barrier();
}

/// Sizes that grow and shrink from one call to the next.
fn sizes(rank: &Rank, way: Way) {
    let variants = [F32_SUM, (Element::Bf16, Reduction::Sum)];
    let mut bench = Bench::new(rank, way.config(variants));
    if rank.comm.size() > 1 {
        let ways = COUNTS.map(|count| bench.reduce.algorithm(true, count, Element::F32, None).unwrap());
        assert_eq!(ways, [way.name(); COUNTS.len()]);
    }
    for (ty, op) in variants {
        for (n, count) in COUNTS.into_iter().enumerate() {
            bench.call(ty, op, count, PLACES[n % 4]);
        }
    }
    rank.barrier();
}

/// The library's choice of a way: sizes at the limit and one element below and above it, alternating. Whatever table comes with the
/// library for these devices, no LL128 packets.
fn choice(rank: &Rank) {
    let config = CollectiveConfig::default().with_variants([F32_SUM]).with_line_bytes(0);
    let mut bench = Bench::new(rank, config);
    let way = |count| bench.reduce.algorithm(false, count, Element::F32, None).unwrap();
    let count =
        (1..=1 << 18).rev().find(|&count| way(count) == "packets").expect("small calls go as packets");
    // One rank alone has nothing to exchange.
    let larger = if rank.comm.size() == 1 { "zero-copy" } else { "two-shot" };
    assert_eq!(way(count + 1), larger, "larger calls go through scratch");
    for (n, count) in [count, count + 1, 3, count - 1, count + 1, 5, count].into_iter().enumerate() {
        bench.call(F32_SUM.0, F32_SUM.1, count, PLACES[n % 4]);
    }
    rank.barrier();
}

/// A captured sequence of calls, replayed with fresh input each time, then many times without the host in between.
fn graph_replay(rank: &Rank, way: Way) {
    const COUNT: usize = 1500;
    let (me, ranks) = (rank.me(), rank.comm.size());
    let reduce = prepare(rank, way.config([F32_SUM, (Element::I32, Reduction::Sum)]));
    let stream = Stream::new(rank.comm.context()).unwrap();
    let (input, output, total) = (rank.buffer(COUNT * 4), rank.buffer(COUNT * 4), rank.buffer(COUNT * 4));
    let all = |buffer: &std::sync::Arc<aqueduct::gpu::GpuBuffer>| buffer.slice(..).unwrap();
    let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
        reduce.launch(stream, &all(&input), &all(&output), COUNT, Element::F32, Reduction::Sum)?;
        reduce.launch(stream, &all(&total), &all(&total), COUNT, Element::I32, Reduction::Sum)?;
        // A second call of another size, so that sizes also change within a replay.
        reduce.launch(stream, &all(&total), &all(&total), 3, Element::I32, Reduction::Sum)
    })
    .unwrap();
    // In place, one rank alone has nothing to do.
    assert_eq!(graph.nodes(), if ranks == 1 { 1 } else { 3 });
    let started = elements(Element::I32, me, 1000, COUNT);
    total.upload(0, &started, soon()).unwrap();
    let mut seen = vec![0; COUNT * 4];
    for iteration in 0..4 {
        input.upload(0, &elements(Element::F32, me, iteration, COUNT), soon()).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        output.download(0, &mut seen, soon()).unwrap();
        let expected = reduced(Element::F32, Reduction::Sum, ranks, iteration, COUNT);
        assert_same(&seen, &expected, format_args!("rank {me}, {way:?}, replay {iteration}"));
    }
    for _ in 0..6 {
        graph.launch(&stream).unwrap();
    }
    // A plain call after the replays uses the same scratch memory.
    reduce.launch(&stream, &all(&total), &all(&total), COUNT, Element::I32, Reduction::Sum).unwrap();
    stream.synchronize(soon()).unwrap();
    total.download(0, &mut seen, soon()).unwrap();
    // The first call sums over the ranks; each later one multiplies by their number.
    let mut expected = reduced(Element::I32, Reduction::Sum, ranks, 1000, COUNT);
    for (i, value) in expected.chunks_exact_mut(4).enumerate() {
        let later_calls = if i < 3 { 20 } else { 10 };
        let sum = i32::from_le_bytes(value.try_into().unwrap());
        let product = sum.wrapping_mul(ranks.cast_signed().wrapping_pow(later_calls));
        value.copy_from_slice(&product.to_le_bytes());
    }
    assert_same(&seen, &expected, format_args!("rank {me}, {way:?}, ten replays and a call"));
    rank.barrier();
}

/// Every rank refuses invalid calls, and the next valid call works.
fn refusals(rank: &Rank) {
    let mut bench = Bench::new(rank, CollectiveConfig::default().with_variants([F32_SUM]));
    let (a, b) = (rank.buffer(64), rank.buffer(64));
    let (whole, other) = (a.slice(..).unwrap(), b.slice(..).unwrap());
    let refused = |input: &DeviceSlice, output: &DeviceSlice, count, op, words: &str| {
        let error = bench.reduce.launch(&bench.stream, input, output, count, Element::F32, op).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.message().contains(words), "{error}");
    };
    refused(&whole, &other, 17, Reduction::Sum, "this call needs 68 bytes of input, which has 64");
    refused(
        &whole,
        &other.slice(..60).unwrap(),
        16,
        Reduction::Sum,
        "this call needs 64 bytes of output, which has 60",
    );
    refused(&whole, &other, usize::MAX / 2, Reduction::Sum, "exceed the address space");
    refused(
        &whole.slice(1..).unwrap(),
        &other,
        1,
        Reduction::Sum,
        "is not aligned to its elements of 4 bytes",
    );
    refused(&whole, &whole.slice(4..).unwrap(), 15, Reduction::Sum, "overlap; they must lie apart");
    refused(
        &whole,
        &other,
        1,
        Reduction::Max,
        "f32 max was not prepared; name it in CollectiveConfig::with_variants",
    );
    bench.call(Element::F32, Reduction::Sum, 100, Place::Apart);
    rank.barrier();
}

/// All cases for ranks that are threads: every number of ranks, both ways.
fn in_threads(machine: Machine, ranks: u32, test: &str) {
    threads(machine, ranks, test, |rank| {
        for way in Way::ALL {
            types_and_reductions(&rank, way);
            sizes(&rank, way);
            graph_replay(&rank, way);
        }
        choice(&rank);
        refusals(&rank);
    });
}

/// Fewer cases for ranks that are processes: they share memory differently but reduce alike.
fn in_processes(machine: Machine, ranks: u32, test: &str) {
    processes(machine, ranks, test, |rank| {
        for way in Way::ALL {
            sizes(&rank, way);
            graph_replay(&rank, way);
        }
    });
}

/// The grid of the two-shot plan is computed from what all ranks know, here the smallest device: rank 1 has one
/// multiprocessor and would launch one block, where the others launch two that wait for their like.
#[test]
fn devices_of_different_sizes() {
    let sizes = |rank| vec![("AQUEDUCT_SOFT_SMS", if rank == 1 { "1" } else { "16" }.to_owned())];
    let test = "collectives::devices_of_different_sizes";
    processes_each(Machine::Software, 3, test, config(), sizes, |rank| {
        const COUNT: usize = 20_000;
        let multiprocessors = rank.comm.context().device().sm_count().unwrap();
        assert_eq!(multiprocessors, if rank.me() == 1 { 1 } else { 16 });
        let all: Vec<_> =
            rank.comm.peers().iter().map(|peer| peer.device.as_ref().unwrap().multiprocessors).collect();
        assert_eq!(all, [16, 1, 16], "every rank knows every device");
        let reduce = prepare(&rank, Way::TwoShot.config([F32_SUM]));
        let stream = Stream::new(rank.comm.context()).unwrap();
        let buffer = rank.buffer(4 * COUNT);
        buffer.upload(0, &elements(F32_SUM.0, rank.me(), 1, COUNT), soon()).unwrap();
        let whole = buffer.slice(..).unwrap();
        reduce.launch(&stream, &whole, &whole, COUNT, F32_SUM.0, F32_SUM.1).unwrap();
        stream.synchronize(Duration::from_secs(20)).expect("no block waits for one that does not exist");
        let mut seen = vec![0; 4 * COUNT];
        buffer.download(0, &mut seen, soon()).unwrap();
        assert_same(&seen, &reduced(F32_SUM.0, F32_SUM.1, 3, 1, COUNT), format_args!("two-shot"));
        rank.barrier();
    });
}

macro_rules! groups {
    ($($ranks:literal $threads:ident $processes:ident $need:literal,)+) => {
        mod soft {
            use crate::group::Machine;
            $(#[test]
            fn $threads() {
                let name = concat!("collectives::soft::", stringify!($threads));
                super::in_threads(Machine::Software, $ranks, name);
            }
            #[test]
            fn $processes() {
                let name = concat!("collectives::soft::", stringify!($processes));
                super::in_processes(Machine::Software, $ranks, name);
            })+
        }
        mod hardware {
            use crate::group::Machine;
            $(#[test]
            #[ignore = $need]
            fn $threads() {
                let name = concat!("collectives::hardware::", stringify!($threads));
                super::in_threads(Machine::Hardware, $ranks, name);
            }
            #[test]
            #[ignore = $need]
            fn $processes() {
                let name = concat!("collectives::hardware::", stringify!($processes));
                super::in_processes(Machine::Hardware, $ranks, name);
            })+
        }
    };
}

groups! {
    1 one_thread one_process "needs an NVIDIA GPU",
    2 two_threads two_processes "needs two NVIDIA GPUs",
    3 three_threads three_processes "needs three NVIDIA GPUs",
    4 four_threads four_processes "needs four NVIDIA GPUs",
}
