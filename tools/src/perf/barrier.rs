//! `aqueduct perf barrier`: time of a barrier of all ranks on a stream. It moves no data, so there is one row and nothing to check.

use std::process::ExitCode;

use anyhow::Result;
use aqueduct::collective::Barrier;
use aqueduct::gpu::Stream;

use super::args::{BATCHES, Results};
use super::head::{Head, auto};
use super::need::Need;
use super::output::{self, present};
use super::pace::Pace;
use super::record::Record;
use super::table::NcclTable;
use super::timing::{EventClock, Launches, Session, sample};
use super::wide::choose;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Timed barriers [default: 200; on the software device 10]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Barriers before those, not timed [default: 5; on the software device 1]
    #[arg(short = 'w', long)]
    warmup: Option<u32>,
    /// Time replays of a CUDA graph that holds this many barriers (0: plain launches)
    #[arg(short = 'G', long = "graph", default_value_t = 0, value_name = "CALLS")]
    graph: u32,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    results: Results,
}

pub(super) fn execute(args: &Args) -> Result<ExitCode> {
    let outlets = output::open(&args.results.files)?;
    let rank = Need::none().join()?;
    let session = Session::new(&rank);
    let barrier = Barrier::prepare(&rank.comm, rank.deadline())?;
    let mut head = Head::gather(&rank, "barrier")?;
    head.line(format!(
        "warmup iters: {} iters: {} graph: {}",
        auto(args.warmup),
        auto(args.iterations),
        args.graph
    ));
    head.parameters([
        ("iterations", args.iterations.into()),
        ("warmup", args.warmup.into()),
        ("graph", args.graph.into()),
    ]);
    head.parameters(args.pace.parameters());
    head.time(Pace::meaning("calls"));
    let (iterations, warmup) = if session.software() { (10, 1) } else { (200, 5) };
    let plan = args.pace.plan(args.iterations.unwrap_or(iterations), args.warmup.unwrap_or(warmup), BATCHES);
    let (stream, clock) = (Stream::new(&rank.context)?, EventClock::new(&rank)?);
    let call = |stream: &Stream| barrier.launch(stream);
    let launches = Launches::prepare(&stream, args.graph, &call)?;
    present(&session, &head, choose(args.results.stats, NcclTable::default()), outlets, |output| {
        session.progress.row("barriers".to_owned());
        let [timed] = sample(&session, &plan, [&mut |calls| launches.time(&rank, &clock, calls)])?;
        let row = Record::measured("barrier", timed.of_parts(launches.per_replay()));
        output.row(row)?;
        output.print()
    })
}
