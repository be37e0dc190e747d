//! `aqueduct info`: drivers, devices, NICs and settings of this machine. Works without a driver, too.
//!
//! Tries each capability instead of trusting the driver's answer, so everything listed works.

mod devices;
mod nics;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::gpu::Driver;
use aqueduct::internals::env::{self, Env};

use crate::stdout::Stdout;
use crate::variables;
pub(crate) use devices::describe;
pub(crate) use nics::active as active_nic;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List every environment variable with its default, meaning, and value here
    #[arg(long)]
    env: bool,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    if args.env {
        environment(&mut Stdout)?;
        return Ok(ExitCode::SUCCESS);
    }
    let usable = report(&mut Stdout, &variables::wrong())?;
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report. Returns whether a job could use this machine as it is set up, which it could not with `wrong` variables.
fn report(out: &mut impl Write, wrong: &[String]) -> std::io::Result<bool> {
    writeln!(out, "aqueduct {}", env!("CARGO_PKG_VERSION"))?;
    let hardware = Driver::load(env::path("CUDA_LIBRARY").as_deref());
    match &hardware {
        Ok(driver) => describe(out, "NVIDIA driver", driver)?,
        Err(error) => writeln!(out, "NVIDIA driver: none: {error}")?,
    }
    match nics::lines(hardware.as_ref().ok()) {
        Ok(lines) => lines.iter().try_for_each(|line| writeln!(out, "{line}"))?,
        Err(error) => writeln!(out, "RDMA NICs: none: {error}")?,
    }
    match Driver::software(cuda_soft::driver_table()) {
        Ok(driver) => describe(out, "software device", &driver)?,
        Err(error) => writeln!(out, "software device: unusable: {error}")?,
    }
    let env = Env::get();
    let chosen = env.clone().and_then(|_| Driver::select(Some(cuda_soft::driver_table)));
    match (&env, &chosen) {
        (Ok(_), Err(error)) => writeln!(out, "jobs use: nothing: {error}")?,
        (Ok(_), Ok(driver)) if wrong.is_empty() => {
            writeln!(out, "jobs use: {} ({})", driver.provenance(), driver.reason())?;
        }
        _ => writeln!(out, "jobs use: nothing, because of the environment")?,
    }
    if wrong.is_empty() {
        writeln!(out, "environment: `aqueduct info --env` lists every variable")?;
    }
    wrong.iter().try_for_each(|wrong| writeln!(out, "environment: {wrong}"))?;
    Ok(chosen.is_ok() && wrong.is_empty())
}

fn environment(out: &mut impl Write) -> std::io::Result<()> {
    for row in Env::table() {
        let value = row.value.as_deref().map_or_else(|| "(unset)".to_owned(), |v| format!("= {v}"));
        let variable = row.variable;
        writeln!(
            out,
            "{} {value}\n    default: {}\n    {}",
            variable.name, variable.default, variable.meaning
        )?;
    }
    for warning in env::unknown(&text_variables()) {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// The environment variables whose name and value are UTF-8.
fn text_variables() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
