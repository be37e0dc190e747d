//! `aqueduct perf startup`: time from the start of this job to the end of its first all-reduce, by phase.
//!
//! CUDA's part (loading the driver, the context and its first allocation) comes first and is reported apart: it is the
//! same for every library. All ranks end together, so the rank that started last did not wait for others: the table has
//! its times.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use aqueduct::Deadline;
use aqueduct::collective::{AllReduce, AllReduceConfig, ElementType, ReduceOp};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, GpuBuffer, Stream};
use aqueduct::internals::env::Env;
use serde::Serialize;

use crate::job;

/// The phases, CUDA's own first.
const PHASES: [&str; 5] =
    ["driver and context", "bootstrap", "communicator", "kernels and memory", "first all-reduce"];
const COUNT: usize = 256;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Also write the result as JSON to this file (- for standard output instead of the table)
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Startup {
    ranks: u32,
    software: bool,
    phases: Vec<Phase>,
    total_without_cuda_ms: f64,
}

#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    ms: f64,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let timeout = Env::get()?.timeout;
    let deadline = Deadline::after(timeout);
    let mut marks = vec![Instant::now()];
    let driver = job::driver()?;
    // The launcher's environment says which device; a process without a launcher is rank 0.
    let rank = aqueduct::bootstrap::Launch::from_env()?.map_or(0, |launch| launch.rank);
    let device = Device::new(&driver, job::ordinal(&driver, rank)?)?;
    let context = Context::new(&device)?;
    let stream = Stream::new(&context)?;
    let data = Arc::new(GpuBuffer::new(&context, COUNT * 4)?);
    let ones: Vec<u8> = (0..COUNT).flat_map(|_| 1_f32.to_le_bytes()).collect();
    data.upload(0, &ones, deadline)?;
    marks.push(Instant::now());

    let bootstrap = job::connect_bootstrap()?;
    marks.push(Instant::now());
    let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;
    marks.push(Instant::now());
    let config = AllReduceConfig::default().with_variants([(ElementType::F32, ReduceOp::Sum)]);
    let all_reduce = AllReduce::prepare(&comm, config, deadline)?;
    marks.push(Instant::now());
    let slice = data.slice(..)?;
    all_reduce.launch(&stream, &slice, &slice, COUNT, ElementType::F32, ReduceOp::Sum)?;
    stream.synchronize(deadline)?;
    marks.push(Instant::now());

    let mut sums = vec![0_u8; COUNT * 4];
    data.download(0, &mut sums, deadline)?;
    if !sums.chunks_exact(4).all(|sum| *sum == (comm.size() as f32).to_le_bytes()) {
        bail!("rank {} got a wrong sum", comm.rank());
    }
    let mine: Vec<u8> =
        marks.windows(2).flat_map(|pair| ((pair[1] - pair[0]).as_secs_f64() * 1e3).to_le_bytes()).collect();
    let everyone = bootstrap.all_gather(&mine, deadline)?;
    let total = |times: &[f64]| times.iter().skip(1).sum::<f64>();
    let last = everyone
        .iter()
        .map(|bytes| bytes.as_chunks::<8>().0.iter().map(|ms| f64::from_le_bytes(*ms)).collect::<Vec<_>>())
        .min_by(|a, b| total(a).total_cmp(&total(b)))
        .filter(|times| times.len() == PHASES.len())
        .context("another rank sent a different number of phases; do all ranks run the same version?")?;
    if comm.rank() == 0 {
        let total_without_cuda_ms = total(&last);
        let phases = PHASES.into_iter().zip(last).map(|(name, ms)| Phase { name, ms }).collect();
        let startup =
            Startup { ranks: comm.size(), software: driver.is_software(), phases, total_without_cuda_ms };
        if args.json.as_deref() != Some(Path::new("-")) {
            startup.print(&mut std::io::stdout())?;
        }
        if let Some(path) = &args.json {
            super::output::write_json(&startup, path)?;
        }
    }
    bootstrap.barrier(deadline)?;
    Ok(ExitCode::SUCCESS)
}

impl Startup {
    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        if self.software {
            writeln!(out, "# software device: times say nothing about GPUs")?;
        }
        writeln!(out, "# aqueduct {} perf startup: {} ranks", env!("CARGO_PKG_VERSION"), self.ranks)?;
        writeln!(out, "#{:>23} {:>10}", "phase", "time")?;
        writeln!(out, "#{:>23} {:>10}", "", "(ms)")?;
        for phase in &self.phases {
            writeln!(out, "{:>24} {:>10.2}", phase.name, phase.ms)?;
        }
        writeln!(out, "{:>24} {:>10.2}", "all without CUDA's own", self.total_without_cuda_ms)
    }
}
