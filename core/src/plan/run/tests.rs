//! Samples run on the software device, against the collectives' definitions and the simulator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::{Element, Kind, Plan, Reduction, oracle, random, samples, simulate};
use super::{Executor, ExecutorConfig};
use crate::comm::{Communicator, CommunicatorConfig, together};
use crate::gpu::{Context, Device, Driver, GpuBuffer, Stream};

const LIMIT: Duration = Duration::from_secs(120);

/// Freeing memory waits for all kernels of a device, so ranks of one test must not wait for those of another one.
static DEVICES: Mutex<()> = Mutex::new(());

fn ranks(count: usize) -> Vec<Communicator> {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let devices = Device::all(&driver).unwrap();
    let contexts: Vec<Context> =
        (0..count).map(|rank| Context::new(&devices[rank % devices.len()]).unwrap()).collect();
    Communicator::local(&contexts, CommunicatorConfig::default(), LIMIT).unwrap()
}

/// One rank's buffers of a call.
struct Call {
    input: Arc<GpuBuffer>,
    output: Arc<GpuBuffer>,
    stream: Stream,
}

fn values(call: u32, rank: u32, elements: usize) -> Vec<i32> {
    (0..elements)
        .map(|i| 1 + i32::try_from((call as usize * 7 + rank as usize * 3 + i * 5) % 11).unwrap())
        .collect()
}

/// Elements of a rank's output for inputs of `elements`.
fn outputs(plan: &Plan, elements: usize) -> usize {
    match plan.collective.kind {
        Kind::AllGather => elements * plan.ranks.len(),
        Kind::ReduceScatter => elements / plan.ranks.len(),
        _ => elements,
    }
}

/// Runs calls of several sizes on all ranks and compares all outputs.
fn run(plan: &Plan, sizes: &[usize], reduction: Reduction) {
    let comms = ranks(plan.ranks.len());
    run_on(&comms, plan, sizes, reduction);
    together(&comms, |comm| comm.close(LIMIT)).unwrap();
}

fn run_on(comms: &[Communicator], plan: &Plan, sizes: &[usize], reduction: Reduction) {
    let config =
        || ExecutorConfig::default().with_variants([(Element::I32, Some(reduction))]).with_max_bytes(1 << 16);
    let executors = together(comms, |comm| Executor::prepare(comm, plan, config(), LIMIT))
        .unwrap_or_else(|e| panic!("{}: {e:#?} {:?}", plan.name, std::error::Error::source(&e)));
    let most = sizes.iter().copied().max().unwrap_or(0);
    let buffer = |comm: &Communicator, elements: usize| {
        Arc::new(GpuBuffer::new(comm.context(), elements.max(1) * 4).unwrap())
    };
    let calls: Vec<Call> = comms
        .iter()
        .map(|comm| {
            let longest = most.max(outputs(plan, most));
            let first = buffer(comm, longest);
            let output = if plan.collective.in_place { first.clone() } else { buffer(comm, longest) };
            Call { input: first, output, stream: Stream::new(comm.context()).unwrap() }
        })
        .collect();
    let shown = executors[0].reaches_buffers().then(|| {
        together(comms, |comm| {
            let rank = comm.rank() as usize;
            executors[rank].prepare_buffers(&calls[rank].input, &calls[rank].output, LIMIT)
        })
        .unwrap()
    });
    for (number, &elements) in (0..).zip(sizes) {
        let inputs: Vec<Vec<i32>> =
            (0..).zip(comms).map(|(rank, _)| values(number, rank, elements)).collect();
        let out = outputs(plan, elements);
        for (rank, call) in calls.iter().enumerate() {
            let (input_at, output_at) = match (&plan.collective.kind, plan.collective.in_place) {
                (Kind::AllGather, true) => (rank * elements, 0),
                (Kind::ReduceScatter, true) => (0, rank * out),
                _ => (0, 0),
            };
            call.output.fill(0x5a, LIMIT).unwrap();
            call.input.upload(4 * input_at, &inputs[rank], LIMIT).unwrap();
            let (executor, op) = (&executors[rank], reduction);
            if let Some(shown) = &shown {
                executor.execute_on(&call.stream, &shown[rank], elements, Element::I32, op).unwrap();
            } else {
                let input = call.input.slice(4 * input_at..).unwrap();
                let output = call.output.slice(4 * output_at..).unwrap();
                executor.execute(&call.stream, &input, &output, elements, Element::I32, op).unwrap();
            }
        }
        let combine = |a: i32, b: i32| simulate::Element::combine(a, b, reduction);
        let expected = oracle::outputs(&plan.collective.kind, &inputs, combine);
        for (rank, (call, expected)) in calls.iter().zip(expected).enumerate() {
            call.stream.synchronize(LIMIT).unwrap();
            let Some(expected) = expected else { continue };
            let at = if plan.collective.kind == Kind::ReduceScatter && plan.collective.in_place {
                rank * out
            } else {
                0
            };
            let mut seen = vec![0_i32; out];
            call.output.download(4 * at, &mut seen, LIMIT).unwrap();
            assert_eq!(seen, expected, "{} call {number} of {elements}, rank {rank}", plan.name);
        }
    }
}

#[test]
fn samples_run_as_their_collectives_say() {
    let _alone = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    for plan in samples::all() {
        // Every sample divides 96; sizes grow and shrink, so that chunks of scratch would overlap if they moved. The longest one
        // is for all threads of a block, the others for few.
        let sizes: &[usize] = if plan.collective.kind.divides_freely() {
            &[96, 7, 1000, 16_320, 1, 960, 33]
        } else {
            &[96, 12, 1200, 16_320, 24, 960]
        };
        run(&plan, sizes, Reduction::Sum);
    }
}

/// The sizes of the message that a plan takes, in elements: it divides where the collective must.
fn random_sizes(plan: &Plan, seed: u64) -> Vec<usize> {
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(1).max(1) as usize;
    let draw = |turn: u64| {
        let mixed =
            (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(u32::try_from(turn * 13).unwrap());
        usize::try_from(mixed % [5, 70, 300][usize::try_from(turn % 3).unwrap()]).unwrap()
    };
    let freely = plan.collective.kind.divides_freely();
    (0..4).map(|turn| if freely { draw(turn) + 1 } else { chunks * (draw(turn) / chunks + 1) }).collect()
}

/// Random programs, as kernels, give what their collectives promise. `AQUEDUCT_TEST_PROGRAMS` says how many.
#[test]
fn random_programs_run_as_their_collectives_say() {
    let _alone = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var("AQUEDUCT_TEST_PROGRAMS").ok();
    let count: u64 = count.map_or(60, |count| count.parse().expect("AQUEDUCT_TEST_PROGRAMS is a number"));
    let first = std::env::var("AQUEDUCT_TEST_SEED").ok();
    let first: u64 = first.map_or(0, |seed| seed.parse().expect("AQUEDUCT_TEST_SEED is a number"));
    let mut groups: BTreeMap<usize, Vec<Communicator>> = BTreeMap::new();
    for seed in first..first + count {
        let plan = random::program(seed);
        let comms = groups.entry(plan.ranks.len()).or_insert_with(|| ranks(plan.ranks.len()));
        let op = [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Prod]
            [usize::try_from(seed % 4).unwrap()];
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run_on(comms, &plan, &random_sizes(&plan, seed), op);
        }));
        assert!(
            ended.is_ok(),
            "AQUEDUCT_TEST_SEED={seed} AQUEDUCT_TEST_PROGRAMS=1 shows it again: {plan:#?}"
        );
    }
}
