//! Plans run on the software device, against the collectives' definitions and the simulator.

mod allocation;
mod averages;
mod copies;
mod enqueuing;
mod laps;
mod launches;
mod links;
mod mscclpp;
mod multicast;
mod order;
mod random;
mod refusals;
mod repeats;
mod samples;
mod several;
mod staging;
mod turns;
mod types;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::samples::elements;
use super::super::{Element, Kind, Plan, Reduction, oracle, simulate};
use super::sizes::Chunks;
use super::{Executor, ExecutorConfig};
use crate::comm::{Communicator, CommunicatorConfig, together};
use crate::error::Result;
use crate::gpu::{Context, Device, Driver, GpuBuffer, Stream};

const LIMIT: Duration = Duration::from_secs(120);
/// The byte that buffers are full of before a call: the simulator's [`GARBAGE`](simulate::Element::GARBAGE).
const GARBAGE: u8 = 0x5a;

/// Freeing memory waits for all kernels of a device, so ranks of one test must not wait for those of another one.
fn alone() -> MutexGuard<'static, ()> {
    static DEVICES: Mutex<()> = Mutex::new(());
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ranks(count: usize) -> Vec<Communicator> {
    ranks_on(&Driver::software(cuda_soft::driver_table()).unwrap(), count)
}

fn ranks_on(driver: &Driver, count: usize) -> Vec<Communicator> {
    ranks_with(driver, count, CommunicatorConfig::default())
}

fn ranks_with(driver: &Driver, count: usize, config: CommunicatorConfig) -> Vec<Communicator> {
    // The others belong to tests that lose a device's context, or stop its streams.
    let devices = &Device::all(driver).unwrap()[..4];
    let contexts: Vec<Context> =
        (0..count).map(|rank| Context::new(&devices[rank % devices.len()]).unwrap()).collect();
    // Ranks are threads of this process: one that is silent is only slow.
    Communicator::local(&contexts, config.with_peer_timeout(None), LIMIT).unwrap()
}

/// Small whole numbers as [`Element::I32`].
fn values(_: Element, call: u32, rank: u32, elements: usize) -> Vec<u8> {
    (0..elements)
        .map(|i| 1 + i32::try_from((call as usize * 7 + rank as usize * 3 + i * 5) % 11).unwrap())
        .flat_map(i32::to_le_bytes)
        .collect()
}

/// One rank's buffers of a call.
struct Side {
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    stream: Stream,
}

/// A plan that is prepared on all ranks, with buffers for messages of up to some elements.
struct Rig<'c> {
    comms: &'c [Communicator],
    plan: Plan,
    executors: Vec<Executor>,
    sides: Vec<Side>,
    shown: Option<Vec<super::PlanBuffers>>,
    /// Number of the last call.
    number: u32,
    /// Type of the next call.
    element: Element,
    /// Data of a type, for a call, a rank and so many elements.
    data: fn(Element, u32, u32, usize) -> Vec<u8>,
}

/// A call, by ranks.
struct Called<T> {
    inputs: Vec<Vec<T>>,
    outputs: Vec<Vec<T>>,
    /// Their inputs' memory afterwards.
    after: Vec<Vec<T>>,
}

impl<'c> Rig<'c> {
    fn new(
        comms: &'c [Communicator],
        plan: &Plan,
        most: usize,
        reductions: &[Option<Reduction>],
    ) -> Result<Self> {
        Self::of_config(comms, plan, most, reductions, |_| ExecutorConfig::default())
    }

    /// The same with settings of each rank.
    fn of_config(
        comms: &'c [Communicator],
        plan: &Plan,
        most: usize,
        reductions: &[Option<Reduction>],
        config: impl Fn(u32) -> ExecutorConfig + Sync,
    ) -> Result<Self> {
        let variants: Vec<_> = reductions.iter().map(|&reduction| (Element::I32, reduction)).collect();
        Self::of_variants(comms, plan, most, &variants, config)
    }

