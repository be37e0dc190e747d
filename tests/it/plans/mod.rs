//! Plans executed on devices, by threads with a device each and by processes.

mod failures;
mod multicast;
mod over_hosts;
mod programs;
mod turns;
mod types;

use std::sync::Arc;

use aqueduct::comm::Transport;
use aqueduct::gpu::{CaptureMode, DeviceSlice, GpuBuffer, GraphExec, Stream};
use aqueduct::plan::{Element, Executor, ExecutorConfig, Kind, Plan, PlanBuffers, Reduction, oracle};

use crate::data::mix;
use crate::group::{Machine, Rank, processes, soon, threads};

const CANARY: u8 = 0xA5;
const MAX_BYTES: u64 = 1 << 16;
/// Bytes behind a buffer that nothing may touch.
const GUARD: usize = 64;

fn config() -> ExecutorConfig {
    let all = [Reduction::Sum, Reduction::Max].map(|op| (Element::I32, Some(op)));
    ExecutorConfig::default().with_variants(all).with_max_bytes(MAX_BYTES)
}

/// A prepared plan of one rank, and the number of its calls so far.
struct Bench<'a> {
    rank: &'a Rank,
    stream: Stream,
    executor: Executor,
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    shown: Option<PlanBuffers>,
    call: u32,
}

impl<'a> Bench<'a> {
    fn new(rank: &'a Rank, plan: &Plan, config: ExecutorConfig) -> Self {
        let most = MAX_BYTES as usize * plan.ranks.len() + GUARD;
        let input = rank.buffer(most);
        let output = if plan.collective.in_place { input.clone() } else { rank.buffer(most) };
        Self::on(rank, plan, config, [input, output])
    }

    /// The same on buffers that are there.
    fn on(rank: &'a Rank, plan: &Plan, config: ExecutorConfig, [input, output]: [Arc<GpuBuffer>; 2]) -> Self {
        let executor = Executor::prepare(&rank.comm, plan, config, soon()).unwrap();
        let shown =
            executor.reaches_buffers().then(|| executor.prepare_buffers(&input, &output, soon()).unwrap());
        let stream = Stream::new(rank.comm.context()).unwrap();
        Self { rank, stream, executor, input, output, shown, call: 0 }
    }

    fn data(&self, rank: u32, count: usize) -> Vec<i32> {
        (0..count).map(|index| mix(rank, self.call, index).cast_signed()).collect()
    }

    /// Elements of a rank's output for `count` of input.
    fn outputs(&self, count: usize) -> usize {
        match self.executor.plan().collective.kind {
            Kind::AllGather => count * self.rank.comm.size() as usize,
            _ => count,
        }
    }

    fn slices(&self, count: usize) -> (DeviceSlice, DeviceSlice) {
        let output = self.output.slice(..4 * self.outputs(count)).unwrap();
        (self.input.slice(..4 * count).unwrap(), output)
    }

    fn begin(&self, count: usize) {
        self.output.fill(CANARY, soon()).unwrap();
        self.input.upload(0, &self.data(self.rank.me(), count), soon()).unwrap();
    }

    fn enqueue(&self, count: usize, op: Reduction) -> aqueduct::Result<()> {
        let (input, output) = self.slices(count);
        match &self.shown {
            Some(shown) => self.executor.execute_on(&self.stream, shown, count, Element::I32, op),
            None => self.executor.execute(&self.stream, &input, &output, count, Element::I32, op),
        }
    }

    /// Compares the output and the bytes behind it with the collective's definition.
    fn check(&self, count: usize, op: Reduction) {
        let name = &self.executor.plan().name;
        let inputs: Vec<_> = (0..self.rank.comm.size()).map(|rank| self.data(rank, count)).collect();
        let combine = |a: i32, b: i32| if op == Reduction::Max { a.max(b) } else { a.wrapping_add(b) };
        let expected = oracle::outputs(&self.executor.plan().collective.kind, &inputs, combine);
        let expected = expected[self.rank.me() as usize].as_ref().expect("every rank has a result");
        let mut seen = vec![0_i32; expected.len()];
        self.output.download(0, &mut seen, soon()).unwrap();
        let what = format!("{name}, rank {}, call {} of {count}, {op:?}", self.rank.me(), self.call);
        assert_eq!(&seen, expected, "{what}");
        let mut behind = [0_u8; GUARD];
        self.output.download(4 * expected.len(), &mut behind, soon()).unwrap();
        assert_eq!(behind, [CANARY; GUARD], "{what}: behind the output");
    }

