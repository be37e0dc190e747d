//! `aqueduct perf`: measures and checks one operation over all ranks of the job.

mod all_reduce;
mod args;
mod bootstrap;
mod channel;
mod comparison;
pub(crate) mod data;
mod fifo;
mod host_thread;
mod output;
mod ping_pong;
mod port;
mod report;
mod startup;
mod timing;
mod write;

use std::process::ExitCode;

use anyhow::{Result, bail};
pub(crate) use args::Args;

use crate::job::Rank;
use args::Operation;
use output::{header, present};
use report::Report;

/// `aqueduct perf`: an operation, or a measurement with options of its own.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Command {
    #[command(subcommand)]
    special: Option<Special>,
    #[command(flatten)]
    args: Args,
}

#[derive(Debug, clap::Subcommand)]
enum Special {
    /// Time that N ranks without devices need to connect to each other, by phase
    Bootstrap(bootstrap::Args),
    /// Time from the start of this job to the end of its first all-reduce, by phase
    Startup(startup::Args),
    /// Bandwidth of a connection: windows of writes
    Write(write::Args),
    /// Latency of a connection, one way: a write and a signal until the peer's host has seen the signal
    WriteLat(write::Args),
    /// Latency of a connection's flush: a write until it is known to have arrived
    Flush(write::Args),
    /// Triggers per second from threads of a GPU to a proxy that handles each, compared with a bare loop
    Fifo(fifo::Args),
    /// Bandwidth of a port channel: windows of puts, compared with the copy engine
    PortPut(port::PutArgs),
    /// Latency of a port channel, one way: a put and a signal, or a signal alone, until the peer's kernel has seen the
    /// signal
    PortLat(port::LatencyArgs),
}

impl Command {
    pub(crate) fn execute(&self) -> Result<ExitCode> {
        match &self.special {
            Some(Special::Bootstrap(args)) => bootstrap::execute(args),
            Some(Special::Startup(args)) => startup::execute(args),
            Some(Special::Write(args)) => write::execute(args, write::Operation::Write),
            Some(Special::WriteLat(args)) => write::execute(args, write::Operation::Latency),
            Some(Special::Flush(args)) => write::execute(args, write::Operation::Flush),
            Some(Special::Fifo(args)) => fifo::execute(args),
            Some(Special::PortPut(args)) => port::put(args),
            Some(Special::PortLat(args)) => port::latency(args),
            None => execute(&self.args),
        }
    }
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let Some(measured) = args.operation else { bail!("no operation given; see `aqueduct perf --help`") };
    let rank = Rank::join()?;
    let (min, max) = default_range(measured, rank.context.driver().is_software());
    let (min, max) = args.sweep.bounds(min, max)?;
    let sizes = args.sweep.sizes(min, max);
    let name = measured.name();
    let mut header = header(&rank, &name)?;
    header.push(format!(
        "minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} graph: {}",
        args.sweep.step(),
        args.warmup.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
        args.iterations.map_or_else(|| "auto".to_owned(), |n| n.to_string()),
        args.check,
        args.graph,
    ));
    let report = Report { operation: name, header, rows: Vec::new() };
    present(&rank, report, &args.files, |keep| match measured {
        Operation::AllReduce => {
            let mut bench = all_reduce::Bench::prepare(&rank, args, &sizes)?;
            (0..sizes.len()).try_for_each(|index| keep(bench.row(index)?))
        }
        operation => {
            let mut bench = channel::Bench::prepare(&rank, args, operation, &sizes)?;
            sizes.iter().try_for_each(|&size| bench.rows(size)?.into_iter().try_for_each(&mut *keep))
        }
    })
}

/// The default smallest and largest size in bytes: what fits the operation and, on the software device, runs in a
/// minute.
fn default_range(operation: Operation, software: bool) -> (u64, u64) {
    match (operation, software) {
        (Operation::Signal, _) => (8, 8),
        (Operation::Ll8 | Operation::Ll16 | Operation::Ll128, _) => (8, 64 << 10),
        (_, true) => (8, 16 << 20),
        (_, false) => (8, 256 << 20),
    }
}
