//! `aqueduct perf write|read|write-lat|flush`: connections driven by the host, over any transport and kind of memory.
//!
//! `write` and `read` post a window of writes or reads and then flush; over CudaIpc it is compared with a bare loop of the
//! driver's copies in the same run. `write-lat` bounces a write and a signal between two hosts and reports half a round trip.
//! `flush` is the time from a write until it is known to have arrived.

mod args;
mod bare;
mod connections;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use aqueduct::comm::Transport;

use super::head::{Head, auto};
use super::need::Need;
use super::pace::Pace;
use super::record::Record;
use super::sweep;
use super::table::NcclTable;
use super::timing::{Plan, Session, Timed, mean, sample};
use super::wide::choose;
use args::Pattern;
pub(super) use args::{Args, Memory};
use bare::Bare;
use connections::{Connections, Turn, Way, micros};

/// Largest number of samples of `write-lat` and `flush`.
const BATCHES: u32 = 10;
/// Default number of windows, each a sample; of round trips; and of flushes.
const WINDOWS: u32 = 10;
const ROUND_TRIPS: u32 = 1000;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Write,
    Read,
    Latency,
    Flush,
}

pub(super) fn execute(args: &Args, operation: Operation) -> Result<ExitCode> {
    let name = operation.name();
    if let Some(sizes) = &args.mix {
        sweep::total(sizes)?;
    }
    let command = format!("{name} -t {}", args.transport);
    let need = match args.pattern {
        Pattern::AllToAll => Need::several(command)?,
        _ => Need::pairs(command)?,
    };
    let outlets = super::output::open(&args.results.files)?;
    let rank = need.join()?;
    let session = Session::new(&rank);
    let (min, max) = match (operation, session.software()) {
        (Operation::Write | Operation::Read, true) => (4 << 10, 16 << 20),
        (Operation::Write | Operation::Read, false) => (4 << 10, 128 << 20),
        (Operation::Latency, _) => (8, 64 << 10),
        (Operation::Flush, _) => (8, 4 << 20),
    };
    let (min, max) = args.sweep.bounds(min, max)?;
    let turns = match &args.mix {
        Some(sizes) => vec![sizes.clone()],
        None => args.sweep.sizes(min, max).into_iter().map(|size| vec![size]).collect(),
    };
    let turns = turns
        .into_iter()
        .map(|sizes| Ok(Turn::new(sizes.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>()?)))
        .collect::<Result<Vec<_>>>()?;
    let most = turns.iter().map(|turn| turn.bytes).max().unwrap_or(0);
    let bench = Bench {
        session: &session,
        args,
        operation,
        connections: Connections::prepare(&rank, args, operation.way(), most)?,
        bare: match (args.transport, operation) {
            (Transport::CudaIpc, Operation::Write | Operation::Read) => {
                Some(Bare::new(&rank, args.connections)?)
            }
            _ => None,
        },
    };
    let mut head = Head::gather(&rank, name)?;
    head.line(format!(
        "transport {} memory {:?} to {:?} connections {} pattern {:?} window {} warmup iters: {} iters {} validation {} ({})",
        args.transport,
        args.memory,
        args.peer_memory.unwrap_or(args.memory),
        args.connections,
        args.pattern,
        auto(args.window),
        auto(args.warmup),
        auto(args.iterations),
        args.check,
        bench.connections.checks(),
    ));
    if args.mix.is_none() {
        head.parameters(args.sweep.parameters((min, max)));
    }
    head.parameters([
        ("transport", args.transport.to_string().into()),
        ("memory", args.memory.name().into()),
        ("peer_memory", args.peer_memory.unwrap_or(args.memory).name().into()),
        ("connections", args.connections.into()),
        ("pattern", args.pattern.name().into()),
        ("mix", args.mix.clone().into()),
        ("window", args.window.into()),
        ("iterations", args.iterations.into()),
        ("warmup", args.warmup.into()),
        ("check", args.check.into()),
        ("checked", bench.connections.checks().into()),
    ]);
    head.parameters(args.pace.parameters());
    head.time(format!("{}; {}", operation.meaning(), Pace::meaning(operation.calls())));
    if let Some(sizes) = &args.mix {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        head.line(format!("size, time: of one {name} of each of {} B", sizes.join(", ")));
    }
    super::output::present(
        &session,
        &head,
        choose(args.results.stats, NcclTable::default()),
        outlets,
        |output| {
            turns.iter().try_for_each(|turn| {
                session.progress.row(format!("{} B", turn.bytes));
                output.rows(bench.rows(turn)?)
            })
        },
    )
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Latency => "write-lat",
            Self::Flush => "flush",
        }
    }

    fn way(self) -> Way {
        if self == Self::Read { Way::Read } else { Way::Write }
    }

    /// Name of the calls that one sample averages.
    fn calls(self) -> &'static str {
        match self {
            Self::Write | Self::Read => "windows",
            Self::Latency => "round trips",
            Self::Flush => "flushes",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Write => "a window of writes and a flush, per write; all peers of a rank together",
            Self::Read => "a window of reads and a flush, per read; all peers of a rank together",
            Self::Latency => "write and signal until the peer's host has seen the signal, half a round trip",
            Self::Flush => "write and flush",
        }
    }
}

