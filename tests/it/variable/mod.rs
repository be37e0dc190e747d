//! Collectives whose sizes only the device knows, and groups of sends and receives.

mod groups;
mod over_hosts;
mod parts;
mod tables;

use std::sync::Arc;

use aqueduct::collective::{CollectiveConfig, VariableBuffers, VariableCollective, VariableCounts};
use aqueduct::gpu::{CaptureMode, DeviceSlice, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::{Element, Kind};

use crate::data::{assert_same, bytes};
use crate::group::{Machine, Rank, config, groups_of_ranks, soon, threads_with};
use tables::{Draw, ROOM, Tables};

const CANARY: u8 = 0xA5;
/// Bytes behind the data that nothing may touch.
const GUARD: usize = 64;

/// A prepared all-to-all of one rank.
struct Bench<'a> {
    rank: &'a Rank,
    collective: VariableCollective,
    stream: Stream,
    element: Element,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    shown: VariableBuffers,
    /// Counts and offsets that are sent, those that there is room for, and the counts that came.
    arrays: [DeviceSlice; 5],
    call: u32,
    /// Calls are on buffers that the peers do not reach.
    staged: bool,
}

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, element: Element) -> Self {
        let (comm, ranks) = (&rank.comm, rank.comm.size() as usize);
        let config = CollectiveConfig::default().with_staging_bytes(ROOM * element.bytes() + 64);
        let collective = VariableCollective::prepare(comm, Kind::AllToAll, config, soon()).unwrap();
        let [input, output] = [(); 2].map(|()| rank.buffer(ROOM * element.bytes()));
        let shown = collective.buffers(&input, &output, soon()).unwrap();
        let numbers = rank.buffer(5 * 8 * ranks);
        let arrays =
            std::array::from_fn(|which| numbers.slice(8 * ranks * which..8 * ranks * (which + 1)).unwrap());
        let stream = Stream::new(comm.context()).unwrap();
        Self { rank, collective, stream, element, input, output, shown, arrays, call: 0, staged: false }
    }

    fn counts(&self) -> VariableCounts {
        let [sent, from, room, to, received] = &self.arrays;
        VariableCounts::of_pairs(sent, from, room, to).with_received(received)
    }

    fn input_of(&self, rank: u32) -> Vec<u8> {
        bytes(rank, self.call, ROOM * self.element.bytes())
    }

    /// Writes new data and these numbers.
    fn begin(&mut self, tables: &Tables) {
        let me = self.rank.me() as usize;
        self.call += 1;
        self.input.upload(0, &self.input_of(self.rank.me()), soon()).unwrap();
        self.output.fill(CANARY, soon()).unwrap();
        for (array, numbers) in
            self.arrays.iter().zip([&tables.sent[me], &tables.from[me], &tables.room[me], &tables.to[me]])
        {
            array.upload(0, numbers, soon()).unwrap();
        }
        self.arrays[4].fill(CANARY, soon()).unwrap();
    }

    fn launch(&self) -> aqueduct::Result<()> {
        let counts = self.counts();
        if self.staged {
            let [input, output] = [&self.input, &self.output].map(|buffer| buffer.slice(..).unwrap());
            return self.collective.launch_staged(&self.stream, &input, &output, &counts, self.element, None);
        }
        self.collective.launch(&self.stream, &self.shown, &counts, self.element, None)
    }

    fn output(&self) -> Vec<u8> {
        let mut seen = vec![0_u8; ROOM * self.element.bytes()];
        self.output.download(0, &mut seen, soon()).unwrap();
        seen
    }

    fn received(&self) -> Vec<u64> {
        let mut seen = vec![0_u64; self.rank.comm.size() as usize];
        self.arrays[4].download(0, &mut seen, soon()).unwrap();
        seen
    }

    /// Compares what a call has left with the oracle.
    fn check(&self, tables: &Tables, what: &str) {
        let me = self.rank.me() as usize;
        let inputs: Vec<_> = (0..self.rank.comm.size()).map(|rank| self.input_of(rank)).collect();
        let before = vec![CANARY; ROOM * self.element.bytes()];
        let expected = tables.output(me, self.element.bytes(), &inputs, &before);
        assert_same(&self.output(), &expected, format_args!("{what}: rank {me}, call {}", self.call));
        let came: Vec<u64> = tables.sent.iter().map(|row| row[me]).collect();
        assert_eq!(self.received(), came, "{what}: rank {me}, call {}", self.call);
    }

    fn run(&mut self, draw: Draw) {
        let tables = Tables::draw(self.rank.comm.size() as usize, draw, self.call);
        self.begin(&tables);
        self.launch().unwrap();
        self.stream.synchronize(soon()).unwrap();
        self.check(&tables, &format!("{draw:?} of {:?}", self.element));
    }

    /// A call of which something does not fit is an error on every rank, touches nothing, and leaves later calls alone.
    fn refused(&mut self, words: &str, spoil: impl Fn(&mut Tables)) {
        let mut tables = Tables::draw(self.rank.comm.size() as usize, Draw::Exact, self.call);
        spoil(&mut tables);
        self.begin(&tables);
        self.launch().unwrap();
        let error = self.stream.synchronize(soon()).unwrap_err().to_string();
        assert!(error.contains(words), "{error} does not say {words}");
        let untouched = vec![CANARY; ROOM * self.element.bytes()];
        assert_same(&self.output(), &untouched, format_args!("{words}: rank {}", self.rank.me()));
        self.run(Draw::Any);
    }

    /// One captured call, replayed with other data and other numbers each time; one of them does not fit.
    fn replays(&mut self) {
        let exec = GraphExec::capture(&self.stream, CaptureMode::ThreadLocal, |_| self.launch()).unwrap();
        let ranks = self.rank.comm.size() as usize;
        for draw in [Draw::Any, Draw::One, Draw::Any, Draw::Nothing, Draw::Any] {
            let tables = Tables::draw(ranks, draw, self.call);
            self.begin(&tables);
            exec.launch(&self.stream).unwrap();
            self.stream.synchronize(soon()).unwrap();
            self.check(&tables, "replay");
            let mut tables = Tables::draw(ranks, Draw::Exact, self.call);
            tables.room[0][ranks - 1] = 0;
            tables.sent[ranks - 1][0] = 1;
            self.begin(&tables);
            exec.launch(&self.stream).unwrap();
            let error = self.stream.synchronize(soon()).unwrap_err();
            assert!(error.to_string().contains("has room for 0"), "{error}");
        }
    }

    /// Ranks that pass buffers of different calls of `buffers` would write out of each other's bounds: an error on every rank.
    fn mixed(&mut self) {
        let last = self.rank.me() + 1 == self.rank.comm.size();
        let others = self.collective.buffers(&self.input, &self.output, soon()).unwrap();
        let tables = Tables::draw(self.rank.comm.size() as usize, Draw::Any, self.call);
        let untouched = vec![CANARY; ROOM * self.element.bytes()];
        for staged in [false, true] {
            self.begin(&tables);
            let usual = self.shown.clone();
            if last && !staged {
                self.shown = others.clone();
            }
            self.staged = last && staged;
            self.launch().unwrap();
            (self.staged, self.shown) = (false, usual);
            let outcome = self.stream.synchronize(soon());
            if self.rank.comm.size() > 1 {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("buffers that were not shown together"), "{error}");
                assert_same(&self.output(), &untouched, format_args!("mixed, staged {staged}"));
            } else {
                outcome.unwrap();
            }
        }
        self.run(Draw::Any);
    }
}

