//! `plan run --trace`: a call with the times of its operations, drawn and as JSON lines.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use aqueduct::plan::Plan;
use aqueduct::plan::cost::{Span, Timeline};
use serde::{Deserialize, Serialize};

use super::args::Common;
use super::collective::{Bench, Kernels};
use super::shape::Shape;
use super::timing::Session;
use crate::plan::draw;
use crate::plan::svg::Drawing;
use crate::refusal::refuse;

/// One operation: a line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    rank: u32,
    block: u32,
    op: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    inner: Option<u32>,
    iteration: u64,
    #[serde(default)]
    operation: String,
    start_ns: u64,
    end_ns: u64,
}

/// Makes a call of `bytes` after others by kernels that note times. Collective; the first rank writes the files.
pub(super) fn trace(
    session: &Session<'_>,
    common: &Common,
    plan: &Plan,
    kernels: Kernels,
    shape: Shape,
    bytes: u64,
    path: &Path,
) -> Result<()> {
    let rank = session.rank;
    let bench = Bench::of_plan(session, common, plan, Kernels { trace: true, ..kernels }, shape, &[bytes])?;
    let mine: Vec<Line> = bench.trace(bytes)?.into_iter().map(line).collect();
    let mut spans = Vec::new();
    for bytes in rank.bootstrap.all_gather(&serde_json::to_vec(&mine)?, rank.deadline())? {
        let lines: Vec<Line> =
            serde_json::from_slice(&bytes).context("another rank's times are not readable")?;
        spans.extend(lines.into_iter().map(span));
    }
    if !rank.is_root() {
        return Ok(());
    }
    // Timers begin anywhere.
    let first = spans.iter().map(|span| span.start).min().unwrap_or(0);
    spans.iter_mut().for_each(|span| (span.start, span.end) = (span.start - first, span.end - first));
    let timeline = Timeline::new(plan, spans);
    let mut text = String::new();
    for span in &timeline.spans {
        let operation = span.op_of(plan).map_or_else(String::new, draw::in_words);
        writeln!(text, "{}", serde_json::to_string(&Line { operation, ..line(*span) })?)?;
    }
    let data = beside(path);
    std::fs::write(&data, text).with_context(|| format!("cannot write {}", data.display()))?;
    let device = if session.software() { "the software device" } else { "devices" };
    let about = format!("{bytes} bytes, measured on {device}");
    draw::write(&Drawing { plan, timeline: &timeline, about: &about }, path)
}

/// Finds out whether both files can be written, before a long measurement. Leaves what they hold.
pub(super) fn probe(path: &Path) -> Result<()> {
    for path in [path, &beside(path)] {
        if let Err(error) = OpenOptions::new().create(true).append(true).open(path) {
            refuse!("cannot write {}: {error}; name another file with --trace", path.display());
        }
    }
    Ok(())
}

/// The file of the data beside that of the drawing.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".jsonl");
    PathBuf::from(name)
}

fn line(span: Span) -> Line {
    let Span { rank, block, op, inner, iteration, start, end } = span;
    Line { rank, block, op, inner, iteration, operation: String::new(), start_ns: start, end_ns: end }
}

fn span(line: Line) -> Span {
    let Line { rank, block, op, inner, iteration, start_ns, end_ns, .. } = line;
    Span { rank, block, op, inner, iteration, start: start_ns, end: end_ns }
}
