//! `aqueduct bench`: a built-in collective beside NCCL's, in one group of processes, call for call.

mod nccl;
mod plot;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use aqueduct::bootstrap::Launch;
use aqueduct::gpu::Stream;

use super::args::{Common, Operation};
use super::collective::Bench;
use super::head::{Head, auto};
use super::need::Need;
use super::output::{self, Foot, Table, present};
use super::pace::Pace;
use super::record::{Place, Record, Series};
use super::shape::Shape;
use super::sweep::{Rounding, Sizes};
use super::timing::{EventClock, Launches, Session, sample};
use super::wide::choose;
use crate::refusal::refuse;
use nccl::{Buffers, Elements, Nccl};
use plot::Plot;

/// `aqueduct bench`: ours and NCCL's times of one collective in one table.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Collective: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce or send-recv
    #[arg(value_enum)]
    operation: Operation,
    #[command(flatten)]
    common: Common,
    /// The rank that broadcasts, or gets the reduction
    #[arg(short = 'r', long, default_value_t = 0)]
    root: u32,
    /// NCCL's library
    #[arg(long, value_name = "FILE", default_value = "libnccl.so.2")]
    nccl: String,
    /// Draw times and bandwidths against the size, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let common = &args.common;
    let Some(kind) = args.operation.compared(args.root) else {
        refuse!("{} has no counterpart in NCCL; `aqueduct perf` measures it", args.operation.name())
    };
    let outlets = output::open(&common.results.files)?;
    // Before anything is measured, and by the rank that draws.
    let first = Launch::from_env()?.is_none_or(|launch| launch.rank == 0);
    let drawing = args
        .plot
        .as_ref()
        .filter(|_| first)
        .map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let drawing = drawing.transpose()?;
    let rank = Need::none().join()?;
    let ranks = rank.bootstrap.size();
    if args.root >= ranks {
        refuse!("--root {}: there are {ranks} ranks; use at most {}", args.root, ranks - 1);
    }
    let session = Session::new(&rank);
    let shape = Shape::built_in(kind.clone(), ranks);
    let software = session.software();
    let (min, max) = common.sweep.bounds(1 << 10, if software { 64 << 10 } else { 1 << 30 })?;
    let grain = shape.grain() * common.datatype.bytes() as u64;
    let Sizes { list: sizes, note } =
        common.sweep.rounded(min, max, Rounding::Down, grain, "parts of all ranks");
    let longest = usize::try_from(sizes.iter().copied().max().unwrap_or(0))?;
    let mut ours = Bench::built_in(&session, common, shape.clone(), true, &sizes)?;
    let (ty, op) = (common.datatype, common.op);
    let nccl = match software {
        true => Err(anyhow::anyhow!("there is no GPU that it could run on")),
        false => Nccl::open(&rank, &args.nccl, ty, op),
    };
    let mut head = Head::gather(&rank, &format!("bench {}", args.operation.name()))?;
    head.line(format!(
        "minBytes {min} maxBytes {max} step: {} warmup iters: {} iters: {} validation: {} ({}) graph: {}",
        common.sweep.step(),
        auto(common.warmup),
        auto(common.iterations),
        common.check,
        ours.checks(),
        common.graph,
    ));
    head.parameters(common.sweep.parameters((min, max)));
    head.parameters([
        ("iterations", common.iterations.into()),
        ("warmup", common.warmup.into()),
        ("check", common.check.into()),
        ("graph", common.graph.into()),
        ("datatype", common.datatype.name().into()),
        ("reduction", common.op.name().into()),
    ]);
    match &nccl {
        Ok(nccl) => head.line(format!("NCCL {}", nccl.version())),
        Err(error) => head.line(format!("without NCCL: {error:#}")),
    }
    head.time(Pace::meaning("calls"));
    note.into_iter().for_each(|note| head.line(note));
    let rival = match &nccl {
        Ok(nccl) => {
            let symmetric = nccl.symmetric(&rank, longest)?;
            Some(Rival {
                nccl,
                elements: Elements::of(ty, op),
                symmetric,
                stream: Stream::new(&rank.context)?,
            })
        }
        Err(_) => None,
    };
    let clock = EventClock::new(&rank)?;
    let mut plot = Plot::new(format!(
        "{} of {ranks} ranks, {}, {}",
        args.operation.name(),
        common.datatype.name(),
        if software { "software device" } else { "GPUs" }
    ));
    let code = present(&session, &head, choose(common.results.stats, Rivals), outlets, |output| {
        sizes.iter().enumerate().try_for_each(|(index, &bytes)| {
            session.progress.row(format!("{bytes} B"));
            let wrong = ours.check(index, Place::OutOfPlace)?;
            let rows = row(&session, common, &clock, (&ours, &shape), rival.as_ref(), bytes, wrong)?;
            rows.iter().for_each(|row| plot.add(row));
            rows.into_iter().try_for_each(|row| output.row(row))?;
            output.print()
        })
    })?;
    if let Some(mut file) = drawing {
        write!(file, "{plot}").context("cannot write the plot")?;
    }
    Ok(code)
}

/// NCCL with what it works on beside the buffers of ours.
struct Rival<'a> {
    nccl: &'a Nccl,
    elements: Elements,
    symmetric: Option<Buffers>,
    stream: Stream,
}

