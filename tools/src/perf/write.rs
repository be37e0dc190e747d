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

use super::report::{Measured, Report, Row, measured};
use crate::job::Rank;
pub(super) use args::Args;
use args::Pattern;
use bare::Bare;
use connections::{Connections, micros};

/// Number of measurements; the table has their median.
const BATCHES: u32 = 10;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Write,
    Latency,
    Flush,
}

pub(super) fn execute(args: &Args, operation: Operation) -> Result<ExitCode> {
    let rank = Rank::join()?;
    let (size, software) = (rank.bootstrap.size(), rank.context.driver().is_software());
    let name = operation.name();
    if size < 2 || (args.pattern == Pattern::Pairs && !size.is_multiple_of(2)) {
        bail!(
            "perf {name} works on pairs: run an even number of ranks, such as `aqueduct run -n 2 -- aqueduct perf {name}`"
        );
    }
    if args.pattern == Pattern::AllToAll && operation != Operation::Write {
        bail!("perf {name} supports only the pattern pairs");
    }
    let (min, max) = match (operation, software) {
        (Operation::Write, true) => (4 << 10, 16 << 20),
        (Operation::Write, false) => (4 << 10, 128 << 20),
        (Operation::Latency, _) => (8, 64 << 10),
        (Operation::Flush, _) => (8, 4 << 20),
    };
    let (min, max) = args.sweep.bounds(min, max)?;
    let sizes = args.sweep.sizes(min, max);
    let most = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
    let mut bench = Bench {
        rank: &rank,
        args,
        operation,
        connections: Connections::prepare(&rank, args, most)?,
        bare: match (args.transport, operation) {
            (Transport::CudaIpc, Operation::Write) => Some(Bare::new(&rank, args.connections)?),
            _ => None,
        },
    };
    let mut header = super::output::header(&rank, &name)?;
    header.push(format!(
        "transport {} memory {:?} to {:?} connections {} pattern {:?} window {} iters {} validation {}",
        args.transport,
        args.memory,
        args.peer_memory.unwrap_or(args.memory),
        args.connections,
        args.pattern,
        args.window.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
        args.iterations.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
        args.check,
    ));
    header.push(format!("time: {}", operation.meaning()));
    let report = Report { operation: name, header, rows: Vec::new() };
    super::output::present(&rank, report, &args.files, |keep| {
        sizes
            .iter()
            .try_for_each(|&size| bench.rows(usize::try_from(size)?)?.into_iter().try_for_each(&mut *keep))
    })
}

impl Operation {
    fn name(self) -> String {
        match self {
            Self::Write => "write",
            Self::Latency => "write-lat",
            Self::Flush => "flush",
        }
        .to_owned()
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
    rank: &'a Rank,
    args: &'a Args,
    operation: Operation,
    connections: Connections,
    bare: Option<Bare>,
}

impl Bench<'_> {
    /// Checks and measures one size. Returns our row and, where there is one, that of the bare loop.
    fn rows(&mut self, bytes: usize) -> Result<Vec<Row>> {
        let mut wrong = None;
        for _ in 0..self.args.check {
            let mine = self.connections.check(self.rank, bytes)?;
            wrong = Some(wrong.unwrap_or(0) + self.rank.sum(mine)?);
        }
        let transport = self.args.transport.to_string();
        match self.operation {
            Operation::Latency => {
                let times =
                    self.batches(1000, |bench, count| bench.connections.bounce(bench.rank, bytes, count))?;
                Ok(vec![row(bytes, 1, &transport, measured(&times, bytes as u64, 1.0, wrong))])
            }
            Operation::Flush => {
                let times = self.batches(1000, |bench, count| {
                    bench.connections.write_and_flush(bench.rank, bytes, count)
                })?;
                Ok(vec![row(bytes, 1, &transport, measured(&times, bytes as u64, 1.0, wrong))])
            }
            Operation::Write => self.bandwidth(bytes, &transport, wrong),
        }
    }

    fn bandwidth(&mut self, bytes: usize, transport: &str, wrong: Option<u64>) -> Result<Vec<Row>> {
        let window = self.args.window.unwrap_or_else(|| default_window(bytes));
        let peers = self.connections.written().max(1) as u64;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        // Alternate, so that other load on the machine affects both alike.
        for batch in 0..self.args.iterations.unwrap_or(BATCHES).max(1) + 1 {
            let (mine, theirs) = self.once(bytes, window)?;
            // The first batch is the warm-up.
            if batch > 0 {
                ours.push(mine);
                bare.extend(theirs);
            }
        }
        let out = bytes as u64 * self.rank.max(peers as f64)? as u64;
        let ours = measured(&ours, out, 1.0, wrong);
        let mut rows = vec![row(bytes, window, transport, ours)];
        if !bare.is_empty() {
            rows.push(row(bytes, window, "bare", measured(&bare, out, 1.0, None)));
        }
        Ok(rows)
    }

    /// Time per write of one window in microseconds, of the slowest rank: ours, and that of the bare loop.
    fn once(&mut self, bytes: usize, window: u32) -> Result<(f64, Option<f64>)> {
        let (rank, connections) = (self.rank, &self.connections);
        rank.barrier()?;
        let Some(bare) = &self.bare else {
            let start = Instant::now();
            connections.window(rank, bytes, window)?;
            return Ok((rank.max(micros(start, window))?, None));
        };
        let mine = bare.time_connections(rank, connections, bytes, window)?;
        let mine = rank.max(mine / f64::from(window))?;
        let theirs = bare.time_copies(rank, connections, bytes, window)?;
        Ok((mine, Some(rank.max(theirs / f64::from(window))?)))
    }

    /// Time per call in microseconds in each of ten measurements, of the slowest rank.
    fn batches(&mut self, default: u32, run: impl Fn(&Self, u32) -> Result<f64>) -> Result<Vec<f64>> {
        let count = self.args.iterations.unwrap_or(default).div_ceil(BATCHES).max(1);
        run(self, count)?;
        (0..BATCHES)
            .map(|_| {
                self.rank.barrier()?;
                self.rank.max(run(self, count)?)
            })
            .collect()
    }
}

/// Default number of writes before a flush: enough for 64 MiB.
fn default_window(bytes: usize) -> u32 {
    ((64 << 20) / bytes.max(1)).clamp(1, 1000) as u32
}

fn row(bytes: usize, window: u32, algorithm: &str, measured: Measured) -> Row {
    Row {
        size: bytes as u64,
        count: u64::from(window),
        datatype: "byte".to_owned(),
        redop: "none".to_owned(),
        algorithm: algorithm.to_owned(),
        out_of_place: Some(measured),
        in_place: None,
    }
}
