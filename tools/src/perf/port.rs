//! `aqueduct perf port-put|port-lat`: a port channel between the ranks of each pair (0 and 1, 2 and 3, ...), driven by
//! kernels, over any transport.
//!
//! `port-lat` bounces a put and a signal between two kernels and reports half a round trip; size 0 is a signal alone.
//! `port-put` pushes windows of puts from the even rank to the odd one. A window of one is measured as in `port-lat`.
//! Over CudaIpc the same run also measures bare loops: `port-lat` is compared with a host thread that polls a word and
//! calls the driver, `port-put` with the copy engine.

mod bare;
mod end;
mod ping_pong;
mod windows;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use aqueduct::comm::Transport;
use aqueduct::proxy::Idle;

use super::args;
use super::checker::CheckBy;
use super::comparison::{Comparison, Unit};
use super::head::{Head, auto};
use super::need::Need;
use super::pace::parse_duration;
use super::record::Record;
use super::sweep::{Rounding, Sizes, Sweep};
use super::timing::{Plan, Session, Timed, Until, mean, sample};
use super::wide::choose;
use crate::job::Rank;
use crate::refusal::refuse;
use bare::{CopyEngine, Relay};
use end::End;
use ping_pong::{PingPong, WORD};
use windows::{Shape, Windows};

/// Options of both commands.
#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// Transport: CudaIpc, Ethernet, Ib0, Ib1, ...
    #[arg(short = 't', long)]
    transport: Transport,
    #[command(flatten)]
    sweep: Sweep,
    /// Measurements of each size, alternating with the bare loop
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measurements of each size before those, not timed
    #[arg(short = 'w', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=1000))]
    warmup: u32,
    /// The side that makes and compares the data of a check
    #[arg(long, value_enum, default_value_t)]
    check_by: CheckBy,
    /// Let the proxies spin without ever yielding their cores
    #[arg(long)]
    spin: bool,
    /// Measure each row for at least this long, such as 500ms, 5s or 2m, instead of a number of rounds
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "rounds")]
    duration: Option<Duration>,
    #[command(flatten)]
    results: args::Results,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    common: Common,
    /// Let the bare loop take a position and fence before it writes its word, as every push to a FIFO must
    #[arg(long)]
    fenced: bool,
    /// Round trips of one measurement
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    common: Common,
    /// Puts per window, which ends with a signal and a flush; with 1, round trips of a put and a signal are measured
    /// instead
    #[arg(short = 'W', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    window: u32,
    /// Windows, or round trips, of one measurement
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: Option<u32>,
}

impl Common {
    fn idle(&self) -> Idle {
        if self.spin { Idle::Spin } else { Idle::default() }
    }

    /// The sizes to measure in bytes, rounded up to whole words. `min` and `max` are the defaults.
    fn sizes(&self, (min, max): (u64, u64)) -> Sizes {
        self.sweep.rounded(min, max, Rounding::Up, WORD as u64, "words")
    }

    /// The head of the run: settings, the meaning of our figures and, if there is a bare loop, of the bare ones.
    fn head(&self, rank: &Rank, name: &str, settings: &str, ours: &str, bare: &str) -> Result<Head> {
        let mut head = Head::gather(rank, name)?;
        let Self { transport, rounds, warmup, .. } = self;
        head.parameters([
            ("transport", transport.to_string().into()),
            ("rounds", (*rounds).into()),
            ("warmup", (*warmup).into()),
            ("duration_s", self.duration.map(|time| time.as_secs_f64()).into()),
            ("spin", self.spin.into()),
        ]);
        let idle = self.idle();
        head.line(format!("transport {transport} {settings} rounds {rounds} warmup {warmup} idle {idle:?}"));
        head.time("median of the measurements, each the mean of its calls, on the slowest rank");
        head.line(format!("ours: {ours}"));
        if self.has_bare() {
            head.line(format!("bare: {bare}"));
        }
        Ok(head)
    }

    /// Whether there is a bare loop. It needs the peer's memory mapped here.
    fn has_bare(&self) -> bool {
        self.transport == Transport::CudaIpc
    }
}

