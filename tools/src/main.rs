//! The `aqueduct` command. Without arguments it runs the main job: one process per GPU, or four software ranks, that
//! all-reduce real data and check every value.

mod info;
mod job;
mod main_job;
mod perf;
mod run;
mod selftest;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "aqueduct", version, about, long_about = LONG, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const LONG: &str = "GPU communication: show devices, measure operations, check results.\n\n\
    Without a subcommand: all-reduce over every GPU of this machine (or four software ranks where there is none), one \
    process per rank, every value checked.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show drivers, devices, links, NICs and environment variables
    Info(info::Args),
    /// Start N ranks of a command on this machine
    Run(run::Args),
    /// Measure and check one operation over all ranks of the job
    Perf(Box<perf::Command>),
    /// Check every operation on this machine and print a summary for a support ticket
    Selftest(selftest::Args),
}

fn main() -> ExitCode {
    if let Err(error) = aqueduct::logging::init() {
        eprintln!("aqueduct: {error}");
    }
    let outcome = match Cli::parse().command {
        Some(Command::Info(args)) => info::execute(&args),
        Some(Command::Run(args)) => run::execute(&args),
        Some(Command::Perf(args)) => args.execute(),
        Some(Command::Selftest(args)) => selftest::execute(&args),
        None => main_job::execute(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("aqueduct: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes. A cause that the error's own text already ends with is not repeated.
fn sentence(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |said, cause| if said.ends_with(&cause) { said } else { format!("{said}: {cause}") })
}
