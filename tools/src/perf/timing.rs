//! How calls are timed: events around batches of calls, or around replays of a graph that holds several.

use anyhow::Result;
use aqueduct::gpu::{Event, GraphExec, Stream};

use super::args::Args;
use crate::job::Rank;

/// Batches whose median is quoted.
const BATCHES: u32 = 10;

/// How often a size is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    warmup: u32,
    batches: u32,
    /// Calls, or graph replays, in one batch.
    per_batch: u32,
    /// Calls in the graph; 0 for plain launches.
    pub(super) graph: u32,
}

impl Plan {
    /// The user's numbers, or ones that fit the size and the device: large transfers and the software device need
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

/// Runs `call` as planned; the time of one call in microseconds, per batch, each the slowest rank's.
pub(super) fn run(
    rank: &Rank,
    stream: &Stream,
    plan: &Plan,
    call: impl Fn(&Stream) -> aqueduct::Result<()>,
) -> Result<Vec<f64>> {
    let graph = match plan.graph {
        0 => None,
        calls => Some(GraphExec::capture(stream, |stream| (0..calls).try_for_each(|_| call(stream)))?),
    };
    let once = || match &graph {
        Some(graph) => graph.launch(stream),
        None => call(stream),
    };
    for _ in 0..plan.warmup {
        once()?;
    }
    stream.synchronize(rank.deadline())?;
    let (start, end) = (Event::timed(&rank.context)?, Event::timed(&rank.context)?);
    let mut times = Vec::new();
    for _ in 0..plan.batches {
        rank.barrier()?;
        start.record(stream)?;
        for _ in 0..plan.per_batch {
            once()?;
        }
        end.record(stream)?;
        end.synchronize(rank.deadline())?;
        let calls = f64::from(plan.per_batch) * f64::from(plan.graph.max(1));
        times.push(rank.max(f64::from(end.elapsed_ms(&start)?) * 1e3 / calls)?);
    }
    Ok(times)
}