pub(super) fn latency(args: &LatencyArgs) -> Result<ExitCode> {
    const NAME: &str = "port-lat";
    let common = &args.common;
    let need = Need::pairs(format!("{NAME} -t {}", common.transport))?;
    let outlets = super::output::open(&common.results.files)?;
    let rank = need.join()?;
    let session = Session::new(&rank);
    let bounds = common.sweep.bounds(8, 64 << 10)?;
    let Sizes { list: mut sizes, note } = common.sizes(bounds);
    // Size 0, a signal alone, is always measured.
    sizes.retain(|&size| size > 0);
    sizes.insert(0, 0);
    let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
    let end = End::prepare(&rank, common.transport, common.idle(), common.check_by, most)?;
    let mut hop = PingPong::new(&rank)?;
    let mut relay = if common.has_bare() { Some(Relay::new(&rank, args.fenced)?) } else { None };
    let mut head = common.head(
        &rank,
        NAME,
        &format!("round trips {}", auto(args.iterations)),
        "put and signal until the peer's kernel has seen the signal, half a round trip; 0 B: a signal alone",
        if args.fenced {
            "kernel takes a position, fences and writes a word; host calls cuMemcpyAsync and cuStreamWriteValue64; kernel polls"
        } else {
            "kernel writes a word; host calls cuMemcpyAsync and cuStreamWriteValue64; kernel polls"
        },
    )?;
    head.parameters(common.sweep.parameters(bounds));
    head.parameters([("iterations", args.iterations.into()), ("fenced", args.fenced.into())]);
    head.parameters([("checked", end.checks().into())]);
    head.line(format!("validation {}", end.checks()));
    note.into_iter().for_each(|note| head.line(note));
    let table = Comparison::by_bytes(Unit::Microseconds);
    let code =
        super::output::present(&session, &head, choose(common.results.stats, table), outlets, |output| {
            sizes.iter().try_for_each(|&size| {
                session.progress.row(format!("{size} B"));
                let bytes = usize::try_from(size)?;
                let iterations = args.iterations.unwrap_or_else(|| hop.default_iterations(&rank, bytes));
                let wrong = rank.sum(hop.check(&rank, &end, bytes)?)?;
                let mut ours = || hop.run(&rank, &end, bytes, iterations);
                let bare = relay.as_mut().map(|relay| || relay.run(&rank, &end, bytes, iterations));
                let (ours, bare) = in_turns(&session, common, &mut ours, bare)?;
                let row = |record: Record| Record { size_bytes: Some(size), ..record };
                let ours =
                    row(Record::measured(common.transport.to_string(), ours.of_many(iterations.into())));
                let bare = bare.map(|bare| row(Record::comparison("bare", bare.of_many(iterations.into()))));
                output.rows(paired(Record { wrong: Some(wrong), ..ours }, bare))
            })
        })?;
    end.finish(&rank)?;
    Ok(code)
}

