//! Built-in collectives as plans, between threads with a device each and between processes.

use std::sync::Arc;

use aqueduct::ErrorKind;
use aqueduct::collective::{Barrier, Collective, CollectiveBuffers, CollectiveConfig};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::program::{CollectiveProgram, Pattern, SyncType};
use aqueduct::plan::{Element, Kind, Reduction, oracle};

use crate::data::mix;
use crate::group::{Machine, Rank, groups_of_ranks, soon, threads};

const CANARY: u8 = 0xA5;
/// Bytes before and behind a call's data that nothing may touch.
const GUARD: usize = 64;
/// The largest message that goes as packets, and memory for slices of messages on buffers that are not shown.
const PACKETS: u64 = 4096;
const STAGING: usize = 1024;
const F32_SUM: (Element, Reduction) = (Element::F32, Reduction::Sum);

fn config() -> CollectiveConfig {
    CollectiveConfig::default()
        .with_variants([F32_SUM, (Element::F32, Reduction::Max)])
        .with_packet_bytes(PACKETS)
        .with_staging_bytes(STAGING)
}

fn kinds(ranks: u32) -> Vec<Kind> {
    let root = ranks - 1;
    vec![
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Broadcast { root },
        Kind::Reduce { root },
        Kind::Gather { root },
        Kind::Scatter { root },
        Kind::SendRecv,
    ]
}

/// Where a call's buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    in_place: bool,
    shown: bool,
    /// Elements from the beginning of a buffer that is not shown to the data.
    odd: usize,
}

const PLACES: [Place; 6] = [
    Place { in_place: false, shown: false, odd: 0 },
    Place { in_place: true, shown: true, odd: 0 },
    Place { in_place: false, shown: false, odd: 3 },
    Place { in_place: false, shown: true, odd: 0 },
    Place { in_place: true, shown: false, odd: 0 },
    Place { in_place: true, shown: false, odd: 1 },
];

