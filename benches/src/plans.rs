//! CPU time and memory of plans: made, checked, predicted, and turned into kernels.
//! `cargo run --release -p aqueduct-benches --bin plans`
//!
//! Every subject runs in a process of its own, whose peak of resident memory stands behind its time. Needs no GPU.

use std::io::{Error, Result as IoResult};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use aqueduct::Result;
use aqueduct::plan::cost::{Machine, predict};
use aqueduct::plan::{self, Element, Plan, check, pass, programs};

/// Ranks of the large plans.
const MANY: u32 = 1024;
/// Kernels are made so often; the fastest counts, the others waited for memory.
const ROUNDS: usize = 15;

const SUBJECTS: [&str; 3] = ["ring", "recursive-halving", "kernel"];

fn main() -> ExitCode {
    match std::env::args().nth(1) {
        None => match SUBJECTS.iter().try_for_each(|subject| run(subject)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("plans: {error}");
                ExitCode::FAILURE
            }
        },
        Some(subject) => match measure(&subject) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("plans: {subject}: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn run(subject: &str) -> IoResult<()> {
    let status = Command::new(std::env::current_exe()?).arg(subject).status()?;
    if status.success() { Ok(()) } else { Err(Error::other(format!("{subject}: {status}"))) }
}

fn measure(subject: &str) -> Result<()> {
    match subject {
        "kernel" => kernel(),
        algorithm => large(algorithm),
    }
}

/// An all-reduce of 1,024 ranks.
fn large(algorithm: &str) -> Result<()> {
    let name = format!("all-reduce {algorithm}, {MANY} ranks");
    let program = timed(&format!("{name}: program"), || {
        programs::find("all-reduce", Some(algorithm))?.program(MANY, &programs::Choices::default())
    })?;
    let plan = timed(&format!("{name}: build"), || program.build())?;
    println!("# {name}: {} operations", plan.operations());
    let compiled = timed(&format!("{name}: passes"), || pass::run(&plan, &pass::Options::default(), None))?;
    drop(plan);
    println!("# {name}: {} operations behind the passes", compiled.operations());
    let findings = timed(&format!("{name}: check"), || Ok(check::check(&compiled)))?;
    if let Some(finding) = findings.first() {
        println!("# {finding}");
    }
    let mut machine = Machine::named("h200-x8")?;
    machine.gpus = f64::from(MANY);
    let us = timed(&format!("{name}: predict 1 GiB"), || predict(&compiled, &machine, 1 << 30))?;
    println!("# {name}: predicted {us:.0} us on one host of so many GPUs");
    Ok(())
}

/// The kernel of a rank of eight, with 64 blocks.
fn kernel() -> Result<()> {
    let plan = programs::find("all-reduce", Some("two-shot"))?
        .program(8, &programs::Choices { chunk_factor: Some(64), ..Default::default() })?
        .compile()?;
    let blocks = plan.ranks[0].blocks.len();
    let name = format!("all-reduce two-shot, 8 ranks, {blocks} blocks");
    fastest(&format!("{name}: check"), || check::check(&plan).len())?;
    fastest(&format!("{name}: PTX of a rank"), || text(&plan).len())?;
    println!("# {name}: {} bytes of PTX", text(&plan).len());
    Ok(())
}

fn text(plan: &Plan) -> String {
    plan::ptx(plan, 0, Element::F16, None, 90).unwrap_or_default()
}

fn fastest<T>(name: &str, mut work: impl FnMut() -> T) -> Result<()> {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        std::hint::black_box(work());
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("{name:<60} {:>10.2} ms {:>6} MiB", times[0].as_secs_f64() * 1e3, peak());
    Ok(())
}

fn timed<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (begun, used) = (Instant::now(), processor());
    let result = work()?;
    let (wall, used) = (begun.elapsed().as_secs_f64(), processor() - used);
    println!("{name:<60} {wall:>6.2} s ({used:.2} s of a processor) {:>6} MiB", peak());
    Ok(result)
}

/// Seconds of a processor that this process has used.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// The peak of resident memory so far, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}