/// Connections and buffers, made once for all sizes.
struct Bench<'a> {
    session: &'a Session<'a>,
    args: &'a Args,
    operation: Operation,
    connections: Connections,
    bare: Option<Bare>,
}

impl Bench<'_> {
    /// Checks and measures one size. Returns our row and, where there is one, that of the bare loop.
    fn rows(&self, turn: &Turn) -> Result<Vec<Record>> {
        let (rank, bytes) = (self.session.rank, turn.bytes);
        let mut wrong = None;
        for number in 1..=self.args.check {
            self.session.progress.step(|| format!("check {number} of {}", self.args.check));
            let mine = self.connections.check(rank, turn)?;
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let mut rows = match self.operation {
            Operation::Latency => {
                self.one_by_one(turn, |count| self.connections.bounce(rank, bytes, count))?
            }
            Operation::Flush => {
                self.one_by_one(turn, |count| self.connections.write_and_flush(rank, bytes, count))?
            }
            Operation::Write | Operation::Read => self.windows(turn)?,
        };
        if let Some(ours) = rows.first_mut() {
            ours.wrong = wrong;
        }
        Ok(rows)
    }

    /// Times `run`, which makes so many calls and returns the time of one in microseconds.
    fn one_by_one(&self, turn: &Turn, run: impl Fn(u32) -> Result<f64>) -> Result<Vec<Record>> {
        let iterations = self.args.iterations.unwrap_or(ROUND_TRIPS);
        let plan = self.args.pace.plan(iterations, 0, BATCHES);
        let plan = Plan { warmup: self.args.warmup.unwrap_or(plan.calls), ..plan };
        let [timed] = sample(self.session, &plan, [&mut |count| run(count)])?;
        let record = Record::measured(self.args.transport.to_string(), timed);
        Ok(vec![self.sized(record, turn, 1).moving(turn.bytes as u64, 1.0)])
    }

    fn windows(&self, turn: &Turn) -> Result<Vec<Record>> {
        let (rank, connections) = (self.session.rank, &self.connections);
        let window = self.args.window.unwrap_or_else(|| default_window(turn.bytes));
        let peers = rank.max(connections.acted_on().max(1) as f64)? as u64;
        let iterations = self.args.iterations.unwrap_or(WINDOWS);
        let plan = self.args.pace.plan(iterations, self.args.warmup.unwrap_or(1), iterations);
        let ways = if self.args.pattern == Pattern::Bidirectional { 2.0 } else { 1.0 };
        let row = |record| self.sized(record, turn, window).moving(turn.bytes as u64 * peers, ways);
        // A call of what is sampled is a window; times are per write or read.
        let per_call = |time: f64| time / f64::from(window);
        let ours = |timed: Timed| {
            row(Record::measured(self.args.transport.to_string(), timed.of_many(window.into())))
        };
        let Some(bare) = &self.bare else {
            let host = |windows: u32| {
                let start = Instant::now();
                (0..windows).try_for_each(|_| connections.window(rank, turn, window))?;
                Ok(per_call(micros(start, windows)))
            };
            let [timed] = sample(self.session, &plan, [&mut |windows| host(windows)])?;
            return Ok(vec![ours(timed)]);
        };
        let connected = || bare.time_connections(rank, connections, turn, window).map(per_call);
        let copied = || bare.time_copies(rank, connections, turn, window).map(per_call);
        let [mine, theirs] = sample(
            self.session,
            &plan,
            [&mut |windows| mean(windows, connected), &mut |windows| mean(windows, copied)],
        )?;
        let theirs = row(Record::comparison("bare", theirs.of_many(window.into())));
        Ok(vec![ours(mine).compared_with(&theirs), theirs])
    }

    fn sized(&self, record: Record, turn: &Turn, window: u32) -> Record {
        let sizes = |sizes: &Vec<u64>| sizes.iter().map(u64::to_string).collect::<Vec<_>>().join("+");
        Record {
            size_bytes: Some(turn.bytes as u64),
            sizes: self.args.mix.as_ref().map(sizes),
            count: Some(u64::from(window) * turn.len() as u64),
            window: Some(window),
            datatype: Some("byte"),
            reduction: Some("none"),
            ..record
        }
    }
}

/// Default number of writes before a flush: enough for 64 MiB.
fn default_window(bytes: usize) -> u32 {
    ((64 << 20) / bytes.max(1)).clamp(1, 1000) as u32
}