/// Measures one size, each side's calls in turn.
fn row(
    session: &Session<'_>,
    common: &Common,
    clock: &EventClock,
    (ours, shape): (&Bench<'_>, &Shape),
    rival: Option<&Rival<'_>>,
    bytes: u64,
    wrong: Option<u64>,
) -> Result<Vec<Record>> {
    let rank = session.rank;
    let plan = common.plan(bytes, session.software());
    let len = usize::try_from(bytes)?;
    let call = |stream: &Stream| ours.launch(stream, len, Place::OutOfPlace);
    let mine = Launches::prepare(ours.stream(), common.graph, &call)?;
    let record = |name: &str, series: Series, timed| {
        let row = Record::timed(series, name, timed);
        let row = Record {
            size_bytes: Some(bytes),
            datatype: Some(common.datatype.name()),
            reduction: shape.reduces().then(|| common.op.name()),
            place: Some(Place::OutOfPlace),
            wrong: if series == Series::Measured { wrong } else { None },
            ..row
        };
        row.moving(bytes, shape.bus_factor())
    };
    let name = ours.algorithm(len, Place::OutOfPlace)?;
    let Some(rival) = rival else {
        let [timed] = sample(session, &plan, [&mut |calls| mine.time(rank, clock, calls)])?;
        return Ok(vec![record(name, Series::Measured, timed.of_parts(mine.per_replay()))]);
    };
    let on = |buffers: Buffers| {
        move |stream: &Stream| {
            rival.nccl.enqueue(stream, shape.kind(), buffers, shape.buffers(len).into(), rival.elements)
        }
    };
    let (input, output_at) = ours.addresses();
    let plain = on(Buffers { input, output: output_at });
    let plain = Launches::prepare(&rival.stream, common.graph, &plain)?;
    let parts = mine.per_replay();
    let timed: Vec<_> = match rival.symmetric {
        None => {
            let [a, b] = sample(
                session,
                &plan,
                [&mut |calls| mine.time(rank, clock, calls), &mut |calls| plain.time(rank, clock, calls)],
            )?;
            vec![a, b]
        }
        Some(buffers) => {
            let symmetric = on(buffers);
            let symmetric = Launches::prepare(&rival.stream, common.graph, &symmetric)?;
            let [a, b, c] = sample(
                session,
                &plan,
                [
                    &mut |calls| mine.time(rank, clock, calls),
                    &mut |calls| plain.time(rank, clock, calls),
                    &mut |calls| symmetric.time(rank, clock, calls),
                ],
            )?;
            vec![a, b, c]
        }
    };
    let mut rows = timed.into_iter().map(|timed| timed.of_parts(parts));
    let mine = rows.next().map(|timed| record(name, Series::Measured, timed));
    let theirs: Vec<Record> = [NCCL, SYMMETRIC]
        .into_iter()
        .zip(rows)
        .map(|(name, timed)| record(name, Series::Comparison, timed))
        .collect();
    let best = theirs
        .iter()
        .min_by(|a, b| a.time_p50_us.unwrap_or(f64::MAX).total_cmp(&b.time_p50_us.unwrap_or(f64::MAX)));
    let mine = mine.map(|mine| best.map_or(mine.clone(), |best| mine.compared_with(best)));
    Ok(mine.into_iter().chain(theirs).collect())
}

const NCCL: &str = "nccl";
const SYMMETRIC: &str = "nccl-symmetric";

/// A line for each size: our time, NCCL's on plain and on symmetric buffers, and ours divided by the better of theirs.
#[derive(Debug)]
struct Rivals;

impl Table for Rivals {
    fn print_head(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(
            out,
            "#{:>11} {:>10} {:>32} {:>10} {:>10} {:>7} {:>6}",
            "size", "algo", "ours", NCCL, "symmetric", "ratio", "#wrong"
        )?;
        writeln!(
            out,
            "#{:>11} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7}",
            "(B)", "", "median(us)", "min(us)", "max(us)", "(us)", "(us)", ""
        )
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> std::io::Result<()> {
        let Some(ours) = rows.iter().find(|row| row.series == Series::Measured) else { return Ok(()) };
        let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2}"));
        let theirs =
            |name: &str| time(rows.iter().find(|row| row.algorithm == name).and_then(|row| row.time_p50_us));
        writeln!(
            out,
            "{:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>6}",
            ours.size_bytes.unwrap_or(0),
            ours.algorithm,
            time(ours.time_p50_us),
            time(ours.time_min_us),
            time(ours.time_max_us),
            theirs(NCCL),
            theirs(SYMMETRIC),
            ours.speed_ratio.map_or_else(|| "-".to_owned(), |speed| format!("{:.3}", 1.0 / speed)),
            ours.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string()),
        )
    }

    fn print_foot(&self, _: &Foot, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "# ratio: our median time divided by the better of NCCL's; below 1 is faster")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_times() {
        let row = |series, algorithm: &str, time: f64| Record {
            series,
            algorithm: algorithm.to_owned(),
            size_bytes: Some(1024),
            time_p50_us: Some(time),
            time_min_us: Some(time),
            time_max_us: Some(time),
            ..Record::default()
        };
        let (plain, symmetric) =
            (row(Series::Comparison, NCCL, 8.0), row(Series::Comparison, SYMMETRIC, 4.0));
        let ours = row(Series::Measured, "packets", 2.0).compared_with(&symmetric);
        let mut out = Vec::new();
        Rivals.print(&[ours.clone(), plain, symmetric], &mut out).unwrap();
        Rivals.print(&[Record { speed_ratio: None, ..ours }], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["1024", "packets", "2.00", "2.00", "2.00", "8.00", "4.00", "0.500", "N/A"]);
        assert_eq!(words[1], ["1024", "packets", "2.00", "2.00", "2.00", "-", "-", "-", "N/A"]);
    }
}
