//! Built-in collectives as plans, between threads with a device each and between processes.

mod errors;
mod given;
mod over_hosts;
mod retried;
mod types;
mod ways;

use std::sync::Arc;

use aqueduct::collective::{Barrier, Collective, CollectiveBuffers, CollectiveConfig};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::{Element, Kind, Reduction, oracle};

use crate::data::mix;
use crate::group::{Rank, groups_of_ranks, soon};

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
        // Not what a table says that comes with the library.
        .with_line_bytes(0)
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
    /// Sums do not depend on the order of the additions.
    exact: bool,
}

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, kind: Kind, config: CollectiveConfig) -> Self {
        Self::with_buffers(rank, kind, config, 1 << 17)
    }

    /// With buffers of so many bytes.
    fn with_buffers(rank: &'a Rank, kind: Kind, config: CollectiveConfig, bytes: usize) -> Self {
        let collective = Collective::prepare(&rank.comm, kind, config, soon()).unwrap();
        let buffers = [rank.buffer(bytes), rank.buffer(bytes)];
        let [first, second] = &buffers;
        let apart = collective.buffers(first, second, soon()).unwrap();
        let one = collective.buffers(first, first, soon()).unwrap();
        let stream = Stream::new(rank.comm.context()).unwrap();
        Self { rank, collective, stream, buffers, shown: [apart, one], call: 0, exact: false }
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

    /// Data whose sums depend on the order of the additions, unless they are to be exact.
    fn data(&self, rank: u32, count: usize) -> Vec<f32> {
        let value = |mixed| if self.exact { (mixed % 1000) as f32 } else { mixed as f32 / 1e5 };
        (0..count).map(|index| value(mix(rank, self.call, index))).collect()
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
        let mut expected = oracle::outputs(kind, &all, combine).swap_remove(self.rank.me() as usize);
        if op == Reduction::Avg {
            let ranks = self.rank.comm.size() as f32;
            expected.iter_mut().flatten().for_each(|sum| *sum /= ranks);
        }
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
        match &expected {
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
            self.collective.algorithm(in_place, inputs * part, Element::F32, None).unwrap()
        };
        let shown = |in_place: bool, part: usize| {
            let buffers = &self.shown[usize::from(in_place)];
            self.collective.algorithm_on(buffers, inputs * part, Element::F32, None).unwrap()
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

    /// A call captured and replayed with new data.
    fn replays(&mut self, place: Place, part: usize) {
        let exec = GraphExec::capture(&self.stream, CaptureMode::ThreadLocal, |_| {
            self.enqueue(place, part, Reduction::Sum)
        })
        .unwrap();
        for _ in 0..3 {
            self.begin(place, part);
            exec.launch(&self.stream).unwrap();
            self.stream.synchronize(soon()).unwrap();
            self.check(place, part, Reduction::Sum);
        }
    }
}

fn run(rank: &Rank) {
    for kind in kinds(rank.comm.size()) {
        let mut bench = Bench::new(rank, kind, config());
        bench.ways();
        bench.sizes();
        for part in [bench.limit(), bench.limit() + 1] {
            bench.replays(PLACES[0], part);
        }
        rank.barrier();
    }
    if [2, 3].contains(&rank.comm.size()) {
        ways::lines(rank);
        ways::copies(rank);
    }
    if rank.comm.size() > 1 {
        ways::pushes(rank);
    }
    barrier(rank);
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

groups_of_ranks! {
    "built_in":
    1 one_thread one_process "needs an NVIDIA GPU",
    2 two_threads two_processes "needs two NVIDIA GPUs",
    3 three_threads three_processes "needs three NVIDIA GPUs",
    4 four_threads four_processes "needs four NVIDIA GPUs",
}
