//! The main job: without arguments, `aqueduct` all-reduces real data over everything this machine has.
//!
//! Started by hand it launches one rank per GPU, or four software ranks, as processes of their own. Started as a rank
//! (by `aqueduct run`, or by itself) it takes part.

use std::process::ExitCode;

use anyhow::Result;
use aqueduct::gpu::Device;

use crate::run::Launch;
use crate::{job, perf};

/// Ranks where there is no GPU.
const SOFTWARE_RANKS: u32 = 4;

pub(crate) fn execute() -> Result<ExitCode> {
    let args = perf::Args::all_reduce();
    if aqueduct::env::Env::get()?.rank.is_some() {
        return perf::execute(&args);
    }
    let driver = job::driver()?;
    let ranks = if driver.is_software() { SOFTWARE_RANKS } else { Device::count(&driver)? };
    let launch = Launch { ranks, command: vec!["aqueduct".to_owned()], prefix: false, timeout: None };
    launch.run()
}
