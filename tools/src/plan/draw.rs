//! `--svg` and `--trace`: a plan drawn over time.

use std::path::{Path, PathBuf};

use anyhow::Result;
use aqueduct::ErrorKind;
use aqueduct::plan::cost::timeline;
use aqueduct::plan::{Op, Plan};

use super::described;
use super::show;
use super::svg::{Drawing, MOST};
use crate::perf::measure::Measure;
use crate::perf::sweep::parse_size;
use crate::refusal::{Refusal, refuse};

/// Usual size of the message.
const BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Draw blocks, operations and signals over time into this file, as a machine is predicted to run them
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// The machine: h200-x2, h200-x4, h200-x8, or the file of a description [default: by the plan's ranks]
    #[arg(long, value_name = "NAME|FILE", requires = "svg")]
    machine: Option<String>,
    /// Size of the message (suffixes K, M, G are powers of 1024) [default: 1M, or what the plan is for]
    #[arg(long, value_parser = parse_size, value_name = "SIZE", requires = "svg")]
    bytes: Option<u64>,
}

/// Draws a call as the cost model predicts it.
pub(super) fn predicted(args: &Args, plan: &Plan, path: &Path) -> Result<()> {
    let machine = match &args.machine {
        Some(name) => described::machine(name)?,
        None => described::usual(plan)?,
    };
    let measure = Measure::of(plan);
    let grain = measure.grain();
    let usual = || BYTES.max(plan.settings.min_bytes).min(plan.settings.max_bytes).next_multiple_of(grain);
    let size = args.bytes.unwrap_or_else(usual);
    let timeline = timeline(plan, &machine, measure.input(size)).map_err(|error| match error.kind() {
        ErrorKind::InvalidUsage | ErrorKind::Plan => Refusal::new(error.message()).into(),
        _ => anyhow::Error::from(error),
    })?;
    let about = format!("{size} bytes, predicted for {}", machine.name);
    write(&Drawing { plan, timeline: &timeline, about: &about }, path)
}

/// An operation in words.
pub(crate) fn in_words(op: &Op) -> String {
    show::text(op)
}

/// Writes a drawing.
pub(crate) fn write(drawing: &Drawing<'_>, path: &Path) -> Result<()> {
    let spans = drawing.timeline.spans.len();
    if spans > MOST {
        refuse!(
            "{spans} operations are too many to draw, {MOST} are the most: use a smaller message, or a plan of fewer ranks"
        );
    }
    let failed = |error| Refusal::new(format!("cannot write {}: {error}", path.display()));
    std::fs::write(path, drawing.to_string()).map_err(failed)?;
    Ok(())
}