fn run(rank: &Rank) {
    let ranks = rank.comm.size() as usize;
    for element in [Element::F32, Element::U8, Element::F64] {
        let mut bench = Bench::new(rank, element);
        for staged in [false, true] {
            bench.staged = staged;
            every_call(&mut bench, ranks);
        }
        rank.barrier();
    }
    parts::run(rank);
    groups::run(rank);
}

fn every_call(bench: &mut Bench<'_>, ranks: usize) {
    for draw in [Draw::Any, Draw::Nothing, Draw::One, Draw::Exact, Draw::Any, Draw::One, Draw::Any] {
        bench.run(draw);
    }
    let last = ranks - 1;
    bench.refused(&format!("rank {last} has"), |tables| {
        tables.sent[last][0] = tables.room[0][last] + 1;
        tables.from[last][0] = 0;
    });
    let far = "leave its buffers, or a part has 16 GiB or more; no rank has moved anything";
    bench.refused(far, |tables| tables.from[last][0] = ROOM as u64 + 1 - tables.sent[last][0]);
    bench.refused(far, |tables| tables.to[0][last] = ROOM as u64 + 1);
    bench.refused(far, |tables| tables.sent[last][0] = u64::MAX);
    bench.refused(far, |tables| tables.from[0][last] = u64::MAX - 3);
    // Both ends of a pair.
    bench.refused(far, |tables| {
        tables.to[0][last] = u64::MAX;
        tables.to[last][0] = u64::MAX;
    });
    bench.replays();
    bench.mixed();
}

/// One block does everything, and needs no sync between the meeting of the ranks and the copy of what stays here.
#[test]
fn on_one_multiprocessor() {
    let (name, environment) = ("variable::on_one_multiprocessor", [("AQUEDUCT_SOFT_SMS", "1")]);
    threads_with(Machine::Software, 3, name, &config(), &environment, |rank| run(&rank));
}

groups_of_ranks! {
    "variable":
    1 one_thread one_process "needs an NVIDIA GPU",
    2 two_threads two_processes "needs two NVIDIA GPUs",
    3 three_threads three_processes "needs three NVIDIA GPUs",
    4 four_threads four_processes "needs four NVIDIA GPUs",
}
