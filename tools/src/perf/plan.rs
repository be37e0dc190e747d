//! `aqueduct plan run`: measures and checks a plan over all ranks of the job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::comm::Transport;
use aqueduct::plan::Plan;

use super::args::Common;
use super::collective::{Bench, Kernels};
use super::head::{Head, auto};
use super::need::Need;
use super::output::{self, present};
use super::pace::Pace;
use super::shape::Shape;
use super::sweep::{Rounding, Sizes};
use super::table::NcclTable;
use super::timing::Session;
use super::traced;
use super::wide::choose;
use crate::printable::printable;
use crate::refusal::refuse;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Plan file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Run a plan in which `plan check` finds something, such as the fragment of a collective
    #[arg(long)]
    unchecked: bool,
    /// Transport of port channels [default: CudaIpc where the peer's device is reached, Ethernet elsewhere]
    #[arg(long)]
    port_transport: Option<Transport>,
    /// Draw a call of the largest size into this file, as devices made it; write its times to FILE.jsonl
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn execute(args: &Args, plan: &Plan) -> Result<ExitCode> {
    let common = &args.common;
    let outlets = output::open(&common.results.files)?;
    let rank = Need::none().join()?;
    let (ranks, size) = (plan.ranks.len(), rank.bootstrap.size());
    if ranks != size as usize {
        refuse!(
            "the plan is one of {ranks} ranks and the job has {size}; start it with aqueduct run -n {ranks} --"
        );
    }
    if let Some(path) = args.trace.as_ref().filter(|_| rank.is_root()) {
        traced::probe(path)?;
    }
    let session = Session::new(&rank);
    let shape = Shape::of_plan(plan, rank.bootstrap.size());
    let (least, most) = range(plan, session.software());
    let (min, max) = common.sweep.bounds(least, most)?;
    let grain = shape.grain() * common.datatype.bytes() as u64;
    let Sizes { list: sizes, note } = common.sweep.rounded(min, max, Rounding::Down, grain, "chunks");
    let kernels = Kernels { unchecked: args.unchecked, trace: false, port_transport: args.port_transport };
    let mut bench = Bench::of_plan(&session, common, plan, kernels, shape.clone(), &sizes)?;
    let checks = bench.checks();
    let mut head = Head::gather(&rank, &format!("plan {}", printable(&plan.name)))?;
    head.line(format!(
        "{} minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} ({checks}) graph: {}",
        printable(plan.collective.kind.name()),
        common.sweep.step(),
        auto(common.warmup),
        auto(common.iterations),
        common.check,
        common.graph,
    ));
    head.parameters(common.sweep.parameters((min, max)));
    head.parameters([
        ("plan", file_name(&args.file).into()),
        ("collective", plan.collective.kind.name().into()),
        ("iterations", common.iterations.into()),
        ("warmup", common.warmup.into()),
        ("check", common.check.into()),
        ("checked", checks.into()),
        ("graph", common.graph.into()),
        ("datatype", common.datatype.name().into()),
        ("reduction", common.op.name().into()),
    ]);
    head.parameters(common.pace.parameters());
    head.time(Pace::meaning("calls"));
    note.into_iter().for_each(|note| head.line(note));
    present(&session, &head, choose(common.results.stats, NcclTable::default()), outlets, |output| {
        (0..sizes.len()).try_for_each(|index| {
            session.progress.row(format!("{} B", sizes[index]));
            bench.measure(index, output)?;
            output.print()
        })?;
        let (Some(path), Some(&most)) = (&args.trace, sizes.last()) else { return Ok(()) };
        traced::trace(&session, common, plan, kernels, shape, most, path)
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The default smallest and largest size: what the plan's author meant it for, within what all-reduce measures.
pub(crate) fn range(plan: &Plan, software: bool) -> (u64, u64) {
    let (least, most) = if software { (1 << 10, 1 << 20) } else { (1 << 10, 256 << 20) };
    let most = plan.settings.max_bytes.clamp(8, most);
    (plan.settings.min_bytes.clamp(8, most).max(least.min(most)), most)
}
