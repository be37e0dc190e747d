//! `aqueduct plan new`: a plan file of a classical program.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::ErrorKind;
use aqueduct::plan::programs::{self, ALGORITHMS, Choices};
use aqueduct::plan::{Protocol, file, pass};

use super::policy::Policy;
use crate::perf::sweep::parse_size;
use crate::refusal::Refusal;
use crate::stdout::Stdout;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Collective, such as all-reduce
    collective: String,
    /// Number of ranks
    #[arg(short = 'n', long)]
    ranks: u32,
    /// Algorithm; the first of the collective's by default
    #[arg(short, long)]
    algorithm: Option<String>,
    /// Chunks into which each rank's part of a message is cut, for algorithms with a block for each [default: 1]
    #[arg(long, value_name = "CHUNKS")]
    chunk_factor: Option<u32>,
    /// Ranks of each host, for algorithms that tell hosts apart [default: the ranks of two hosts]
    #[arg(long, value_name = "RANKS")]
    ranks_per_host: Option<u32>,
    /// Hands data on in slices of so many bytes, for algorithms of which no move is longer than another [default: whole chunks]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    slice: Option<u64>,
    /// Copies of the program that share the data: more blocks and channels
    #[arg(long, default_value_t = 1)]
    instances: u32,
    /// Packets, for algorithms that have some: LL of 8 bytes, or LL128 of 120 between ranks that NVLink joins [default: LL]
    #[arg(long, value_enum)]
    protocol: Option<Packets>,
    /// Chunks of each instance
    #[arg(long, value_enum, default_value_t)]
    policy: Policy,
}

/// Protocols that have packets.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Packets {
    #[value(name = "LL")]
    Ll,
    #[value(name = "LL128")]
    Ll128,
}

/// The collectives and their algorithms, for the help.
pub(super) fn list() -> String {
    let mut text = String::from("Collectives and algorithms:\n");
    for known in ALGORITHMS {
        let power = if known.power_of_two { "; a power of two of ranks" } else { "" };
        text.push_str(&format!(
            "  {} --algorithm {}: {}{power}\n",
            known.collective, known.name, known.about
        ));
    }
    text
}

pub(super) fn execute(args: &Args) -> Result<ExitCode> {
    // All that can be wrong is in the arguments.
    let text = written(args).map_err(|error| match error.kind() {
        ErrorKind::InvalidUsage | ErrorKind::Plan => Refusal::new(error.message()).into(),
        _ => anyhow::Error::from(error),
    })?;
    Stdout.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn written(args: &Args) -> aqueduct::Result<String> {
    let choices = Choices { chunk_factor: args.chunk_factor, ranks_per_host: args.ranks_per_host };
    let algorithm = programs::find(&args.collective, args.algorithm.as_deref())?;
    let mut plan = algorithm.program(args.ranks, &choices)?.build()?;
    if let Some(packets) = args.protocol {
        if plan.settings.protocol == Protocol::Simple {
            let message =
                format!("{} {} has no packets; leave --protocol out", args.collective, algorithm.name);
            return Err(aqueduct::Error::usage("plan new", message));
        }
        plan.settings.protocol = match packets {
            Packets::Ll => Protocol::Ll,
            Packets::Ll128 => Protocol::Ll128,
        };
    }
    let mut options = pass::Options::default();
    // Moves that a file has no name for cannot be written.
    options.fusion = Some(pass::Shapes::Named);
    (options.instances, options.policy) = (args.instances, args.policy.into());
    options.slice = args.slice;
    file::write(&pass::run(&plan, &options, None)?)
}