    /// The same of any types. Calls are of the first until [`element`](Self::element) is another one.
    fn of_variants(
        comms: &'c [Communicator],
        plan: &Plan,
        most: usize,
        variants: &[(Element, Option<Reduction>)],
        config: impl Fn(u32) -> ExecutorConfig + Sync,
    ) -> Result<Self> {
        let config = |rank| config(rank).with_variants(variants.iter().copied()).with_max_bytes(1 << 16);
        let executors = everywhere(comms, |comm| Executor::prepare(comm, plan, config(comm.rank()), LIMIT))
            .into_iter()
            .collect::<Result<_>>()?;
        let (sides, shown, element) = (Vec::new(), None, Element::I32);
        let mut rig =
            Self { comms, plan: plan.clone(), executors, sides, shown, number: 0, element, data: values };
        let mut longest = 1;
        for &(element, _) in variants.iter().rev() {
            rig.element = element;
            let elements = (0..comms.len()).flat_map(|rank| rig.lengths(rank, most)).max().unwrap_or(0);
            longest = longest.max(elements * element.bytes());
        }
        // In place, one buffer holds the parts of all ranks.
        let bytes = longest * comms.len();
        for comm in comms {
            let buffer = || Arc::new(GpuBuffer::new(comm.context(), bytes).unwrap());
            let input = buffer();
            let output = if plan.collective.in_place { input.clone() } else { buffer() };
            rig.sides.push(Side { input, output, stream: Stream::new(comm.context()).unwrap() });
        }
        if rig.executors[0].reaches_buffers() {
            let show = |comm: &Communicator| {
                let side = &rig.sides[comm.rank() as usize];
                rig.executors[comm.rank() as usize].prepare_buffers(&side.input, &side.output, LIMIT)
            };
            rig.shown = Some(everywhere(comms, show).into_iter().collect::<Result<_>>()?);
        }
        Ok(rig)
    }

    /// Elements of a rank's input and output in a message of so many.
    fn lengths(&self, rank: usize, elements: usize) -> [usize; 2] {
        let size = self.element.bytes() as u64;
        let (chunks, bytes) = (Chunks::of(&self.plan), size * elements as u64);
        let rank = &self.plan.ranks[rank];
        let chunk = chunks.distance(bytes, size).unwrap();
        [rank.input_chunks, rank.output_chunks]
            .map(|count| usize::try_from(chunks.buffer(count, bytes, chunk) / size).unwrap())
    }

    /// Where a rank's input and output begin in their buffers.
    fn places(&self, rank: usize, [inputs, outputs]: [usize; 2]) -> [usize; 2] {
        match (&self.plan.collective.kind, self.plan.collective.in_place) {
            (Kind::AllGather | Kind::Gather { .. }, true) => [rank * inputs, 0],
            (Kind::ReduceScatter | Kind::Scatter { .. }, true) => [0, rank * outputs],
            _ => [0, 0],
        }
    }

