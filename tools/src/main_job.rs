//! The main job: without arguments, `aqueduct` all-reduces real data over everything this machine has.
//!
//! Started by hand, it launches one process per GPU, or four on the software device. Started as a rank
//! (by `aqueduct run`, mpirun, mpiexec, srun, torchrun, or by itself), it joins the job.

use std::process::ExitCode;

use anyhow::Result;
use aqueduct::gpu::Device;

use crate::{job, perf, run};

/// Number of ranks on a machine without a GPU.
const SOFTWARE_RANKS: u32 = 4;

pub(crate) fn execute() -> Result<ExitCode> {
    let args = perf::Args::all_reduce();
    if job::is_rank()? {
        return perf::execute(&args);
    }
    let driver = job::driver()?;
    let ranks = if driver.is_software() { SOFTWARE_RANKS } else { Device::count(&driver)? };
    let launch =
        run::Launch { ranks, command: vec!["aqueduct".into()], prefix: false, timeout: None, input: false };
    launch.run()
}
