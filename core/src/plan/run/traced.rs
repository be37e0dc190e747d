//! Traced kernels on the software device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::cost::{Span, Timeline};
use super::super::{Element, Op, Plan, samples};
use super::{Executor, ExecutorConfig};
use crate::comm::{Communicator, CommunicatorConfig, together};
use crate::gpu::{Context, Device, Driver, GpuBuffer, Stream};

const LIMIT: Duration = Duration::from_secs(120);
const BYTES: usize = 4096;

/// Times of all ranks' operations in the last of `calls` calls.
fn traced(plan: &Plan, calls: usize, config: ExecutorConfig) -> Vec<Span> {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let devices = Device::all(&driver).unwrap();
    let context = |rank: usize| Context::new(&devices[rank % devices.len()]).unwrap();
    let contexts: Vec<Context> = (0..plan.ranks.len()).map(context).collect();
    let comms = Communicator::local(&contexts, CommunicatorConfig::default(), LIMIT).unwrap();
    let config = config.with_variants([(Element::I32, None)]).with_max_bytes(BYTES as u64);
    let spans = together(&comms, |comm| {
        let executor = Executor::prepare(comm, plan, config.clone(), LIMIT)?;
        let buffer = || GpuBuffer::new(comm.context(), BYTES * plan.ranks.len()).map(Arc::new);
        let input = buffer()?;
        let output = if plan.collective.in_place { input.clone() } else { buffer()? };
        let stream = Stream::new(comm.context())?;
        let shown = executor
            .reaches_buffers()
            .then(|| executor.prepare_buffers(&input, &output, LIMIT))
            .transpose()?;
        for _ in 0..calls {
            let count = BYTES / 4;
            match &shown {
                Some(shown) => executor.execute_on(&stream, shown, count, Element::I32, None)?,
                None => executor.execute(
                    &stream,
                    &input.slice(..BYTES)?,
                    &output.slice(..)?,
                    count,
                    Element::I32,
                    None,
                )?,
            }
        }
        stream.synchronize(LIMIT)?;
        executor.trace(LIMIT)
    })
    .unwrap_or_else(|error| panic!("{}: {error:#?}", plan.name));
    together(&comms, |comm| comm.close(LIMIT)).unwrap();
    spans.into_iter().flatten().collect()
}

/// Loops, semaphores, barriers, packets: every operation has its time in each call, one behind the other.
#[test]
fn every_operation_of_the_last_call_has_its_time() {
    let mut looped = false;
    for plan in samples::all().into_iter().filter(|plan| plan.ranks.len() <= 4) {
        for calls in [1, 3] {
            let spans = traced(&plan, calls, ExecutorConfig::default().with_trace());
            let mut times: BTreeMap<(u32, u32, u32, Option<u32>), Vec<u64>> = BTreeMap::new();
            let mut last: BTreeMap<(u32, u32), u64> = BTreeMap::new();
            for span in &spans {
                let Span { rank, block, op, inner, iteration, start, end } = *span;
                times.entry((rank, block, op, inner)).or_default().push(iteration);
                assert!(start <= end, "{} {span:?}", plan.name);
                let before = last.insert((rank, block), end);
                assert!(before.is_none_or(|before| before == start), "{} {span:?}", plan.name);
            }
            for (rank, rank_plan) in (0..).zip(&plan.ranks) {
                let blocks = (0..).zip(&rank_plan.blocks);
                // Only threads note times.
                for (block, contents) in blocks.filter(|(_, contents)| !contents.copy_engine) {
                    for (op, operation) in (0..).zip(&contents.ops) {
                        if let Op::Loop(repeated) = &operation.op {
                            looped = true;
                            let turns = times.remove(&(rank, block, op, Some(0))).unwrap();
                            assert!(turns.iter().copied().eq(0..turns.len() as u64), "{turns:?}");
                            for inner in 1..u32::try_from(repeated.body.len()).unwrap() {
                                assert_eq!(
                                    times.remove(&(rank, block, op, Some(inner))).as_ref(),
                                    Some(&turns)
                                );
                            }
                        } else {
                            assert_eq!(
                                times.remove(&(rank, block, op, None)),
                                Some(vec![0]),
                                "{}",
                                plan.name
                            );
                        }
                    }
                }
            }
            assert!(times.is_empty(), "{}: {times:?}", plan.name);
            let timeline = Timeline::new(&plan, spans);
            let waits =
                timeline.spans.iter().filter(|span| matches!(span.op_of(&plan), Some(Op::Wait { .. })));
            let by_copy_engine =
                plan.ranks.iter().flat_map(|rank| &rank.blocks).any(|block| block.copy_engine);
            // A signal of a copy engine's block has no time, and so no arrow.
            assert!(by_copy_engine || timeline.arrows.len() >= waits.count(), "{}", plan.name);
        }
    }
    assert!(looped, "no sample has a loop");
}

#[test]
fn without_a_trace_there_are_no_times() {
    assert_eq!(traced(&samples::two_shot(2), 1, ExecutorConfig::default()), []);
}