    /// One call on all ranks, of [`Element::I32`].
    fn call(&mut self, elements: usize, reduction: Option<Reduction>) -> Called<i32> {
        assert_eq!(self.element, Element::I32);
        let Called { inputs, outputs, after } = self.call_of_bytes(elements, reduction);
        let typed = |all: Vec<Vec<u8>>| -> Vec<Vec<i32>> {
            let values =
                |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|&one| i32::from_le_bytes(one)).collect();
            all.into_iter().map(values).collect()
        };
        Called { inputs: typed(inputs), outputs: typed(outputs), after: typed(after) }
    }

    /// One call on all ranks, whose data are bytes.
    fn call_of_bytes(&mut self, elements: usize, reduction: Option<Reduction>) -> Called<u8> {
        self.number += 1;
        let (element, size) = (self.element, self.element.bytes());
        let data = |rank| (self.data)(element, self.number, rank, elements);
        let inputs: Vec<Vec<u8>> = (0..).zip(self.comms).map(|(rank, _)| data(rank)).collect();
        // A rank begins the call before the next one has its input, so that nothing but its kernel's waits keep it from that.
        for (rank, (side, executor)) in self.sides.iter().zip(&self.executors).enumerate() {
            let lengths = self.lengths(rank, elements);
            let at = self.places(rank, lengths);
            side.input.fill(GARBAGE, LIMIT).unwrap();
            side.output.fill(GARBAGE, LIMIT).unwrap();
            side.input.upload(size * at[0], &inputs[rank][..size * lengths[0]], LIMIT).unwrap();
            let called = match &self.shown {
                Some(shown) => executor.execute_on(&side.stream, &shown[rank], elements, element, reduction),
                None => {
                    let input = side.input.slice(size * at[0]..).unwrap();
                    let output = side.output.slice(size * at[1]..).unwrap();
                    executor.execute(&side.stream, &input, &output, elements, element, reduction)
                }
            };
            called.unwrap_or_else(|error| panic!("{} of {elements}, rank {rank}: {error}", self.plan.name));
        }
        let read = |buffer: &GpuBuffer, at: usize, len: usize| {
            let mut seen = vec![0_u8; size * len];
            buffer.download(size * at, &mut seen, LIMIT).unwrap();
            seen
        };
        let (mut outputs, mut after) = (Vec::new(), Vec::new());
        for side in &self.sides {
            side.stream.synchronize(LIMIT).unwrap();
        }
        for (rank, side) in self.sides.iter().enumerate() {
            let lengths = self.lengths(rank, elements);
            let at = self.places(rank, lengths);
            outputs.push(read(&side.output, at[1], lengths[1]));
            after.push(read(&side.input, at[0], lengths[0]));
        }
        Called { inputs, outputs, after }
    }

    /// A call whose output is what the simulator says, element by element: also where nothing is promised or written. Plans without
    /// output are compared by what they leave in the input.
    fn as_simulated(&mut self, elements: usize, reduction: Option<Reduction>) {
        self.compared(elements, reduction);
    }

    /// The same, and what the call gave.
    fn compared(&mut self, elements: usize, reduction: Option<Reduction>) -> Called<u8> {
        let called = self.call_of_bytes(elements, reduction);
        let Called { inputs, outputs, after } = &called;
        let mut twin = self.plan.clone();
        let by_input = twin.ranks.iter().all(|rank| rank.output_chunks == 0);
        if by_input {
            // In the twin, the input is also the output.
            twin.collective.in_place = true;
            twin.ranks.iter_mut().for_each(|rank| rank.output_chunks = rank.input_chunks);
        }
        let message = match Chunks::of(&self.plan) {
            chunks if chunks.by_input => elements,
            _ => elements / twin.ranks.iter().map(|rank| rank.output_chunks.max(1)).max().unwrap() as usize,
        };
        let config = simulate::Config { seed: u64::from(self.number), reduction };
        let element = self.element;
        let simulated = inputs.iter().map(|input| input[..message * element.bytes()].to_vec()).collect();
        let expected = simulate::run_bytes(&twin, element, &[simulated], config).unwrap().remove(0);
        let seen = if by_input { after } else { outputs };
        // Kernels divide only sums that the collective promises.
        let promised = oracle::outputs(&self.plan.collective.kind, inputs, |a, _| a);
        let all = reduction != Some(Reduction::Avg);
        for (rank, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert!(
                elements::same(element, seen, expected) || !all && promised[rank].is_none(),
                "{}, call {} of {elements} {element:?}, {reduction:?}, rank {rank}: {seen:x?} on the device, \
                 {expected:x?} simulated",
                self.plan.name,
                self.number
            );
        }
        called
    }
}

/// Results of a call on each rank. Unlike [`together`], it leaves the communicators as they are where the call fails.
fn everywhere<T: Send>(
    comms: &[Communicator],
    call: impl Fn(&Communicator) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    together(comms, |comm| Ok(call(comm))).unwrap()
}

/// Closes communicators together: a rank that leaves alone is lost to the others.
fn close(comms: &[Communicator]) {
    together(comms, |comm| comm.close(LIMIT)).unwrap();
}