/// A prepared collective of one rank, and the number of its calls so far.
struct Bench<'a> {
    rank: &'a Rank,
    collective: Collective,
    stream: Stream,
    buffers: [Arc<GpuBuffer>; 2],
    shown: [CollectiveBuffers; 2],
    call: u32,
}

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, kind: Kind, config: CollectiveConfig) -> Self {
        let collective = Collective::prepare(&rank.comm, kind, config, soon()).unwrap();
        let buffers = [rank.buffer(1 << 17), rank.buffer(1 << 17)];
        let [first, second] = &buffers;
        let apart = collective.buffers(first, second, soon()).unwrap();
        let one = collective.buffers(first, first, soon()).unwrap();
        let stream = Stream::new(rank.comm.context()).unwrap();
        Self { rank, collective, stream, buffers, shown: [apart, one], call: 0 }
    }

    /// Parts of the whole input and output.
    fn whole(&self) -> [usize; 2] {
        let ranks = self.rank.comm.size() as usize;
        match self.collective.kind() {
            Kind::AllGather | Kind::Gather { .. } => [1, ranks],
            Kind::ReduceScatter | Kind::Scatter { .. } => [ranks, 1],
            Kind::AllToAll => [ranks, ranks],
            _ => [1, 1],
        }
    }

    /// Parts of this rank's input and output.
    fn parts(&self) -> [usize; 2] {
        let [inputs, outputs] = self.whole();
        match *self.collective.kind() {
            Kind::Gather { root } if root != self.rank.me() => [inputs, 0],
            Kind::Scatter { root } if root != self.rank.me() => [0, outputs],
            _ => [inputs, outputs],
        }
    }

    /// Where input and output begin in their buffers, in elements, for parts of `part` elements.
    fn at(&self, place: Place, part: usize) -> [usize; 2] {
        let me = self.rank.me() as usize;
        let within = match (place.in_place, self.parts()) {
            (true, [1, outputs]) if outputs > 1 => [me * part, 0],
            (true, [inputs, 1]) if inputs > 1 => [0, me * part],
            _ => [0, 0],
        };
        within.map(|at| at + place.odd)
    }

    /// Data whose sums depend on the order of the additions.
    fn data(&self, rank: u32, count: usize) -> Vec<f32> {
        (0..count).map(|index| mix(rank, self.call, index) as f32 / 1e5).collect()
    }

    fn slice(&self, output: bool, place: Place, at: usize, len: usize) -> DeviceSlice {
        let buffer = &self.buffers[usize::from(output && !place.in_place)];
        buffer.slice(4 * at..4 * (at + len)).unwrap()
    }

    /// Fills both buffers for the next call.
    fn begin(&mut self, place: Place, part: usize) {
        self.call += 1;
        let count = self.parts()[0] * part;
        for buffer in &self.buffers {
            buffer.fill(CANARY, soon()).unwrap();
        }
        let input = self.slice(false, place, self.at(place, part)[0], count);
        input.upload(0, &self.data(self.rank.me(), count), soon()).unwrap();
    }

    fn enqueue(&self, place: Place, part: usize, op: Reduction) -> aqueduct::Result<()> {
        let [inputs, outputs] = self.parts().map(|parts| parts * part);
        let count = self.whole()[0] * part;
        if place.shown {
            let buffers = &self.shown[usize::from(place.in_place)];
            return self.collective.launch_on(&self.stream, buffers, count, Element::F32, op);
        }
        let [input_at, output_at] = self.at(place, part);
        let input = self.slice(false, place, input_at, inputs);
        let output = self.slice(true, place, output_at, outputs);
        self.collective.launch(&self.stream, &input, &output, count, Element::F32, op)
    }

    /// Compares the result with the definition, and everything that no call may touch with what was there.
    fn check(&self, place: Place, part: usize, op: Reduction) {
        let [inputs, outputs] = self.parts().map(|parts| parts * part);
        let kind = self.collective.kind();
        let what = format!(
            "{kind:?} of {}, rank {}, call {} of {part}, {place:?}, {op:?}",
            self.rank.comm.size(),
            self.rank.me(),
            self.call
        );
        let whole = self.whole()[0] * part;
        let all: Vec<_> = (0..self.rank.comm.size()).map(|rank| self.data(rank, whole)).collect();
        let combine = |a: f32, b: f32| if op == Reduction::Max { a.max(b) } else { a + b };
        let expected = &oracle::outputs(kind, &all, combine)[self.rank.me() as usize];
        let [input_at, output_at] = self.at(place, part);
        let canary = f32::from_bits(u32::from_ne_bytes([CANARY; 4]));
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        // The data with what lies before and behind it.
        let end = place.odd + inputs.max(outputs) + GUARD;
        let seen = |output: bool| {
            let mut seen = vec![0_f32; end];
            self.slice(output, place, 0, end).download(0, &mut seen, soon()).unwrap();
            seen
        };
        let mut wanted = vec![canary; end];
        if !place.in_place {
            let mine = &all[self.rank.me() as usize][..inputs];
            wanted[input_at..input_at + inputs].copy_from_slice(mine);
            assert!(bits(&seen(false)) == bits(&wanted), "{what}: the input");
            wanted.fill(canary);
        }
        let mut seen = seen(true);
        match expected {
            Some(expected) => wanted[output_at..output_at + outputs].copy_from_slice(expected),
            // Nothing is promised about the output in place; otherwise nobody may write it.
            None if place.in_place => seen[output_at..output_at + outputs].fill(canary),
            None => {}
        }
        if place.in_place && inputs > outputs {
            // The rest of an input may hold anything.
            for index in
                (place.odd..place.odd + inputs).filter(|i| !(output_at..output_at + outputs).contains(i))
            {
                seen[index] = canary;
            }
        }
        let wrong = bits(&seen).iter().zip(bits(&wanted)).position(|(seen, wanted)| *seen != wanted);
        assert_eq!(
            wrong,
            None,
            "{what}: {:?} instead of {:?}",
            wrong.map(|i| seen[i]),
            wrong.map(|i| wanted[i])
        );
    }

    fn run(&mut self, place: Place, part: usize, op: Reduction) {
        self.begin(place, part);
        self.enqueue(place, part, op).unwrap();
        self.stream.synchronize(soon()).unwrap();
        self.check(place, part, op);
    }

    /// Elements of a part of the largest message that goes as packets.
    fn limit(&self) -> usize {
        PACKETS as usize / 4 / self.whole().into_iter().max().unwrap_or(1)
    }

    /// Calls of sizes that grow and shrink, at every place.
    fn sizes(&mut self) {
        let (limit, ops) = (self.limit(), [Reduction::Sum, Reduction::Max]);
        // From one packet to several slices; the longest has a short last slice.
        let parts = [1, limit, 5, limit + 1, 0, 4 * limit + 3, limit - 1, 2];
        for place in PLACES {
            for (part, op) in parts.into_iter().zip(ops.into_iter().cycle()) {
                self.run(place, part, op);
            }
        }
        // One place after the other at each size.
        for part in [limit, limit + 1, 3] {
            PLACES.into_iter().for_each(|place| self.run(place, part, Reduction::Sum));
        }
    }

    /// Which way a call goes follows from its size and whether its buffers are shown.
    fn ways(&self) {
        let (limit, inputs) = (self.limit(), self.whole()[0]);
        let way = |in_place: bool, part: usize| {
            self.collective.algorithm(in_place, inputs * part, Element::F32).unwrap()
        };
        let shown = |in_place: bool, part: usize| {
            let buffers = &self.shown[usize::from(in_place)];
            self.collective.algorithm_on(buffers, inputs * part, Element::F32).unwrap()
        };
        // One rank needs nobody, and never to be shown anything.
        let ranks = self.rank.comm.size();
        assert_eq!([false, true].map(|in_place| way(in_place, limit)), ["packets"; 2]);
        assert_eq!([false, true].map(|in_place| shown(in_place, limit)), ["packets"; 2]);
        let hidden = match self.collective.kind() {
            _ if ranks == 1 => "zero-copy",
            Kind::AllReduce => "two-shot",
            _ => "staged",
        };
        assert_eq!(way(false, limit + 1), hidden);
        assert_eq!(shown(false, limit + 1), "zero-copy");
        if ranks > 1 {
            let swaps = matches!(self.collective.kind(), Kind::AllToAll | Kind::SendRecv);
            assert_eq!(shown(true, limit + 1), if swaps { "staged" } else { "zero-copy" });
        }
    }

    /// Calls of all ways captured together, replayed with new data.
    fn replays(&mut self) {
        let apart = PLACES[0];
        for part in [self.limit(), self.limit() + 1] {
            let exec = GraphExec::capture(&self.stream, CaptureMode::ThreadLocal, |_| {
                self.enqueue(apart, part, Reduction::Sum)
            })
            .unwrap();
            for _ in 0..3 {
                self.begin(apart, part);
                exec.launch(&self.stream).unwrap();
                self.stream.synchronize(soon()).unwrap();
                self.check(apart, part, Reduction::Sum);
            }
        }
    }
}

