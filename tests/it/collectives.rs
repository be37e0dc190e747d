//! All-reduce between threads with a device each, and between processes.

use std::time::Duration;

use aqueduct::ErrorKind;
use aqueduct::collective::{Algorithm, AllReduce, AllReduceConfig, ElementType, ReduceOp};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GraphExec, Stream};

use crate::data::{assert_same, elements, reduced};
use crate::group::{Machine, Rank, config, processes, processes_each, soon, threads};

const CANARY: u8 = 0xA5;
const F32_SUM: (ElementType, ReduceOp) = (ElementType::F32, ReduceOp::Sum);
const ALGORITHMS: [Algorithm; 2] = [Algorithm::OneShotLl16, Algorithm::TwoShotHb];

/// A prepared all-reduce of one rank, and the number of its calls so far.
struct Bench<'a> {
    rank: &'a Rank,
    stream: Stream,
    reduce: AllReduce,
    iteration: u32,
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
    fn new(rank: &'a Rank, config: AllReduceConfig) -> Self {
        Self {
            rank,
            stream: Stream::new(rank.comm.context()).unwrap(),
            reduce: AllReduce::prepare(&rank.comm, config, soon()).unwrap(),
            iteration: 0,
        }
    }

    /// Runs one call with fresh data and checks every byte of both buffers, also those outside the call.
    fn call(&mut self, ty: ElementType, op: ReduceOp, count: usize, place: Place) {
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
            self.reduce.algorithm(len),
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

/// Every element type with every reduction, with changing sizes and placements.
fn types_and_reductions(rank: &Rank, algorithm: Algorithm) {
    let mut bench = Bench::new(rank, AllReduceConfig::default().with_algorithm(algorithm));
    let mut n = 0;
    for ty in ElementType::ALL {
        for op in ReduceOp::ALL {
            for count in [1021, 8, 0, 517] {
                bench.call(ty, op, count, PLACES[n % 4]);
                n += 1;
            }
            // Shift the placement, or each count would always get the same one.
            n += 1;
        }
    }
    rank.barrier();
}

/// Sizes that grow and shrink from one call to the next.
fn sizes(rank: &Rank, algorithm: Algorithm) {
    let variants = [F32_SUM, (ElementType::Bf16, ReduceOp::Sum)];
    let config = AllReduceConfig::default().with_variants(variants).with_algorithm(algorithm);
    let mut bench = Bench::new(rank, config);
    for (ty, op) in variants {
        for (n, count) in COUNTS.into_iter().enumerate() {
            bench.call(ty, op, count, PLACES[n % 4]);
        }
    }
    rank.barrier();
}

/// The library's choice of an algorithm: sizes at the limit and one element below and above it, alternating.
fn choice(rank: &Rank) {
    let mut bench = Bench::new(rank, AllReduceConfig::default().with_variants([F32_SUM]));
    let serves = |bytes| bench.reduce.algorithm(bytes);
    let limit =
        (1..=1 << 20).rev().find(|&b| serves(b) == Algorithm::OneShotLl16).expect("small calls use one-shot");
    assert_eq!(serves(limit + 1), Algorithm::TwoShotHb, "larger calls use two-shot");
    let count = limit / 4;
    for (n, count) in [count, count + 1, 3, count - 1, count + 1, 5, count].into_iter().enumerate() {
        bench.call(F32_SUM.0, F32_SUM.1, count, PLACES[n % 4]);
    }
    rank.barrier();
}

/// A captured sequence of calls, replayed with fresh input each time, then many times without the host in between.
fn graph_replay(rank: &Rank, algorithm: Algorithm) {
    const COUNT: usize = 1500;
    let (me, ranks) = (rank.me(), rank.comm.size());
    let variants = [F32_SUM, (ElementType::I32, ReduceOp::Sum)];
    let config = AllReduceConfig::default().with_variants(variants).with_algorithm(algorithm);
    let reduce = AllReduce::prepare(&rank.comm, config, soon()).unwrap();
    let stream = Stream::new(rank.comm.context()).unwrap();
    let (input, output, total) = (rank.buffer(COUNT * 4), rank.buffer(COUNT * 4), rank.buffer(COUNT * 4));
    let all = |buffer: &std::sync::Arc<aqueduct::gpu::GpuBuffer>| buffer.slice(..).unwrap();
    let graph = GraphExec::capture(&stream, CaptureMode::ThreadLocal, |stream| {
        reduce.launch(stream, &all(&input), &all(&output), COUNT, ElementType::F32, ReduceOp::Sum)?;
        reduce.launch(stream, &all(&total), &all(&total), COUNT, ElementType::I32, ReduceOp::Sum)?;
        // A second call of another size, so that sizes also change within a replay.
        reduce.launch(stream, &all(&total), &all(&total), 3, ElementType::I32, ReduceOp::Sum)
    })
    .unwrap();
    assert_eq!(graph.nodes(), 3);
    let started = elements(ElementType::I32, me, 1000, COUNT);
    total.upload(0, &started, soon()).unwrap();
    let mut seen = vec![0; COUNT * 4];
    for iteration in 0..4 {
        input.upload(0, &elements(ElementType::F32, me, iteration, COUNT), soon()).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        output.download(0, &mut seen, soon()).unwrap();
        let expected = reduced(ElementType::F32, ReduceOp::Sum, ranks, iteration, COUNT);
        assert_same(&seen, &expected, format_args!("rank {me}, {algorithm}, replay {iteration}"));
    }
    for _ in 0..6 {
        graph.launch(&stream).unwrap();
    }
    // A plain call after the replays uses the same scratch memory.
    reduce.launch(&stream, &all(&total), &all(&total), COUNT, ElementType::I32, ReduceOp::Sum).unwrap();
    stream.synchronize(soon()).unwrap();
    total.download(0, &mut seen, soon()).unwrap();
    // The first call sums over the ranks; each later one multiplies by their number.
    let mut expected = reduced(ElementType::I32, ReduceOp::Sum, ranks, 1000, COUNT);
    for (i, value) in expected.chunks_exact_mut(4).enumerate() {
        let later_calls = if i < 3 { 20 } else { 10 };
        let sum = i32::from_le_bytes(value.try_into().unwrap());
        let product = sum.wrapping_mul(ranks.cast_signed().wrapping_pow(later_calls));
        value.copy_from_slice(&product.to_le_bytes());
    }
    assert_same(&seen, &expected, format_args!("rank {me}, {algorithm}, ten replays and a call"));
    rank.barrier();
}

/// Every rank refuses invalid calls, and the next valid call works.
fn refusals(rank: &Rank) {
    let mut bench = Bench::new(rank, AllReduceConfig::default().with_variants([F32_SUM]));
    let (a, b) = (rank.buffer(64), rank.buffer(64));
    let (whole, other) = (a.slice(..).unwrap(), b.slice(..).unwrap());
    let refused = |input: &DeviceSlice, output: &DeviceSlice, count, op, words: &str| {
        let error =
            bench.reduce.launch(&bench.stream, input, output, count, ElementType::F32, op).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        assert!(error.message().contains(words), "{error}");
    };
    refused(&whole, &other, 17, ReduceOp::Sum, "17 elements of f32 need 68 bytes, the input has 64");
    refused(&whole, &other.slice(..60).unwrap(), 16, ReduceOp::Sum, "the output has 60");
    refused(&whole, &other, usize::MAX / 2, ReduceOp::Sum, "exceed the address space");
    refused(
        &whole.slice(1..).unwrap(),
        &other,
        1,
        ReduceOp::Sum,
        "is not aligned to its elements of 4 bytes",
    );
    refused(&whole, &whole.slice(4..).unwrap(), 15, ReduceOp::Sum, "input and output overlap");
    refused(
        &whole,
        &other,
        1,
        ReduceOp::Max,
        "f32 max was not prepared; name it in AllReduceConfig::variants",
    );
    bench.call(ElementType::F32, ReduceOp::Sum, 100, Place::Apart);
    rank.barrier();
}

/// All cases for ranks that are threads: every number of ranks, both algorithms.
fn in_threads(machine: Machine, ranks: u32, test: &str) {
    threads(machine, ranks, test, |rank| {
        for algorithm in ALGORITHMS {
            types_and_reductions(&rank, algorithm);
            sizes(&rank, algorithm);
            graph_replay(&rank, algorithm);
        }
        choice(&rank);
        refusals(&rank);
    });
}

/// Fewer cases for ranks that are processes: they share memory differently but reduce alike.
fn in_processes(machine: Machine, ranks: u32, test: &str) {
    processes(machine, ranks, test, |rank| {
        for algorithm in ALGORITHMS {
            sizes(&rank, algorithm);
            graph_replay(&rank, algorithm);
        }
    });
}

/// The grid of the two-shot algorithm is computed from what all ranks know, here the smallest device: rank 1 has one
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
        let config = AllReduceConfig::default().with_variants([F32_SUM]).with_algorithm(Algorithm::TwoShotHb);
        let reduce = AllReduce::prepare(&rank.comm, config, soon()).unwrap();
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
