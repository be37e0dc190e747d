//! The `aqueduct` command. Without arguments it runs the main job: one process per GPU, or four software ranks, that
//! all-reduce real data and check every value.

mod info;
mod job;
mod main_job;
mod perf;
mod program;
mod run;
mod selftest;
mod stderr;
mod stdout;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use stderr::say;
use stdout::Stdout;

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
    let outcome = execute().and_then(|code| {
        stdout::finish()?;
        Ok(code)
    });
    let closed_pipe = |error: &anyhow::Error| {
        error.chain().filter_map(|cause| cause.downcast_ref()).any(stdout::is_closed_pipe)
    };
    match outcome {
        Ok(code) => {
            job::leave(None);
            code
        }
        Err(error) => {
            let (quiet, text) = (closed_pipe(&error), sentence(&error));
            if !quiet {
                say(format_args!("aqueduct: {text}"));
            }
            let others = job::leave(Some((&error, &text)));
            match (quiet, others) {
                (true, _) => ExitCode::from(stdout::PIPE_CLOSED),
                (false, true) => ExitCode::from(job::OTHER_RANK_FAILED),
                (false, false) => ExitCode::FAILURE,
            }
        }
    }
}

fn execute() -> Result<ExitCode> {
    if let Err(error) = aqueduct::logging::init() {
        say(format_args!("aqueduct: {error}"));
    }
    match Cli::try_parse() {
        Err(error) => usage(&error),
        Ok(Cli { command }) => match command {
            Some(Command::Info(args)) => info::execute(&args),
            Some(Command::Run(args)) => run::execute(&args),
            Some(Command::Perf(args)) => args.execute(),
            Some(Command::Selftest(args)) => selftest::execute(&args),
            None => main_job::execute(),
        },
    }
}

/// Prints the help or version that was asked for, or what is wrong with the arguments.
fn usage(error: &clap::Error) -> Result<ExitCode> {
    if error.use_stderr() || std::io::stdout().is_terminal() {
        // With colours where they fit. An error leaves nothing to be done: there is no other place for the message.
        let _ = error.print();
    } else {
        write!(Stdout, "{}", error.render())?;
    }
    Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)))
}

/// The error and its causes. A cause that the error's own text already ends with is not repeated.
fn sentence(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |said, cause| if said.ends_with(&cause) { said } else { format!("{said}: {cause}") })
}
