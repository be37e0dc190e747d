//! Which rank this process is, read from the variables that launchers set: a pure function over a map.
//!
//! | family | rank, size | local rank, local size | node | job |
//! |---|---|---|---|---|
//! | own | `AQUEDUCT_RANK`, `AQUEDUCT_WORLD_SIZE` | `AQUEDUCT_LOCAL_RANK` | | |
//! | torchrun | `RANK`, `WORLD_SIZE`; counts only with `MASTER_ADDR` and `MASTER_PORT` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `GROUP_RANK` | `TORCHELASTIC_RUN_ID`, `_RESTART_COUNT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` | | `PMIX_NAMESPACE` |
//! | PMIx | `PMIX_RANK`; the server tells the size | | | `PMIX_NAMESPACE` |
//! | PMI: Hydra, MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | | |
//! | Slurm step | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`; counts only with `SLURM_STEP_ID` | `SLURM_LOCALID`, from `SLURM_STEP_TASKS_PER_NODE` | `SLURM_NODEID` | `SLURM_JOB_ID`, step |
//!
//! The first family that is present wins, and all values come from it: a rank of one family with a size of another
//! is no rank at all. Launchers are often nested, and then both leave their variables:
//!
//! - Own variables are somebody's explicit wish; nothing is compared with them.
//! - Slurm starts other launchers and is hardly ever started by one, so any of them may differ from the Slurm step
//!   (`mpirun` inside `salloc`). PMI and PMIx variables that agree with the step are `srun`'s own.
//! - `torchrun` under a launcher that starts one agent per rank: the outer size is then torchrun's number of groups.
//! - All others must agree. If they do not, nobody can tell which one is the inner: an error names the variables.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::launcher::{Launch, Launcher, Service};
use super::slurm;
use super::vars::{Vars, invalid};
use crate::error::Result;

impl Launch {
    /// The launch that this process's environment describes; `None` if no launcher started it.
    pub fn from_env() -> Result<Option<Self>> {
        // Names and values that are not UTF-8 are none of the variables read here.
        let text = |s: std::ffi::OsString| s.into_string().ok();
        Self::discover(&std::env::vars_os().filter_map(|(n, v)| Some((text(n)?, text(v)?))).collect())
    }

    /// The launch that `variables` (name and value) describe; an empty value counts as not set. The module's table
    /// lists the variables that are read. Errors name the variable that is missing or cannot be read, or the two that
    /// contradict each other.
    pub(crate) fn discover(variables: &BTreeMap<String, String>) -> Result<Option<Self>> {
        let vars = Vars(variables);
        if vars.text("AQUEDUCT_RANK").or(vars.text("AQUEDUCT_WORLD_SIZE")).is_some() {
            return Ok(Some(vars.family(Launcher::Own, "AQUEDUCT_LOCAL_RANK", "", "")?));
        }
        let step = slurm::step(&vars)?;
        let of_step = |launch: &Self| step.as_ref().is_some_and(|step| launch.agrees_with(step));
        let pmix = pmix(&vars)?.filter(|launch| !of_step(launch));
        let pmi = pmi(&vars)?.filter(|launch| !of_step(launch));
        let mut inner = [torchrun(&vars)?, open_mpi(&vars)?, pmix, pmi].into_iter().flatten();
        let Some(first) = inner.next() else {
            return step.map(|step| slurm::complete(step, &vars)).transpose();
        };
        let groups = vars.number("GROUP_WORLD_SIZE")?;
        for other in inner {
            let nested = first.launcher == Launcher::Torchrun
                && groups.is_some_and(|groups| other.size.map_or(other.rank < groups, |size| size == groups));
            if !nested && !first.agrees_with(&other) {
                return Err(first.contradicts(&other));
            }
        }
        Ok(Some(first))
    }
}

fn torchrun(vars: &Vars<'_>) -> Result<Option<Launch>> {
    // The names are so common that only all four together mean anything.
    let (Some(host), Some(port)) = (vars.text("MASTER_ADDR"), vars.text("MASTER_PORT")) else {
        return Ok(None);
    };
    if vars.text("RANK").is_none() || vars.text("WORLD_SIZE").is_none() {
        return Ok(None);
    }
    let mut launch = vars.family(Launcher::Torchrun, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")?;
    let port = port.parse().map_err(|_| invalid("MASTER_PORT", port, "it must be a port number"))?;
    let Some(run) = vars.text("TORCHELASTIC_RUN_ID") else { return Ok(Some(launch)) };
    // torchrun's default run id is the same for every job, so the port belongs to the name.
    let restarts = vars.number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0);
    let job = format!("{run}.{restarts}@{host}:{port}");
    // Otherwise the port is only reserved for a store that the program itself would serve.
    if vars.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        let key = format!("aqueduct/{job}/unique-id");
        launch.services.push(Service::Store { host: host.to_owned(), port, key });
    }
    launch.job = Some(job);
    Ok(Some(launch))
}

fn open_mpi(vars: &Vars<'_>) -> Result<Option<Launch>> {
    if vars.text("OMPI_COMM_WORLD_RANK").is_none() {
        return Ok(None);
    }
    let (local_rank, local_size) = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    let mut launch = vars.family(Launcher::OpenMpi, local_rank, local_size, "")?;
    launch.services.extend(vars.pmix_service(launch.rank)?);
    launch.job = vars.text("PMIX_NAMESPACE").map(str::to_owned);
    Ok(Some(launch))
}

fn pmix(vars: &Vars<'_>) -> Result<Option<Launch>> {
    let (Some(rank), Some(job)) = (vars.number("PMIX_RANK")?, vars.text("PMIX_NAMESPACE")) else {
        return Ok(None);
    };
    Ok(Some(Launch {
        launcher: Launcher::Pmix,
        rank,
        size: None,
        local_rank: None,
        local_size: None,
        node: None,
        job: Some(job.to_owned()),
        services: vec![Service::Pmix],
    }))
}

fn pmi(vars: &Vars<'_>) -> Result<Option<Launch>> {
    if vars.text("PMI_RANK").is_none() {
        return Ok(None);
    }
    let mut launch = vars.family(Launcher::Pmi, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "")?;
    launch.services.extend(vars.pmi_service(launch.rank)?);
    Ok(Some(launch))
}