pub(super) fn put(args: &PutArgs) -> Result<ExitCode> {
    const NAME: &str = "port-put";
    let common = &args.common;
    let need = Need::pairs(format!("{NAME} -t {}", common.transport))?;
    let outlets = super::output::open(&common.results.files)?;
    let rank = need.join()?;
    let session = Session::new(&rank);
    let fast = !session.software() && common.has_bare();
    let largest = match (session.software(), fast) {
        (true, _) => 1 << 20,
        (false, true) => 128 << 20,
        (false, false) => 16 << 20,
    };
    let bounds = common.sweep.bounds(4 << 10, largest)?;
    let Sizes { list: mut sizes, note } = common.sizes(bounds);
    sizes.retain(|&size| size > 0);
    if sizes.is_empty() {
        refuse!("nothing to put: --max-bytes is 0");
    }
    // Enough round trips for milliseconds, or for about a second over a network.
    let moved = if session.software() {
        1
    } else if fast {
        4 << 30
    } else {
        256 << 20
    };
    let shapes = sizes
        .iter()
        .map(|&size| Ok(Shape::choose(usize::try_from(size)?, args.window, args.iterations, moved)))
        .collect::<Result<Vec<_>>>()?;
    let most = shapes.iter().map(|shape| shape.span()).max().unwrap_or(0);
    let end = End::prepare(&rank, common.transport, common.idle(), common.check_by, most)?;
    let engine = if common.has_bare() { Some(CopyEngine::new(&rank)?) } else { None };
    let mut head = common.head(
        &rank,
        NAME,
        &format!("window {} iters {}", args.window, auto(args.iterations)),
        if args.window == 1 {
            "a put, a signal and a wait, half a round trip"
        } else {
            "from the first push of the even rank's kernel to its last flush"
        },
        "as many cuMemcpyAsync between the same addresses",
    )?;
    head.parameters(common.sweep.parameters(bounds));
    head.parameters([("iterations", args.iterations.into()), ("window", args.window.into())]);
    head.parameters([("checked", end.checks().into())]);
    head.line(format!("validation {}", end.checks()));
    note.into_iter().for_each(|note| head.line(note));
    let mut hop = PingPong::new(&rank)?;
    let windows = Windows::new(&rank)?;
    let table = Comparison::by_bytes(Unit::Bandwidth);
    let code =
        super::output::present(&session, &head, choose(common.results.stats, table), outlets, |output| {
            shapes.iter().try_for_each(|&shape| {
                session.progress.row(format!("{} B", shape.bytes));
                output.rows(put_rows(&session, common, &end, &mut hop, &windows, engine.as_ref(), shape)?)
            })
        })?;
    end.finish(&rank)?;
    Ok(code)
}

fn put_rows(
    session: &Session<'_>,
    common: &Common,
    end: &End,
    hop: &mut PingPong,
    windows: &Windows,
    engine: Option<&CopyEngine>,
    shape: Shape,
) -> Result<Vec<Record>> {
    let (rank, bytes) = (session.rank, shape.bytes);
    let bare = engine.map(|engine| move || engine.run(rank, end, shape));
    let ((ours, bare), wrong) = if shape.window == 1 {
        let ours = in_turns(session, common, &mut || hop.run(rank, end, bytes, shape.windows), bare)?;
        (ours, hop.check(rank, end, bytes)?)
    } else {
        let ours = in_turns(session, common, &mut || windows.run(rank, end, shape), bare)?;
        (ours, windows.check(rank, end, shape)?)
    };
    let wrong = rank.sum(wrong)?;
    let row = |record: Record| {
        let record = Record { size_bytes: Some(bytes as u64), window: Some(shape.window), ..record };
        record.moving(bytes as u64, 1.0)
    };
    let ours = row(Record::measured(common.transport.to_string(), ours.of_many(shape.puts())));
    let bare = bare.map(|bare| row(Record::comparison("copy-eng", bare.of_many(shape.puts()))));
    Ok(paired(Record { wrong: Some(wrong), ..ours }, bare))
}

/// Samples of `ours` and of the bare loop, if there is one, each a whole measurement.
fn in_turns(
    session: &Session<'_>,
    common: &Common,
    ours: &mut dyn FnMut() -> Result<f64>,
    bare: Option<impl FnMut() -> Result<f64>>,
) -> Result<(Timed, Option<Timed>)> {
    let plan = Plan { warmup: common.warmup, until: Until::of(common.rounds, common.duration), calls: 1 };
    let mine: &mut dyn FnMut(u32) -> Result<f64> = &mut |times| mean(times, &mut *ours);
    let Some(mut bare) = bare else {
        let [mine] = sample(session, &plan, [mine])?;
        return Ok((mine, None));
    };
    let [mine, theirs] = sample(session, &plan, [mine, &mut |times| mean(times, &mut bare)])?;
    Ok((mine, Some(theirs)))
}

/// Both rows, or ours alone.
fn paired(ours: Record, bare: Option<Record>) -> Vec<Record> {
    match bare {
        Some(bare) => vec![ours.compared_with(&bare), bare],
        None => vec![ours],
    }
}
