//! The main job: without arguments, `aqueduct` all-reduces real data over everything this machine has.
//!
//! Started by hand, it launches one process per GPU, or four on the software device. Started as a rank
//! (by `aqueduct run`, mpirun, mpiexec, srun, torchrun, or by itself), it joins the job.

use std::process::ExitCode;

use anyhow::Result;
use aqueduct::bootstrap::{Launch, Launcher};
use aqueduct::gpu::Device;

use crate::{job, perf, run};

/// Number of ranks on a machine without a GPU.
const SOFTWARE_RANKS: u32 = 4;

pub(crate) fn execute() -> Result<ExitCode> {
    let args = perf::Args::all_reduce();
    if is_rank()? {
        return perf::execute(&args);
    }
    let driver = job::driver()?;
    let ranks = if driver.is_software() { SOFTWARE_RANKS } else { Device::count(&driver)? };
    let launch =
        run::Launch { ranks, command: vec!["aqueduct".into()], prefix: false, timeout: None, input: false };
    launch.run()
}

/// Whether a launcher started this process as a rank of a job.
pub(crate) fn is_rank() -> Result<bool> {
    Ok(Launch::from_env()?.is_some_and(|launch| !is_shell(&launch)))
}

/// Whether this is a shell on a compute node (`srun --pty bash`), which Slurm starts as a step of one task.
fn is_shell(launch: &Launch) -> bool {
    launch.launcher == Launcher::Slurm && launch.size == Some(1)
}
