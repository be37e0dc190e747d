//! `aqueduct plan simulate`: a plan on vectors, and its times on a described machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::ErrorKind;
use aqueduct::plan::cost::{Machine, predict};
use aqueduct::plan::{Plan, Reduction, oracle, simulate};

use super::code::{FINDINGS, USAGE};
use super::described;
use crate::perf::measure::Measure;
use crate::perf::plan::range;
use crate::perf::sweep::{Rounding, Sweep, parse_size};
use crate::printable::printable;
use crate::refusal::Refusal;
use crate::stderr::say;
use crate::stdout::Stdout;

/// Elements of all inputs of a simulated call: the simulator holds three calls, and outputs and scratch besides, in memory.
const MOST_ELEMENTS: u64 = 1 << 26;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Plan file
    pub(super) file: PathBuf,
    /// Elements of each rank's input; by default 64 for each chunk
    #[arg(short, long)]
    elements: Option<u32>,
    /// How many orders to try
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Also predict the time of each size on this machine: h200-x2, h200-x4, h200-x8, or the file of a description
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Smallest size to predict, in bytes (suffixes K, M, G are powers of 1024)
    #[arg(short = 'b', long, value_parser = parse_size, value_name = "SIZE", requires = "machine")]
    min_bytes: Option<u64>,
    /// Largest size to predict
    #[arg(long, value_parser = parse_size, value_name = "SIZE", requires = "machine")]
    max_bytes: Option<u64>,
    /// Factor between sizes to predict
    #[arg(short = 'f', long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..), requires = "machine")]
    step_factor: u64,
}

pub(super) fn execute(args: &Args, plan: &Plan) -> Result<ExitCode> {
    // A machine that there is not is said before a long simulation.
    let machine = args.machine.as_deref().map(described::machine).transpose()?;
    let code = simulated(plan, args.elements, args.seeds)?;
    match machine {
        Some(machine) if code == ExitCode::SUCCESS => predicted(args, plan, &machine),
        _ => Ok(code),
    }
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
    let name = printable(&plan.name);
    writeln!(Stdout, "{name}: {seeds} orders of 3 calls with {elements} elements per rank: {judged}")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a row for each size, as `perf` would measure it.
fn predicted(args: &Args, plan: &Plan, machine: &Machine) -> Result<ExitCode> {
    let measure = Measure::of(plan);
    let sweep = Sweep {
        min_bytes: args.min_bytes,
        max_bytes: args.max_bytes,
        step_factor: args.step_factor,
        step_bytes: None,
    };
    let (least, most) = range(plan, false);
    let (min, max) = sweep.bounds(least, most)?;
    let sizes = sweep.rounded(min, max, Rounding::Down, measure.grain(), "chunks");
    let out = &mut Stdout;
    writeln!(out, "# machine {}: predicted, not measured", printable(&machine.name))?;
    if let Some(note) = sizes.note {
        writeln!(out, "# {note}")?;
    }
    writeln!(out, "# {:>10} {:>11} {:>8} {:>8}", "size", "time", "algbw", "busbw")?;
    writeln!(out, "# {:>10} {:>11} {:>8} {:>8}", "(B)", "(us)", "(GB/s)", "(GB/s)")?;
    for size in sizes.list {
        let us = predict(plan, machine, measure.input(size)).map_err(|error| match error.kind() {
            ErrorKind::InvalidUsage | ErrorKind::Plan => Refusal::new(error.message()).into(),
            _ => anyhow::Error::from(error),
        })?;
        let algbw = if us > 0.0 { size as f64 / us / 1e3 } else { 0.0 };
        writeln!(out, "{size:>12} {us:>11.2} {algbw:>8.2} {:>8.2}", algbw * measure.bus_factor())?;
    }
    Ok(ExitCode::SUCCESS)
}
