//! `aqueduct perf bootstrap -n N`: time and bytes that N ranks need to connect to each other, by phase.
//!
//! The ranks are threads without devices. Everything else is as in a job: a rendezvous in a process of its own, TCP
//! between all ranks, the control links of a communicator. They are spread over as few processes as the limit on open
//! files allows.

mod phases;
mod ranks;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use aqueduct::bootstrap::Rendezvous;
use aqueduct::internals::env;

use super::args::Files;
use super::head::Head;
use super::output::Output;
use super::progress::Progress;
use super::usage::children;
use crate::{job, program};
use phases::{Phases, Run};
use ranks::{LocalRanks, Sample};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of ranks, one after the other
    #[arg(short = 'n', long, required = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Vec<u32>,
    /// Repeat this many times and report the run of median length
    #[arg(short = 'r', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Give up after this time: seconds, or with a unit, such as 500ms, 5s or 2m
    #[arg(long, default_value = "120", value_name = "TIME", value_parser = env::time)]
    timeout: Duration,
    #[command(flatten)]
    files: Files,
    /// Internal: first rank and number of ranks of this process
    #[arg(long, hide = true, num_args = 2)]
    part: Option<Vec<u32>>,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    let timeout = args.timeout;
    if let Some([first, count]) = args.part.as_deref() {
        return LocalRanks { first: *first, count: *count, size: args.ranks[0], timeout }.execute();
    }
    // The limit on open files is known before anything is printed.
    args.ranks.iter().try_for_each(|&ranks| ranks::ranks_per_process(ranks).map(drop))?;
    if job::is_rank()? {
        bail!("perf bootstrap starts its own ranks; run it without a launcher");
    }
    let outlets = super::output::open(&args.files)?;
    let mut head = Head::alone("bootstrap");
    head.line("threads without devices, TCP");
    head.parameters([("repeat", args.repeat.into()), ("ranks", args.ranks.clone().into())]);
    head.time("by each rank's own clock, waiting for others included; bytes exclude handshakes");
    let progress = Progress::start(true);
    let mut output = Output::begin(true, &head, Box::new(Phases::default()), outlets, progress.clone())?;
    for &ranks in &args.ranks {
        progress.row(format!("{ranks} ranks"));
        let mut runs = Vec::new();
        for number in 1..=args.repeat {
            progress.step(|| format!("run {number} of {}", args.repeat));
            runs.push(wire_up(ranks, timeout)?);
        }
        output.rows(Run::median(runs).rows())?;
    }
    output.end()
}

/// Measures one run: `ranks` ranks connect to each other and leave again.
fn wire_up(ranks: u32, timeout: Duration) -> Result<Run> {
    let each = ranks::ranks_per_process(ranks)?;
    let rendezvous = Rendezvous::start(Some(ranks))?;
    let id = rendezvous.unique_id().to_text();
    let mut processes = (0..ranks)
        .step_by(each as usize)
        .map(|first| Process::start(first, each.min(ranks - first), ranks, id.expose(), timeout))
        .collect::<Result<Vec<_>>>()?;
    for process in &mut processes {
        let line = process.line()?;
        if line != "ready" {
            bail!("a process of ranks printed {line:?} instead of \"ready\"");
        }
    }
    let (since, cpu) = (Instant::now(), children());
    processes.iter_mut().try_for_each(Process::go)?;
    let mut samples: Vec<Sample> = Vec::with_capacity(ranks as usize);
    for process in &mut processes {
        samples.extend(serde_json::from_str::<Vec<Sample>>(&process.line()?)?);
    }
    let total = since.elapsed();
    let count = processes.len();
    processes.into_iter().try_for_each(Process::end)?;
    let after = children();
    let cpu = (after.0.saturating_sub(cpu.0), after.1.saturating_sub(cpu.1));
    Ok(Run { ranks, processes: count, total, cpu, samples })
}

/// A process with some of the ranks. Dropping it kills the process.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(first: u32, count: u32, size: u32, id: &str, timeout: Duration) -> Result<Self> {
        let mut child = Command::new(program::path()?)
            .args(["perf", "bootstrap", "-n", &size.to_string()])
            .args(["--timeout", &format!("{}ms", timeout.as_secs_f64() * 1e3)])
            .args(["--part", &first.to_string(), &count.to_string()])
            .env("AQUEDUCT_UNIQUE_ID", id)
            // With a thousand ranks on a few cores heartbeats are late, and no rank may be declared lost for that.
            .env("AQUEDUCT_PEER_TIMEOUT", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of ranks")?;
        let output = child.stdout.take().context("a piped child has standard output")?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Reads the next line of the process's output. The process has a deadline of its own, so this ends.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("a process of ranks failed; its error is above");
        }
        Ok(line.trim_end().to_owned())
    }

    fn go(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("a piped child has standard input")?;
        Ok(input.write_all(b"go\n")?)
    }

    fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if !status.success() {
            bail!("a process of ranks ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if the process has already been waited for, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
