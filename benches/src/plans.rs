//! CPU time and memory of plans: made, checked, predicted, and turned into kernels.
//! `cargo run --release -p aqueduct-benches --bin plans`
//!
//! Every subject runs in a process of its own, whose peak of resident memory stands behind its time. Needs no GPU; `prepare` uses
//! the one there is.

use std::io::{Error, Result as IoResult};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use aqueduct::Result;
use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::plans::{Steps, prepare_alone};
use aqueduct::plan::cost::{Machine, predict};
use aqueduct::plan::{self, Element, ExecutorConfig, Plan, check, pass, programs};

/// Ranks of the large plans.
const MANY: u32 = 1024;
/// Kernels are made so often; the fastest counts, the others waited for memory.
const ROUNDS: usize = 15;

const SUBJECTS: [&str; 4] = ["ring", "recursive-halving", "kernel", "prepare"];

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
    let mut command = Command::new(std::env::current_exe()?);
    if std::env::var_os("AQUEDUCT_SOFT_SMS").is_none() {
        // As many as an H200 has: all blocks of the plan that is prepared run at once.
        command.env("AQUEDUCT_SOFT_SMS", "132");
    }
    let status = command.arg(subject).status()?;
    if status.success() { Ok(()) } else { Err(Error::other(format!("{subject}: {status}"))) }
}

fn measure(subject: &str) -> Result<()> {
    match subject {
        "kernel" => kernel(),
        "prepare" => prepare(),
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

/// A plan of eight ranks with 64 blocks each.
fn of_eight() -> Result<Plan> {
    programs::find("all-reduce", Some("two-shot"))?
        .program(8, &programs::Choices { chunk_factor: Some(64), ..Default::default() })?
        .compile()
}

/// The kernel of a rank.
fn kernel() -> Result<()> {
    let plan = of_eight()?;
    let blocks = plan.ranks[0].blocks.len();
    let name = format!("all-reduce two-shot, 8 ranks, {blocks} blocks");
    fastest(&format!("{name}: check"), || check::check(&plan).len())?;
    fastest(&format!("{name}: PTX of a rank"), || text(&plan).len())?;
    println!("# {name}: {} bytes of PTX", text(&plan).len());
    Ok(())
}

/// Measures a rank's own part of preparing the plan, for one type and reduction: with the driver's compiler, and with the cache of an
/// earlier process. The driver is that of `AQUEDUCT_DRIVER`.
fn prepare() -> Result<()> {
    let plan = of_eight()?;
    let driver = Driver::select(Some(cuda_soft::driver_table))?;
    let context = Context::new(&Device::of_rank(&driver, 0)?)?;
    let config = ExecutorConfig::default().in_call_order().with_variants([(Element::F16, None)]);
    let cache = std::env::temp_dir().join(format!("aqueduct-plans-{}", std::process::id()));
    println!("# driver: {}", driver.provenance());
    let once = |name: &str, cache: Option<&Path>| {
        let steps = prepare_alone(&context, cache, &plan, 0, &config)?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let Steps { check, digest, kernels } = steps;
        let (all, check, digest, kernels) =
            (ms(check + digest + kernels), ms(check), ms(digest), ms(kernels));
        println!(
            "prepare {name:<28} {all:>8.2} ms = check {check:.2} + digest {digest:.2} + kernels {kernels:.2}"
        );
        Ok(())
    };
    let rounds = (0..5).try_for_each(|_| {
        once("without a cache", None)?;
        let _ = std::fs::remove_dir_all(&cache);
        once("into an empty cache", Some(&cache))?;
        once("from the cache", Some(&cache))
    });
    let _ = std::fs::remove_dir_all(&cache);
    rounds
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
