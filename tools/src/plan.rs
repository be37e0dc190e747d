//! `aqueduct plan`: makes plan files, looks at them, and runs them.

mod code;
mod compile;
mod described;
pub(crate) mod draw;
mod new;
mod policy;
mod show;
mod simulate;
pub(crate) mod svg;

use std::fs::File;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::plan::{Plan, check, file, pass};

use crate::perf::sweep::parse_size;
use crate::stderr::say;
use crate::stdout::Stdout;
use code::{FINDINGS, USAGE};
use policy::Policy;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it runs as a rank of a job.
    pub(crate) fn opens_sockets(&self) -> bool {
        matches!(self.command, Command::Run(_))
    }
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Find what is wrong with plans: exit code 0 if nothing is, 1 if something is
    Check {
        /// Plan files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print a plan, one operation per line, or draw it over time
    Show {
        /// Plan file
        file: PathBuf,
        #[command(flatten)]
        passes: Passes,
        #[command(flatten)]
        drawing: draw::Args,
    },
    /// Write the plan of a classical program to standard output
    #[command(after_help = new::list())]
    New(new::Args),
    /// Print the PTX of a rank's kernel
    Compile(compile::Args),
    /// Run a plan on devices, measure it and check every value: under `aqueduct run` or another launcher
    Run(Box<crate::perf::plan::Args>),
    /// Run a plan on vectors, in several orders, and compare with the collective's definition; predict its times
    Simulate(simulate::Args),
}

/// Passes that a plan goes through before it is shown.
#[derive(Debug, clap::Args)]
struct Passes {
    /// Run the passes up to this one first
    #[arg(long, value_name = "PASS", value_parser = pass::PASSES.map(|pass| pass.name))]
    after: Option<String>,
    /// Bytes of the slices that the pass `pipeline` makes loops over; none by default
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "after")]
    slice: Option<u64>,
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
        options.slice = self.slice;
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
    /// It cannot be read.
    File,
    /// It holds no plan.
    Plan,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Check { files } => check_all(files),
        Command::Show { file, passes, drawing } => with(file, |plan| match passes.apply(plan) {
            Ok(plan) => {
                match &drawing.svg {
                    Some(path) => draw::predicted(drawing, &plan, path)?,
                    None => show::show(&mut Stdout, &plan)?,
                }
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
        Command::Simulate(args) => with(&args.file, |plan| simulate::execute(args, plan)),
    }
}

/// Reads a plan; says why if that fails.
fn read(path: &Path) -> Result<Plan, Unread> {
    let says = |error: &dyn std::fmt::Display, why| {
        say(format_args!("aqueduct: {}: {error}", path.display()));
        why
    };
    let mut bytes = Vec::new();
    // A device has no end.
    let most = file::MAX_BYTES as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| says(&error, Unread::File))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        says(&format_args!("byte {at} is no UTF-8 text, and a plan file is"), Unread::Plan)
    })?;
    file::read(&text).map_err(|error| says(&error, Unread::Plan))
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
