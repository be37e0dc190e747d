//! Timing of calls with events: around batches of calls, or around replays of a graph with several calls.

use anyhow::Result;
use aqueduct::gpu::{CaptureMode, Event, GraphExec, Stream};

use super::args::Args;
use crate::job::Rank;

/// Number of batches; the table has their median.
const BATCHES: u32 = 10;

/// How often one size runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    warmup: u32,
    batches: u32,
    /// Calls, or graph replays, per batch.
    per_batch: u32,
    /// Calls per graph, 0 for plain launches.
    graph: u32,
}

impl Plan {
    /// The user's numbers, or defaults by size and device: large transfers and the software device need
    /// fewer runs for a steady median.
    pub(super) fn choose(args: &Args, bytes: u64, software: bool) -> Self {
        let iterations = args.iterations.unwrap_or(match (software, bytes) {
            (true, b) if b <= 1 << 16 => 10,
            (true, _) => 3,
            (false, b) if b <= 1 << 20 => 200,
            (false, _) => 20,
        });
        let warmup = args.warmup.unwrap_or(if software { 1 } else { 5 });
        let batches = iterations.clamp(1, BATCHES);
        Self { warmup, batches, per_batch: iterations.div_ceil(batches).max(1), graph: args.graph }
    }
}

/// Runs `call` on `stream` as planned. Returns the time per call in microseconds for each batch, of the slowest rank.
pub(super) fn run(
    rank: &Rank,
    stream: &Stream,
    plan: &Plan,
    call: impl Fn(&Stream) -> aqueduct::Result<()>,
) -> Result<Vec<f64>> {
    let record = |event: &Event| event.record(stream);
    if plan.graph == 0 {
        return run_on(rank, plan, &record, &|| call(stream));
    }
    let capture = |stream: &Stream| (0..plan.graph).try_for_each(|_| call(stream));
    let graph = GraphExec::capture(stream, CaptureMode::ThreadLocal, capture)?;
    graph.upload(stream)?;
    let mut times = run_on(rank, plan, &record, &|| graph.launch(stream))?;
    times.iter_mut().for_each(|t| *t /= f64::from(plan.graph));
    Ok(times)
}

/// The same for work on anything that can record events.
pub(super) fn run_on(
    rank: &Rank,
    plan: &Plan,
    record: &dyn Fn(&Event) -> aqueduct::Result<()>,
    once: &dyn Fn() -> aqueduct::Result<()>,
) -> Result<Vec<f64>> {
    let (start, end) = (Event::timed(&rank.context)?, Event::timed(&rank.context)?);
    for _ in 0..plan.warmup {
        once()?;
    }
    record(&end)?;
    end.synchronize(rank.deadline())?;
    let mut times = Vec::new();
    for _ in 0..plan.batches {
        rank.barrier()?;
        record(&start)?;
        for _ in 0..plan.per_batch {
            once()?;
        }
        record(&end)?;
        end.synchronize(rank.deadline())?;
        times.push(rank.max(f64::from(end.elapsed_ms(&start)?) * 1e3 / f64::from(plan.per_batch))?);
    }
    Ok(times)
}