fn run(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let mut bench = Bench::new(rank, kind, config());
        bench.ways();
        bench.sizes();
        bench.replays();
        rank.barrier();
    }
    if [2, 3].contains(&rank.comm.size()) {
        lines(rank);
    }
    barrier(rank);
}

/// Messages of a middling size as LL128 packets, if the caller says so.
fn lines(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let settings = config().with_packet_bytes(256).with_line_bytes(PACKETS);
        let mut bench = Bench::new(rank, kind, settings);
        let (limit, inputs) = (bench.limit(), bench.whole()[0]);
        let way = |part: usize| bench.collective.algorithm(false, inputs * part, Element::F32).unwrap();
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

/// No stream passes a barrier that another has not reached.
fn barrier(rank: &Rank) {
    let barrier = Barrier::prepare(&rank.comm, soon()).unwrap();
    let stream = Stream::new(rank.comm.context()).unwrap();
    for late in 0..rank.comm.size() {
        if rank.me() != late {
            barrier.launch(&stream).unwrap();
            for _ in 0..20 {
                assert!(!stream.is_idle().unwrap(), "rank {late} has not come");
                std::thread::yield_now();
            }
        }
        rank.barrier();
        if rank.me() == late {
            barrier.launch(&stream).unwrap();
        }
        stream.synchronize(soon()).unwrap();
        rank.barrier();
    }
}

/// A plan of the user's own serves the sizes that it was given for and that its chunks divide.
#[test]
fn plans_of_the_users() {
    threads(Machine::Software, 2, "built_in::plans_of_the_users", |rank| {
        let program =
            CollectiveProgram::new("mine", Pattern::all_gather(2, 1)).threads_per_block(64).instances(2);
        for end in program.ranks() {
            let (me, channel) = (end.index(), end.memory_channel(1 - end.index()));
            channel.relaxed_signal(0, SyncType::None);
            channel.relaxed_wait(0, SyncType::After);
            end.copy(end.output().chunk(me), end.input().chunk(0), 0);
            channel.put(program.rank(1 - me).output().chunk(me), end.input().chunk(0), 0);
            channel.signal(0, SyncType::Before);
            channel.wait(0, SyncType::After);
        }
        let plan = program.compile().unwrap();
        let mut bench = Bench::new(&rank, Kind::AllGather, config().with_plan(plan, 800..=8000));
        let way = |shown: bool, count: usize| match shown {
            true => bench.collective.algorithm_on(&bench.shown[0], count, Element::F32).unwrap().to_owned(),
            false => bench.collective.algorithm(false, count, Element::F32).unwrap().to_owned(),
        };
        assert_eq!(
            [98, 99, 100, 1000, 1002].map(|count| way(true, count)),
            ["packets", "packets", "mine", "mine", "zero-copy"]
        );
        assert_eq!(way(true, 101), "packets", "two instances do not divide it");
        assert_eq!(way(false, 100), "packets", "peers reach the plan's buffers");
        for part in [100, 101, 1000, 99] {
            bench.run(PLACES[3], part, Reduction::Sum);
        }
        rank.barrier();
    });
}

#[test]
fn wrong_calls_are_refused_and_do_nothing() {
    threads(Machine::Software, 2, "built_in::wrong_calls_are_refused_and_do_nothing", |rank| {
        let prepare =
            |kind, config| Collective::prepare(&rank.comm, kind, config, soon()).map(drop).unwrap_err();
        let says = |error: aqueduct::Error, words: &str| {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
            assert!(error.to_string().contains(words), "{error} does not say {words}");
        };
        let custom = Kind::Custom("mine".into());
        says(prepare(custom, config()), "mine is no built-in collective; run its plan with plan::Executor");
        says(prepare(Kind::AllReduce, CollectiveConfig::default()), "CollectiveConfig::with_variants");
        // The other rank does not wait for the one that fails.
        if rank.me() == 0 {
            says(prepare(Kind::AllReduce, CollectiveConfig::default()), "CollectiveConfig::with_variants");
        } else {
            let error = prepare(Kind::AllReduce, config());
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            assert!(error.to_string().contains("rank 0 cannot prepare the collective"), "{error}");
        }
        let other = CollectiveProgram::new("other", Pattern::send_recv(2, 1)).build().unwrap();
        says(
            prepare(Kind::AllGather, config().with_plan(other.clone(), 0..=8)),
            "the plan other is one of SendRecv",
        );
        for kind in [Kind::Gather { root: 0 }, Kind::Scatter { root: 1 }] {
            says(prepare(kind, config().with_plan(other.clone(), 0..=8)), "takes no plans of users");
        }
        let variable = CollectiveProgram::new("variable", Pattern::all_to_all(2, 1)).variable_chunks(true);
        let sized = config().with_plan(variable.build().unwrap(), 0..=8);
        says(prepare(Kind::AllToAll, sized), "have sizes of their own, and calls here have one");

        let mut bench = Bench::new(&rank, Kind::ReduceScatter, config());
        let other = Bench::new(&rank, Kind::ReduceScatter, config());
        let [first, second] = bench.buffers.clone();
        let refused = |input: &DeviceSlice, output: &DeviceSlice, count, element, words: &str| {
            let (stream, op) = (&bench.stream, Reduction::Sum);
            says(bench.collective.launch(stream, input, output, count, element, op).unwrap_err(), words);
        };
        let (a, b) = (first.slice(..80).unwrap(), second.slice(..40).unwrap());
        refused(&a, &b, 19, Element::F32, "needs a multiple of 2");
        refused(&a, &b, 22, Element::F32, "needs 88 bytes of input, which has 80");
        refused(&a, &b.slice(..36).unwrap(), 20, Element::F32, "needs 40 bytes of output, which has 36");
        refused(&a.slice(2..).unwrap(), &b, 8, Element::F32, "is not aligned");
        refused(&a, &a.slice(4..).unwrap(), 16, Element::F32, "must lie apart");
        refused(&a, &b, 20, Element::I32, "was not prepared");
        let on =
            |buffers| bench.collective.launch_on(&bench.stream, buffers, 8, Element::F32, Reduction::Sum);
        says(on(&other.shown[0]).unwrap_err(), "shown for another collective");
        let long =
            bench.collective.launch_on(&bench.stream, &bench.shown[0], 1 << 16, Element::F32, Reduction::Sum);
        says(long.unwrap_err(), "bytes of input, which has 131072");
        // Ranks must agree whether a call on shown buffers is in place.
        let output = if rank.me() == 0 { &first } else { &second };
        let error = bench.collective.buffers(&first, output, soon()).map(drop).unwrap_err();
        says(error, "give one on all ranks or two on all");
        bench.run(PLACES[3], 5, Reduction::Sum);
        rank.barrier();
    });
}

groups_of_ranks! {
    "built_in":
    1 one_thread one_process "needs an NVIDIA GPU",
    2 two_threads two_processes "needs two NVIDIA GPUs",
    3 three_threads three_processes "needs three NVIDIA GPUs",
    4 four_threads four_processes "needs four NVIDIA GPUs",
}
