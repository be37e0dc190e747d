//! `aqueduct perf`: measures and checks one operation over all ranks of the job.

mod args;
mod barrier;
pub(crate) mod bench;
mod bootstrap;
mod channel;
mod checker;
mod collective;
mod comparison;
mod copies;
pub(crate) mod data;
mod fifo;
mod files;
mod head;
mod host_thread;
pub(crate) mod measure;
mod message;
pub(crate) mod names;
mod need;
mod options;
mod output;
mod pace;
mod ping_pong;
pub(crate) mod plan;
mod port;
mod progress;
mod record;
mod shape;
mod simulated;
mod startup;
mod stats;
pub(crate) mod sweep;
mod table;
mod timing;
mod traced;
pub(crate) mod tune;
mod usage;
mod variable;
mod wide;
mod write;

use std::process::ExitCode;

use anyhow::Result;
pub(crate) use args::Args;
pub(crate) use options::refuse_idle_options;
pub(crate) use progress::AT_A_TERMINAL;

use args::Operation;
use head::{Head, auto};
use need::Need;
use output::{Output, present};
use pace::Pace;
use shape::Shape;
use sweep::{Rounding, Sizes};
use table::NcclTable;
use timing::Session;
use variable::Parts;
use wide::choose;

use crate::refusal::refuse;

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
    /// Time of a barrier of all ranks on a stream
    Barrier(barrier::Args),
    /// Time that N ranks without devices need to connect to each other, by phase
    Bootstrap(bootstrap::Args),
    /// Time from the start of this job to the end of its first all-reduce, by phase
    Startup(startup::Args),
    /// Bandwidth of a connection: windows of writes
    Write(write::Args),
    /// Bandwidth of a connection: windows of reads
    Read(write::Args),
    /// Latency of a connection, one way: a write and a signal until the peer's host has seen the signal
    WriteLat(write::Args),
    /// Latency of a connection's flush: a write until it is known to have arrived
    Flush(write::Args),
    /// Latency of a message between two processes that this command starts, one way, beside a bare socket
    Message(message::Args),
    /// Messages per second, one way, beside the same bytes over a bare socket
    MessageRate(message::Args),
    /// Bandwidth of remote reads by token, beside the same bytes over a bare socket
    MessageRead(message::Args),
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
            Some(Special::Barrier(args)) => barrier::execute(args),
            Some(Special::Bootstrap(args)) => bootstrap::execute(args),
            Some(Special::Startup(args)) => startup::execute(args),
            Some(Special::Write(args)) => write::execute(args, write::Operation::Write),
            Some(Special::Read(args)) => write::execute(args, write::Operation::Read),
            Some(Special::WriteLat(args)) => write::execute(args, write::Operation::Latency),
            Some(Special::Flush(args)) => write::execute(args, write::Operation::Flush),
            Some(Special::Message(args)) => message::execute(args, message::Operation::Latency),
            Some(Special::MessageRate(args)) => message::execute(args, message::Operation::Rate),
            Some(Special::MessageRead(args)) => message::execute(args, message::Operation::Read),
            Some(Special::Fifo(args)) => fifo::execute(args),
            Some(Special::PortPut(args)) => port::put(args),
            Some(Special::PortLat(args)) => port::latency(args),
            None => execute(&self.args),
        }
    }
}

/// Measures the size with this index.
type Measure<'a> = Box<dyn FnMut(usize, &mut Output) -> Result<()> + 'a>;

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let Some(measured) = args.operation else { refuse!("no operation given; see `aqueduct perf --help`") };
    let common = &args.common;
    let need = match measured {
        operation if operation.is_collective() => Need::none(),
        operation => Need::pairs(operation.name())?,
    };
    let outlets = output::open(&common.results.files)?;
    let rank = need.join()?;
    let session = Session::new(&rank);
    let (min, max) = default_range(measured, session.software());
    let (min, max) = common.sweep.bounds(min, max)?;
    let built_in = measured.collective(args.root).map(|kind| Shape::built_in(kind, rank.bootstrap.size()));
    let variable = Parts::of(measured, rank.bootstrap.size());
    if args.root >= rank.bootstrap.size() {
        let ranks = rank.bootstrap.size();
        refuse!("--root {}: there are {ranks} ranks; use at most {}", args.root, ranks - 1);
    }
    let element = common.datatype.bytes() as u64;
    let Sizes { list: sizes, note } = match (measured, &built_in) {
        (_, Some(shape)) => {
            let what = if shape.grain() == 1 { "elements" } else { "parts of all ranks" };
            common.sweep.rounded(min, max, Rounding::Down, element * shape.grain(), what)
        }
        (_, None) if variable.is_some() => {
            let grain = variable.as_ref().map_or(1, Parts::grain);
            common.sweep.rounded(min, max, Rounding::Down, element * grain, "parts of all ranks")
        }
        (operation, None) => {
            common.sweep.rounded(min, max, Rounding::Up, channel::grain(operation), "packets")
        }
    };
    // All that can be refused is refused before the files are begun.
    let mut measure: Measure<'_>;
    let checks;
    let mut reasons = Vec::new();
    match (measured, built_in) {
        (_, Some(shape)) => {
            let shown = args.local_register == 1;
            let mut bench = collective::Bench::built_in(&session, common, shape, shown, &sizes)?;
            checks = bench.checks();
            if args.explain {
                reasons = bench.reasons()?;
            }
            measure = Box::new(move |index, output| bench.measure(index, output));
        }
        (operation, None) => match variable {
            Some(parts) => {
                let mut bench = variable::Bench::prepare(&session, common, parts, &sizes)?;
                checks = bench.checks().to_owned();
                measure = Box::new(move |index, output| bench.measure(index, output));
            }
            None => {
                let mut bench = channel::Bench::prepare(&session, args, operation, &sizes)?;
                checks = bench.checks().to_owned();
                let sizes = sizes.clone();
                measure = Box::new(move |index, output| bench.measure(sizes[index], output));
            }
        },
    }
    let mut head = Head::gather(&rank, &measured.name())?;
    head.line(format!(
        "minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} ({checks}) graph: {}",
        common.sweep.step(),
        auto(common.warmup),
        auto(common.iterations),
        common.check,
        common.graph,
    ));
    head.parameters(common.sweep.parameters((min, max)));
    head.parameters([
        ("iterations", common.iterations.into()),
        ("warmup", common.warmup.into()),
        ("check", common.check.into()),
        ("checked", checks.into()),
        ("graph", common.graph.into()),
        ("bidirectional", args.bidirectional.into()),
    ]);
    head.parameters(common.pace.parameters());
    let calls = if measured.bounces() { "round trips" } else { "calls" };
    head.time(Pace::meaning(calls));
    if measured.is_collective() {
        head.parameters([("datatype", common.datatype.name().into())]);
    }
    if measured.reduces() {
        head.parameters([("reduction", common.op.name().into())]);
    }
    if measured.collective(args.root).is_some() {
        head.parameters([
            ("local_register", (args.local_register == 1).into()),
            ("explain", args.explain.into()),
        ]);
    }
    if measured.has_root() {
        head.parameters([("root", args.root.into())]);
    }
    note.into_iter().for_each(|note| head.line(note));
    reasons.into_iter().for_each(|reason| head.line(reason));
    present(&session, &head, choose(common.results.stats, NcclTable::default()), outlets, |output| {
        (0..sizes.len()).try_for_each(|index| {
            session.progress.row(format!("{} B", sizes[index]));
            measure(index, output)?;
            output.print()
        })
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
