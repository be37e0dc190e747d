//! `aqueduct perf startup`: time from the start of this job to the end of its first all-reduce, by phase.
//!
//! CUDA's part (loading the driver, the context and its first allocation) comes first and is reported apart: it is the
//! same for every library. All ranks end together, so the rank that started last did not wait for others: the table has
//! its times.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use aqueduct::Deadline;
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, GpuBuffer, Stream};
use aqueduct::internals::env::Env;
use aqueduct::plan::{Element, Kind, Reduction};

use super::args::Files;
use super::head::Head;
use super::output::{Foot, Table, open, present};
use super::record::{Over, Record};
use super::timing::Session;
use crate::job::{self, Rank};

/// The phases, CUDA's own first.
const PHASES: [&str; 5] =
    ["driver and context", "bootstrap", "communicator", "kernels and memory", "first all-reduce"];
/// All phases but the first.
const TOTAL: &str = "all without CUDA's own";
const COUNT: usize = 256;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let outlets = open(&args.files)?;
    let timeout = Env::get()?.timeout;
    let deadline = Deadline::after(timeout);
    let mut marks = vec![Instant::now()];
    let driver = job::driver()?;
    // The launcher's environment says which device; a process without a launcher is rank 0.
    let number = aqueduct::bootstrap::Launch::from_env()?.map_or(0, |launch| launch.rank);
    let device = Device::new(&driver, job::ordinal(&driver, number)?)?;
    let context = Context::new(&device)?;
    let stream = Stream::new(&context)?;
    let data = Arc::new(GpuBuffer::new(&context, COUNT * 4)?);
    let ones: Vec<u8> = (0..COUNT).flat_map(|_| 1_f32.to_le_bytes()).collect();
    data.upload(0, &ones, deadline)?;
    marks.push(Instant::now());

    let bootstrap = job::connect_bootstrap()?;
    marks.push(Instant::now());
    let comm = Communicator::new(&bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;
    marks.push(Instant::now());
    let rank = Rank::new(bootstrap, context, comm, timeout);
    let config = CollectiveConfig::default().in_call_order().with_variants([(Element::F32, Reduction::Sum)]);
    let all_reduce = Collective::prepare(&rank.comm, Kind::AllReduce, config, deadline)?;
    marks.push(Instant::now());
    let slice = data.slice(..)?;
    all_reduce.launch(&stream, &slice, &slice, COUNT, Element::F32, Reduction::Sum)?;
    stream.synchronize(deadline)?;
    marks.push(Instant::now());

    let mut sums = vec![0_u8; COUNT * 4];
    data.download(0, &mut sums, deadline)?;
    let right = (rank.comm.size() as f32).to_le_bytes();
    let wrong = rank.sum(sums.chunks_exact(4).filter(|sum| **sum != right).count() as u64)?;
    let mine: Vec<u8> =
        marks.windows(2).flat_map(|pair| ((pair[1] - pair[0]).as_secs_f64() * 1e6).to_le_bytes()).collect();
    let everyone = rank.bootstrap.all_gather(&mine, deadline)?;
    let total = |times: &[f64]| times.iter().skip(1).sum::<f64>();
    let last = everyone
        .iter()
        .map(|bytes| bytes.as_chunks::<8>().0.iter().map(|us| f64::from_le_bytes(*us)).collect::<Vec<_>>())
        .min_by(|a, b| total(a).total_cmp(&total(b)))
        .filter(|times| times.len() == PHASES.len())
        .context("another rank sent a different number of phases; do all ranks run the same version?")?;

    let session = Session::new(&rank);
    let mut head = Head::gather(&rank, "startup")?;
    head.time("of the rank that started last, which did not wait for others");
    present(&session, &head, Box::new(Phases), outlets, |output| {
        let phases = PHASES.into_iter().zip(last.iter().copied());
        let rows: Vec<Record> = phases
            .chain([(TOTAL, total(&last))])
            .map(|(phase, time)| Record {
                algorithm: "start".to_owned(),
                phase: Some(phase),
                calls_per_sample: 1,
                wrong: (phase == PHASES[4]).then_some(wrong),
                ..Record::default().with_samples(vec![time], Over::Calls)
            })
            .collect();
        output.rows(rows)
    })
}

/// Prints the time of each phase.
struct Phases;

impl Table for Phases {
    fn print_head(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "#{:>23} {:>10}", "phase", "time")?;
        writeln!(out, "#{:>23} {:>10}", "", "(ms)")
    }

    fn print(&mut self, rows: &[Record], out: &mut dyn Write) -> std::io::Result<()> {
        rows.iter().try_for_each(|row| {
            let time = row.time_p50_us.unwrap_or(f64::NAN) / 1e3;
            writeln!(out, "{:>24} {time:>10.2}", row.phase.unwrap_or_default())
        })
    }

    fn print_foot(&self, _: &Foot, _: &mut dyn Write) -> std::io::Result<()> {
        Ok(())
    }
}
