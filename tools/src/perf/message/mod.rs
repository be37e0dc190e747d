//! `aqueduct perf message`, `message-rate` and `message-read`: messengers of two processes of this host. Over TCP they stand beside a
//! bare socket between the same two processes in the same run, over shared memory beside a bare word that both bounce, or a copy. Over
//! queue pairs they stand alone: perftest measures those.

mod bare;
mod limits;
mod memory;
mod pair;
mod partner;
mod place;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use aqueduct::Deadline;
use aqueduct::internals::env;

use super::args::Results;
use super::head::Head;
use super::output::Output;
use super::progress::Progress;
use super::record::{Over, Record, Series};
use super::sweep::{Rounding, Sizes, Sweep};
use super::table::NcclTable;
use super::wide::choose;
use crate::job;
use crate::refusal::refuse;
use bare::Work;
use limits::copies;
use pair::{Pair, Way};
use place::Destination;

/// Round trips of one series before the other has its turn.
const TURN: u32 = 100;
/// Round trips, and the messages and reads of a sample, that are not timed first.
const WARM_UP: u32 = 200;
/// Samples of a rate or a bandwidth.
const SAMPLES: u32 = 10;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Latency,
    Rate,
    Read,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: Sweep,
    /// Round trips, messages or reads of each size [default: see docs/perf.md]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iterations: Option<u32>,
    /// What carries the messages, one after the other
    #[arg(short = 't', long, value_delimiter = ',', default_values = ["tcp", "shm"])]
    transport: Vec<Way>,
    /// Reads that are under way at a time
    #[arg(short = 'W', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    window: u32,
    /// Memory of the reader into which reads go
    #[arg(long, value_enum, default_value = "vector")]
    into: Destination,
    /// Give up after this time: seconds, or with a unit, such as 500ms, 5s or 2m
    #[arg(long, default_value = "120", value_name = "TIME", value_parser = env::time)]
    timeout: Duration,
    #[command(flatten)]
    results: Results,
    /// Internal: the second process
    #[arg(long, hide = true)]
    partner: bool,
}

pub(super) fn execute(args: &Args, operation: Operation) -> Result<ExitCode> {
    let deadline = Deadline::after(args.timeout);
    if args.partner {
        return partner::serve(deadline);
    }
    if job::is_rank()? {
        refuse!("perf {} starts its own second process; run it without a launcher", operation.name());
    }
    let (min, max) = match operation {
        Operation::Latency => (8, 8),
        Operation::Rate => (8, 4 << 10),
        Operation::Read => (4 << 10, 4 << 20),
    };
    let (min, max) = args.sweep.bounds(min, max)?;
    if min == 0 {
        refuse!("perf {} begins at 1 B", operation.name());
    }
    if operation != Operation::Read && max > 8 << 10 {
        refuse!("sizes of messages are 1 B to 8 KiB; use message-read for longer data");
    }
    if operation == Operation::Read {
        memory::check(max, args.window)?;
    }
    let Sizes { list: sizes, .. } = args.sweep.rounded(min, max, Rounding::Up, 1, "bytes");
    let outlets = super::output::open(&args.results.files)?;
    let iterations = args.iterations.unwrap_or(operation.iterations());
    let mut head = Head::alone(operation.name());
    let ways: Vec<_> = args.transport.iter().map(|way| way.name()).collect();
    head.line(format!("two processes of this host, over {}", ways.join(" and ")));
    head.parameters(args.sweep.parameters((min, max)));
    head.parameters([("iterations", iterations.into()), ("window", args.window.into())]);
    head.parameters([("transport", ways.join(",").into()), ("into", args.into.name().into())]);
    head.time(operation.meaning());
    let progress = Progress::start(true);
    let table = choose(args.results.stats, NcclTable::default());
    let mut output = Output::begin(true, &head, table, outlets, progress.clone())?;
    // One after the other: the partner polls all the time.
    for &way in &args.transport {
        let mut pair = Pair::start(way, deadline)?;
        for &size in &sizes {
            progress.row(format!("{size} B, {}", way.name()));
            let both = match operation {
                Operation::Latency => latency(&mut pair, way, size, iterations)?,
                Operation::Rate => rate(&mut pair, way, size, iterations)?,
                Operation::Read => read(&mut pair, way, size, iterations, (args.window, args.into))?,
            };
            output.rows(operation.rows(way, size, both))?;
        }
        pair.end()?;
    }
    output.end()
}