    fn run(&mut self, count: usize, op: Reduction) {
        self.call += 1;
        // Peers write into shown buffers once they have begun the call, and so before this rank has.
        self.begin(count);
        self.rank.barrier();
        self.enqueue(count, op).unwrap();
        self.stream.synchronize(soon()).unwrap();
        self.check(count, op);
        self.rank.barrier();
    }

    /// Calls of sizes that grow and shrink.
    fn sizes(&mut self) {
        let free = !matches!(self.executor.plan().collective.kind, Kind::AllGather);
        let sizes: &[usize] =
            if free { &[96, 1, 0, 5000, 7, 0, 33, 16_000, 960] } else { &[96, 4, 0, 5000, 960, 8] };
        for (&count, op) in sizes.iter().zip([Reduction::Sum, Reduction::Max].into_iter().cycle()) {
            self.run(count, op);
        }
    }

    /// A captured call, replayed with new data each time.
    fn replays(&mut self) {
        const COUNT: usize = 480;
        let exec = GraphExec::capture(&self.stream, CaptureMode::ThreadLocal, |_| {
            self.enqueue(COUNT, Reduction::Sum)
        })
        .unwrap();
        for _ in 0..3 {
            self.call += 1;
            self.begin(COUNT);
            self.rank.barrier();
            exec.launch(&self.stream).unwrap();
            self.stream.synchronize(soon()).unwrap();
            self.check(COUNT, Reduction::Sum);
            self.rank.barrier();
        }
    }
}

fn all(ranks: u32) -> Vec<Plan> {
    let plans = [programs::packets, programs::lines, programs::zero_copy, programs::pipelined];
    plans.iter().map(|plan| plan(ranks)).collect()
}

fn run(rank: &Rank, plans: &[Plan]) {
    for plan in plans {
        let mut bench = Bench::new(rank, plan, config());
        bench.sizes();
        bench.replays();
    }
    rank.barrier();
}

/// Two plans of one communicator, whose calls alternate on one stream without the host in between.
fn alternating(rank: &Rank) {
    let plans = [programs::packets(rank.comm.size()), programs::zero_copy(rank.comm.size())];
    let mut benches = plans.each_ref().map(|plan| Bench::new(rank, plan, config()));
    for _ in 0..5 {
        for bench in &mut benches {
            bench.call += 1;
            bench.begin(1200);
        }
        rank.barrier();
        for bench in &benches {
            bench.enqueue(1200, Reduction::Sum).unwrap();
        }
        for bench in &benches {
            bench.stream.synchronize(soon()).unwrap();
            bench.check(1200, Reduction::Sum);
        }
        rank.barrier();
    }
}

fn over(rank: &Rank, transport: Transport) {
    let plan = programs::ports(rank.comm.size());
    let mut bench = Bench::new(rank, &plan, config().with_port_transport(transport));
    bench.sizes();
    rank.barrier();
}

macro_rules! groups {
    ($($ranks:literal $threads:ident $processes:ident $ports:ident $need:literal,)+) => {
        mod soft {
            use super::*;
            $(#[test]
            fn $threads() {
                let name = concat!("plans::soft::", stringify!($threads));
                threads(Machine::Software, $ranks, name, |rank| run(&rank, &all($ranks)));
            }
            #[test]
            fn $processes() {
                let name = concat!("plans::soft::", stringify!($processes));
                processes(Machine::Software, $ranks, name, |rank| {
                    run(&rank, &all($ranks));
                    alternating(&rank);
                });
            }
            #[test]
            fn $ports() {
                let name = concat!("plans::soft::", stringify!($ports));
                processes(Machine::Software, $ranks, name, |rank| {
                    over(&rank, Transport::CudaIpc);
                    over(&rank, Transport::Ethernet);
                });
            })+
        }
        mod hardware {
            use super::*;
            $(#[test]
            #[ignore = $need]
            fn $threads() {
                let name = concat!("plans::hardware::", stringify!($threads));
                threads(Machine::Hardware, $ranks, name, |rank| run(&rank, &all($ranks)));
            }
            #[test]
            #[ignore = $need]
            fn $processes() {
                let name = concat!("plans::hardware::", stringify!($processes));
                processes(Machine::Hardware, $ranks, name, |rank| {
                    run(&rank, &all($ranks));
                    alternating(&rank);
                });
            }
            #[test]
            #[ignore = $need]
            fn $ports() {
                let name = concat!("plans::hardware::", stringify!($ports));
                processes(Machine::Hardware, $ranks, name, |rank| {
                    over(&rank, Transport::CudaIpc);
                    over(&rank, Transport::Ethernet);
                });
            })+
        }
    };
}

groups! {
    2 two_threads two_processes two_ports "needs two NVIDIA GPUs",
    4 four_threads four_processes four_ports "needs four NVIDIA GPUs",
}
