//! `aqueduct plan run`: measures and checks a plan over all ranks of the job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::plan::Plan;

use super::args::Common;
use super::collective::{Bench, Shape};
use super::head::{Head, auto};
use super::need::Need;
use super::output::{self, present};
use super::pace::Pace;
use super::sweep::{Rounding, Sizes};
use super::table::NcclTable;
use super::timing::Session;
use super::wide::choose;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Plan file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    common: Common,
    /// Run a plan in which `plan check` finds something, such as the fragment of a collective
    #[arg(long)]
    unchecked: bool,
}

pub(crate) fn execute(args: &Args, plan: &Plan) -> Result<ExitCode> {
    let common = &args.common;
    let outlets = output::open(&common.results.files)?;
    let rank = Need::none().join()?;
    let session = Session::new(&rank);
    let shape = Shape::of_plan(plan, rank.bootstrap.size());
    let (least, most) = range(plan, session.software());
    let (min, max) = common.sweep.bounds(least, most)?;
    let grain = shape.grain() * common.datatype.bytes() as u64;
    let Sizes { list: sizes, note } = common.sweep.rounded(min, max, Rounding::Down, grain, "chunks");
    let mut bench = Bench::of_plan(&session, common, plan, args.unchecked, shape, &sizes)?;
    let checks = bench.checks();
    let mut head = Head::gather(&rank, &format!("plan {}", plan.name))?;
    head.line(format!(
        "{} minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} ({checks}) graph: {}",
        plan.collective.kind.name(),
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
        })
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The default smallest and largest size: what the plan's author meant it for, within what all-reduce measures.
fn range(plan: &Plan, software: bool) -> (u64, u64) {
    let (least, most) = if software { (1 << 10, 1 << 20) } else { (1 << 10, 256 << 20) };
    let most = plan.settings.max_bytes.clamp(8, most);
    (plan.settings.min_bytes.clamp(8, most).max(least.min(most)), most)
}