/// Times per call in µs of one size: the library's, and those of what it is compared with.
#[derive(Default)]
struct Both {
    ours: Vec<f64>,
    bare: Vec<f64>,
    /// Calls per sample.
    calls: u32,
    /// Wrong bytes, or messages that are missing.
    wrong: u64,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Latency => "message",
            Self::Rate => "message-rate",
            Self::Read => "message-read",
        }
    }

    fn iterations(self) -> u32 {
        match self {
            Self::Latency => 10_000,
            Self::Rate => 1_000_000,
            Self::Read => 1_000,
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Latency => "one message, one way: half of each round trip",
            Self::Rate => "one message, one way: the mean of a sample, until the last one has been answered",
            Self::Read => "one read: the mean of a sample, until the last one is complete",
        }
    }

    fn rows(self, way: Way, size: u64, both: Both) -> Vec<Record> {
        let over = if self == Self::Latency { Over::Calls } else { Over::BatchMeans };
        let row = |series, algorithm: &str, samples| {
            let row = Record { series, algorithm: algorithm.to_owned(), ..Record::default() };
            let row = Record { size_bytes: Some(size), calls_per_sample: u64::from(both.calls), ..row };
            let row = row.with_samples(samples, over).moving(size, 1.0);
            let rate = row.time_p50_us.filter(|time| *time > 0.0).map(|time| 1.0 / time);
            Record { rate_m_s: rate.filter(|_| self == Self::Rate), ..row }
        };
        let bare = match (way, self) {
            (Way::Tcp, _) => "bare",
            (Way::SharedMemory, Self::Latency) => "flag",
            (Way::SharedMemory, _) => "memcpy",
            (Way::Verbs, _) => {
                let ours = row(Series::Measured, way.name(), both.ours);
                return vec![Record { wrong: Some(both.wrong), ..ours }];
            }
        };
        let bare = row(Series::Comparison, bare, both.bare);
        let ours = row(Series::Measured, way.name(), both.ours).compared_with(&bare);
        vec![Record { wrong: Some(both.wrong), ..ours }, bare]
    }
}

/// Round trips one at a time, in turns with those of the bare socket or word.
fn latency(pair: &mut Pair, way: Way, size: u64, iterations: u32) -> Result<Both> {
    let mut both = Both { calls: 1, ..Both::default() };
    let mut body = vec![0; usize::try_from(size)?];
    for trip in 0..WARM_UP {
        pair.trip(&mut body, trip)?;
    }
    let mut done = 0;
    while done < iterations {
        let turn = TURN.min(iterations - done);
        for trip in 0..turn {
            let (time, wrong) = pair.trip(&mut body, done + trip)?;
            both.ours.push(time / 2.0);
            both.wrong += wrong;
        }
        // The first trips wait until the other process has turned to the socket or the word.
        let mut times = match way {
            Way::Tcp => pair.bare(Work::Echo, turn + 10, size)?,
            Way::SharedMemory => pair.flags(turn + 10)?,
            Way::Verbs => Vec::new(),
        };
        both.bare.extend(times.drain(times.len().min(10)..).map(|time| time / 2.0));
        done += turn;
    }
    Ok(both)
}

/// Messages one way, as fast as they are taken.
fn rate(pair: &mut Pair, way: Way, size: u64, iterations: u32) -> Result<Both> {
    let each = iterations.div_ceil(SAMPLES);
    let mut both = Both { calls: each, ..Both::default() };
    let body = vec![7; usize::try_from(size)?];
    pair.burst(&body, WARM_UP)?;
    for _ in 0..SAMPLES {
        let (time, missing) = pair.burst(&body, each)?;
        both.ours.push(time / f64::from(each));
        both.wrong += missing;
        let total: f64 = match way {
            // The same bytes in pieces as long as the library's batches, without heads.
            Way::Tcp => pair.bare(Work::Drain, each, size)?.iter().sum(),
            Way::SharedMemory => copies(each, body.len()),
            Way::Verbs => continue,
        };
        both.bare.push(total / f64::from(each));
    }
    Ok(both)
}

/// Windows of reads, one after the other.
fn read(
    pair: &mut Pair,
    way: Way,
    size: u64,
    iterations: u32,
    (window, into): (u32, Destination),
) -> Result<Both> {
    let (each, length) = (iterations.div_ceil(SAMPLES).max(window), usize::try_from(size)?);
    let mut both = Both { calls: each, ..Both::default() };
    let token = pair.exposed(size)?;
    // The first reads touch all of them, and register what is to be.
    let mut places = (0..window).map(|_| into.place(length)).collect::<Result<Vec<_>>>()?;
    pair.reads(&token, window, &mut places)?;
    for _ in 0..SAMPLES {
        let (time, wrong) = pair.reads(&token, each, &mut places)?;
        both.ours.push(time / f64::from(each));
        both.wrong += wrong;
        let total: f64 = match way {
            Way::Tcp => pair.bare(Work::Stream, each, size)?.iter().sum(),
            Way::SharedMemory => copies(each, length),
            Way::Verbs => continue,
        };
        both.bare.push(total / f64::from(each));
    }
    Ok(both)
}
