//! `aqueduct plan`: makes plan files, looks at them, and runs them.

mod compile;
mod new;
mod policy;
mod show;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::plan::{Plan, Reduction, check, file, oracle, pass, simulate};

use crate::stderr::say;
use crate::stdout::Stdout;
use policy::Policy;

/// Exit code if a plan is wrong.
const FINDINGS: u8 = 1;
/// Exit code if a file cannot be read: what the command was given is wrong, not the plan in it.
const USAGE: u8 = 2;
/// Elements of all inputs of a simulated call: the simulator holds three calls, and outputs and scratch besides, in memory.
const MOST_ELEMENTS: u64 = 1 << 26;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Find what is wrong with plans: exit code 0 if nothing is, 1 if something is
    Check {
        /// Plan files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print a plan, one operation per line
    Show {
        /// Plan file
        file: PathBuf,
        #[command(flatten)]
        passes: Passes,
    },
    /// Write the plan of a classical program to standard output
    #[command(after_help = new::list())]
    New(new::Args),
    /// Print the PTX of a rank's kernel
    Compile(compile::Args),
    /// Run a plan on devices, measure it and check every value: under `aqueduct run` or another launcher
    Run(Box<crate::perf::plan::Args>),
    /// Run a plan on vectors, in several orders, and compare with the collective's definition
    Simulate {
        /// Plan file
        file: PathBuf,
        /// Elements of each rank's input; by default 64 for each chunk
        #[arg(short, long)]
        elements: Option<u32>,
        /// How many orders to try
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
    },
}

/// Passes that a plan goes through before it is shown.
#[derive(Debug, clap::Args)]
struct Passes {
    /// Run the passes up to this one first
    #[arg(long, value_name = "PASS", value_parser = pass::PASSES.map(|pass| pass.name))]
    after: Option<String>,
    /// Instances that the pass `replicate` makes
    #[arg(long, default_value_t = 1, requires = "after")]
    instances: u32,
    /// Chunks of each instance
    #[arg(long, value_enum, default_value_t, requires = "after")]
    policy: Policy,
}

impl Passes {
    fn apply(&self, plan: &Plan) -> Result<Plan, aqueduct::Error> {
        let mut options = pass::Options::default();
        options.instances = self.instances;
        options.policy = self.policy.into();
        match &self.after {
            None => Ok(plan.clone()),
            Some(last) => pass::run(plan, &options, Some(last)),
        }
    }
}

/// Why a file gives no plan.
enum Unread {
    /// It is not there, or no text.
    File,
    /// It holds no plan.
    Plan,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Check { files } => check_all(files),
        Command::Show { file, passes } => with(file, |plan| match passes.apply(plan) {
            Ok(plan) => {
                show::show(&mut Stdout, &plan)?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                say(format_args!("aqueduct: {}: {error}", file.display()));
                Ok(ExitCode::from(FINDINGS))
            }
        }),
        Command::New(args) => new::execute(args),
        Command::Compile(args) => with(&args.file, |plan| compile::execute(args, plan)),
        Command::Run(args) => with(&args.file, |plan| crate::perf::plan::execute(args, plan)),
        Command::Simulate { file, elements, seeds } => with(file, |plan| simulated(plan, *elements, *seeds)),
    }
}

/// Reads a plan; says why if that fails.
fn read(path: &Path) -> Result<Plan, Unread> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        say(format_args!("aqueduct: {}: {error}", path.display()));
        Unread::File
    })?;
    file::read(&text).map_err(|error| {
        say(format_args!("aqueduct: {}: {error}", path.display()));
        Unread::Plan
    })
}

fn with(path: &Path, then: impl FnOnce(&Plan) -> Result<ExitCode>) -> Result<ExitCode> {
    match read(path) {
        Ok(plan) => then(&plan),
        Err(Unread::File) => Ok(ExitCode::from(USAGE)),
        Err(Unread::Plan) => Ok(ExitCode::from(FINDINGS)),
    }
}

fn check_all(paths: &[PathBuf]) -> Result<ExitCode> {
    let (mut wrong, mut absent) = (false, false);
    for path in paths {
        match read(path) {
            Err(Unread::File) => absent = true,
            Err(Unread::Plan) => wrong = true,
            Ok(plan) => {
                let findings = check::check(&plan);
                wrong |= !findings.is_empty();
                for finding in &findings {
                    writeln!(Stdout, "{}: {finding}", path.display())?;
                }
                if findings.is_empty() {
                    let (ranks, operations) = (plan.ranks.len(), plan.operations());
                    writeln!(Stdout, "{}: right: {ranks} ranks, {operations} operations", path.display())?;
                }
            }
        }
    }
    Ok(match (absent, wrong) {
        (true, _) => ExitCode::from(USAGE),
        (false, true) => ExitCode::from(FINDINGS),
        (false, false) => ExitCode::SUCCESS,
    })
}

fn simulated(plan: &Plan, elements: Option<u32>, seeds: u64) -> Result<ExitCode> {
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(0).max(1);
    let elements = elements.unwrap_or(chunks.saturating_mul(64));
    let ranks = u32::try_from(plan.ranks.len())?;
    if u64::from(elements).saturating_mul(u64::from(ranks)) > MOST_ELEMENTS {
        say(format_args!(
            "aqueduct: {elements} elements on each of {ranks} ranks are too many to simulate; the ranks together may have \
             {MOST_ELEMENTS}: give a smaller --elements, or use a plan of fewer chunks"
        ));
        return Ok(ExitCode::from(USAGE));
    }
    // Distinct values, so that no wrong chunk is right by chance.
    let value = |call: u64, rank: u32, element: u32| {
        (call << 60) ^ (u64::from(rank) << 40) ^ u64::from(element).wrapping_mul(0x9e37_79b9)
    };
    let input = |call: u64, rank: u32| (0..elements).map(|element| value(call, rank, element)).collect();
    let inputs = |call: u64| (0..ranks).map(|rank| input(call, rank)).collect();
    let calls: Vec<Vec<Vec<u64>>> = (0..3).map(inputs).collect();
    for seed in 0..seeds {
        let config = simulate::Config { seed, reduction: Some(Reduction::Sum) };
        let outputs = match simulate::run(plan, &calls, config) {
            Ok(outputs) => outputs,
            Err(error) => {
                writeln!(Stdout, "seed {seed}: {error}")?;
                return Ok(ExitCode::from(FINDINGS));
            }
        };
        for (call, outputs) in outputs.iter().enumerate() {
            let expected = oracle::outputs(&plan.collective.kind, &calls[call], u64::wrapping_add);
            for (rank, (expected, output)) in expected.iter().zip(outputs).enumerate() {
                let Some(expected) = expected else { continue };
                let wrong =
                    expected.iter().zip(output).filter(|(expected, output)| expected != output).count();
                if wrong > 0 {
                    let call = call + 1;
                    writeln!(
                        Stdout,
                        "seed {seed}: rank {rank}, call {call}: {wrong} of {elements} elements are wrong"
                    )?;
                    return Ok(ExitCode::from(FINDINGS));
                }
            }
        }
    }
    let judged = match oracle::outputs(&plan.collective.kind, &calls[0], u64::wrapping_add)
        .iter()
        .any(Option::is_some)
    {
        true => "every element right",
        false => "ended; nothing is known about its results",
    };
    writeln!(Stdout, "{}: {seeds} orders of 3 calls with {elements} elements per rank: {judged}", plan.name)?;
    Ok(ExitCode::SUCCESS)
}
