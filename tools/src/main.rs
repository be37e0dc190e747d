//! The `aqueduct` command. Without arguments it runs the main job: one process per GPU, or four software ranks, that
//! all-reduce real data and check every value.

mod info;
mod job;
mod main_job;
mod perf;
mod plan;
mod printable;
mod program;
mod refusal;
mod run;
mod selftest;
mod stderr;
mod stdout;
mod variables;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::bootstrap::Launch;
use aqueduct::internals::env::Env;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use refusal::Refusal;
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
    /// Measure one collective beside NCCL's, in the same processes
    Bench(Box<perf::bench::Args>),
    /// Measure on this machine which algorithm and how many blocks each size should take, and write the table
    Tune(perf::tune::Args),
    /// Check, show and simulate plans of collectives
    Plan(plan::Args),
    /// Check every operation on this machine and print a summary for a support ticket
    Selftest(selftest::Args),
}

fn main() -> ExitCode {
    run::Failures::open();
    let outcome = execute().and_then(|code| {
        stdout::finish()?;
        Ok(code)
    });
    match outcome {
        Ok(code) => {
            if code != ExitCode::SUCCESS {
                run::Failures::note();
            }
            job::leave(None);
            code
        }
        Err(error) => fail(&error),
    }
}

/// Says why this process fails, tells the other ranks of its job, and returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    let by_another = job::blames_another(error);
    if !by_another {
        run::Failures::note();
    }
    let closed_pipe = error.chain().filter_map(|cause| cause.downcast_ref()).any(stdout::is_closed_pipe);
    let text = sentence(error);
    if !closed_pipe {
        say(format_args!("aqueduct: {text}"));
    }
    job::leave(Some(&text));
    ExitCode::from(if closed_pipe {
        stdout::PIPE_CLOSED
    } else if by_another {
        job::OTHER_RANK_FAILED
    } else if refusal::is_refusal(error) {
        refusal::CODE
    } else {
        1
    })
}

fn execute() -> Result<ExitCode> {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let Cli { command } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Some(Command::Info(args)) = &command {
        // It shows what is wrong with the environment instead.
        if Env::get().is_ok() {
            aqueduct::logging::init().unwrap_or_else(|error| say(format_args!("aqueduct: {error}")));
        }
        return info::execute(args);
    }
    read_environment()?;
    if !matches!(command, Some(Command::Run(_))) {
        Launch::from_env().map_err(Refusal::new)?;
    }
    if !matches!(&command, Some(Command::Plan(args)) if !args.opens_sockets()) {
        variables::check_interfaces(Env::get()?).map_err(Refusal::new)?;
    }
    match command {
        Some(Command::Info(args)) => info::execute(&args),
        Some(Command::Run(args)) => run::execute(&args),
        Some(Command::Perf(args)) => {
            if let Some(matches) = matches.subcommand_matches("perf") {
                perf::refuse_idle_options("perf", matches)?;
            }
            args.execute()
        }
        Some(Command::Bench(args)) => {
            if let Some(matches) = matches.subcommand_matches("bench") {
                perf::refuse_idle_options("bench", matches)?;
            }
            perf::bench::execute(&args)
        }
        Some(Command::Tune(args)) => perf::tune::execute(&args),
        Some(Command::Plan(args)) => plan::execute(&args),
        Some(Command::Selftest(args)) => selftest::execute(&args),
        None => main_job::execute(),
    }
}

/// Reads all settings and starts the log. A launcher does so before its ranks: a value that is refused is refused once.
fn read_environment() -> Result<()> {
    let env = Env::get().map_err(|error| Refusal::new(error.message()))?;
    // The software device reads its own variables, when it is first used.
    cuda_soft::Config::from_env().map_err(Refusal::new)?;
    variables::check_tuning(env).map_err(Refusal::new)?;
    variables::check_unique_id(env).map_err(Refusal::new)?;
    aqueduct::logging::init().map_err(|error| Refusal::new(error.to_string()))?;
    Ok(())
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
