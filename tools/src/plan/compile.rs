//! `aqueduct plan compile`: the text of a rank's kernel.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::ErrorKind;
use aqueduct::plan::{self, Element, Plan, Reduction};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::perf::names::names;
use crate::refusal::Refusal;
use crate::stdout::Stdout;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Plan file
    pub(super) file: PathBuf,
    /// Rank
    #[arg(short, long, default_value_t = 0)]
    rank: u32,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "f32", value_parser = elements())]
    element: Element,
    /// Reduction in place of the plan's own
    #[arg(short = 'o', long = "op", value_parser = reductions())]
    reduction: Option<Reduction>,
    /// Compute capability of the device, times ten
    #[arg(long, default_value_t = 90)]
    sm: u32,
}

pub(super) fn execute(args: &Args, plan: &Plan) -> Result<ExitCode> {
    let text = plan::ptx(plan, args.rank, args.element, args.reduction, args.sm);
    let text = text.map_err(|error| match error.kind() {
        ErrorKind::InvalidUsage | ErrorKind::Unsupported => Refusal::new(error.message()).into(),
        _ => anyhow::Error::from(error),
    })?;
    Stdout.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn elements() -> impl TypedValueParser<Value = Element> {
    // Those that `perf` takes as well.
    let shown = |element: Element| {
        let others = names(element).iter().filter(move |name| **name != element.name());
        PossibleValue::new(element.name()).aliases(others)
    };
    PossibleValuesParser::new(Element::ALL.map(shown)).try_map(move |text| {
        let chosen = Element::ALL.into_iter().find(|element| names(*element).contains(&text.as_str()));
        chosen.ok_or_else(|| format!("unknown element type {text}"))
    })
}

fn reductions() -> impl TypedValueParser<Value = Reduction> {
    PossibleValuesParser::new(Reduction::ALL.map(Reduction::name)).try_map(|text| {
        let chosen = Reduction::ALL.into_iter().find(|reduction| reduction.name() == text);
        chosen.ok_or_else(|| format!("unknown reduction {text}"))
    })
}
