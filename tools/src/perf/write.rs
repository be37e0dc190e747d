//! `aqueduct perf write|write-lat|flush`: connections driven by the host, over any transport and kind of memory.
//!
//! `write` posts a window of writes and then flushes; over CudaIpc it is compared with a bare loop of the driver's
//! copies in the same run. `write-lat` bounces a write and a signal between two hosts and reports half a round trip.
//! `flush` is the time from a write until it is known to have arrived.

mod args;
mod bare;
mod connections;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use aqueduct::comm::Transport;

use super::head::Head;
use super::record::Record;
use super::table::NcclTable;
use super::timing::{Plan, Session, Timed, mean, sample};
use crate::job::Rank;
pub(super) use args::Args;
use args::Pattern;
use bare::Bare;
use connections::{Connections, micros};

/// Largest number of samples of `write-lat` and `flush`.
const BATCHES: u32 = 10;
/// Default number of windows, each a sample; of round trips; and of flushes.
const WINDOWS: u32 = 10;
const ROUND_TRIPS: u32 = 1000;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Write,
    Latency,
    Flush,
}

pub(super) fn execute(args: &Args, operation: Operation) -> Result<ExitCode> {
    let outlets = super::output::open(&args.files)?;
    let rank = Rank::join()?;
    let session = Session::new(&rank);
    let (size, name) = (rank.bootstrap.size(), operation.name());
    if size < 2 || (args.pattern == Pattern::Pairs && !size.is_multiple_of(2)) {
        bail!(
            "perf {name} works on pairs: run an even number of ranks, such as `aqueduct run -n 2 -- aqueduct perf {name}`"
        );
    }
    if args.pattern == Pattern::AllToAll && operation != Operation::Write {
        bail!("perf {name} supports only the pattern pairs");
    }
    let (min, max) = match (operation, session.software()) {
        (Operation::Write, true) => (4 << 10, 16 << 20),
        (Operation::Write, false) => (4 << 10, 128 << 20),
        (Operation::Latency, _) => (8, 64 << 10),
        (Operation::Flush, _) => (8, 4 << 20),
    };
    let (min, max) = args.sweep.bounds(min, max)?;
    let sizes = args.sweep.sizes(min, max);
    let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
    let bench = Bench {
        session: &session,
        args,
        operation,
        connections: Connections::prepare(&rank, args, most)?,
        bare: match (args.transport, operation) {
            (Transport::CudaIpc, Operation::Write) => Some(Bare::new(&rank, args.connections)?),
            _ => None,
        },
    };
    let mut head = Head::gather(&rank, name)?;
    let auto = |number: Option<u32>| number.map_or_else(|| "auto".to_owned(), |n| n.to_string());
    head.line(format!(
        "transport {} memory {:?} to {:?} connections {} pattern {:?} window {} warmup iters: {} iters {} validation {}",
        args.transport,
        args.memory,
        args.peer_memory.unwrap_or(args.memory),
        args.connections,
        args.pattern,
        auto(args.window),
        auto(args.warmup),
        auto(args.iterations),
        args.check,
    ));
    head.parameters(args.sweep.parameters((min, max)));
    head.parameters([
        ("transport", args.transport.to_string().into()),
        ("memory", args.memory.name().into()),
        ("peer_memory", args.peer_memory.unwrap_or(args.memory).name().into()),
        ("connections", args.connections.into()),
        ("pattern", args.pattern.name().into()),
        ("window", args.window.into()),
        ("iterations", args.iterations.into()),
        ("warmup", args.warmup.into()),
        ("check", args.check.into()),
    ]);
    head.time(operation.meaning());
    super::output::present(&session, &head, NcclTable::default(), outlets, |output| {
        sizes.iter().try_for_each(|&size| {
            session.progress.row(format!("{size} B"));
            output.rows(&bench.rows(usize::try_from(size)?)?)
        })
    })
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Latency => "write-lat",
            Self::Flush => "flush",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Write => "a window of writes and a flush, per write; all peers of a rank together",
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
    fn rows(&self, bytes: usize) -> Result<Vec<Record>> {
        let rank = self.session.rank;
        let mut wrong = None;
        for number in 1..=self.args.check {
            self.session.progress.step(|| format!("check {number} of {}", self.args.check));
            let mine = self.connections.check(rank, bytes)?;
            wrong = Some(wrong.unwrap_or(0) + rank.sum(mine)?);
        }
        let mut rows = match self.operation {
            Operation::Latency => {
                self.one_by_one(bytes, |count| self.connections.bounce(rank, bytes, count))?
            }
            Operation::Flush => {
                self.one_by_one(bytes, |count| self.connections.write_and_flush(rank, bytes, count))?
            }
            Operation::Write => self.bandwidth(bytes)?,
        };
        if let Some(ours) = rows.first_mut() {
            ours.wrong = wrong;
        }
        Ok(rows)
    }

    /// Times `run`, which makes so many calls and returns the time of one in microseconds.
    fn one_by_one(&self, bytes: usize, run: impl Fn(u32) -> Result<f64>) -> Result<Vec<Record>> {
        let iterations = self.args.iterations.unwrap_or(ROUND_TRIPS);
        let plan = Plan::new(iterations, 0, BATCHES);
        let plan = Plan { warmup: self.args.warmup.unwrap_or(plan.calls), ..plan };
        let [timed] = sample(self.session, &plan, [&mut |count| run(count)])?;
        let record = Record::measured(self.args.transport.to_string(), timed);
        Ok(vec![sized(record, bytes, 1).moving(bytes as u64, 1.0)])
    }

    fn bandwidth(&self, bytes: usize) -> Result<Vec<Record>> {
        let (rank, connections) = (self.session.rank, &self.connections);
        let window = self.args.window.unwrap_or_else(|| default_window(bytes));
        let peers = rank.max(connections.written().max(1) as f64)? as u64;
        let iterations = self.args.iterations.unwrap_or(WINDOWS);
        let plan = Plan::new(iterations, self.args.warmup.unwrap_or(1), iterations);
        // Time per write: a call of what is sampled is a window.
        let host = |windows: u32| {
            let start = Instant::now();
            (0..windows).try_for_each(|_| connections.window(rank, bytes, window))?;
            Ok(micros(start, windows) / f64::from(window))
        };
        let row = |record| sized(record, bytes, window).moving(bytes as u64 * peers, 1.0);
        let ours = |timed: Timed| row(Record::measured(self.args.transport.to_string(), timed));
        let Some(bare) = &self.bare else {
            let [timed] = sample(self.session, &plan, [&mut |windows| host(windows)])?;
            return Ok(vec![ours(timed.of_many(window.into()))]);
        };
        let per_write = |time: f64| time / f64::from(window);
        let connected = || bare.time_connections(rank, connections, bytes, window).map(per_write);
        let copied = || bare.time_copies(rank, connections, bytes, window).map(per_write);
        let [mine, theirs] = sample(
            self.session,
            &plan,
            [&mut |windows| mean(windows, connected), &mut |windows| mean(windows, copied)],
        )?;
        let theirs = row(Record::comparison("bare", theirs.of_many(window.into())));
        Ok(vec![ours(mine.of_many(window.into())).compared_with(&theirs), theirs])
    }
}

/// Default number of writes before a flush: enough for 64 MiB.
fn default_window(bytes: usize) -> u32 {
    ((64 << 20) / bytes.max(1)).clamp(1, 1000) as u32
}

fn sized(record: Record, bytes: usize, window: u32) -> Record {
    Record {
        size_bytes: Some(bytes as u64),
        count: Some(window.into()),
        window: Some(window),
        datatype: Some("byte"),
        reduction: Some("none"),
        ..record
    }
}
