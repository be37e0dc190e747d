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
use std::fmt;

use super::slurm;
use crate::error::{Error, Result};

/// Who started this process as a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `aqueduct run`, or the user's own script, by `AQUEDUCT_*`.
    Own,
    /// PyTorch's torchrun, or a script that sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A PMIx server of another kind.
    Pmix,
    /// A PMI-1 process manager: Hydra (MPICH, Intel MPI) and its relatives.
    Pmi,
    /// Slurm's srun.
    Slurm,
}

impl Launcher {
    /// What to call it in a message.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "aqueduct",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmix => "PMIx",
            Self::Pmi => "PMI (Hydra)",
            Self::Slurm => "Slurm",
        }
    }

    /// The variables that give its rank and its size.
    const fn variables(self) -> (&'static str, &'static str) {
        match self {
            Self::Own => ("AQUEDUCT_RANK", "AQUEDUCT_WORLD_SIZE"),
            Self::Torchrun => ("RANK", "WORLD_SIZE"),
            Self::OpenMpi => ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            Self::Pmix => ("PMIX_RANK", "PMIX_NAMESPACE"),
            Self::Pmi => ("PMI_RANK", "PMI_SIZE"),
            Self::Slurm => ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A launcher's means of giving a few bytes from one rank to all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// PMI-1's text protocol on this descriptor, which the process manager has opened for us.
    Pmi { fd: i32 },
    /// A PMIx server; its library knows how to find it.
    Pmix,
    /// torchrun's store; `key` is ours alone in it.
    Store { host: String, port: u16, key: String },
}

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// Who says so.
    pub launcher: Launcher,
    /// This process's number, below `size`.
    pub rank: u32,
    /// How many ranks there are; `None` if only the launcher's server knows (PMIx).
    pub size: Option<u32>,
    /// This process's number among those of its host, if known.
    pub local_rank: Option<u32>,
    /// How many ranks this host has, if known.
    pub local_size: Option<u32>,
    /// The number of this host, if known.
    pub node: Option<u32>,
    /// A name that all ranks of this job know and no other running job of the launcher has, if there is one.
    pub job: Option<String>,
    pub(super) services: Vec<Service>,
}

impl Launch {
    /// What the environment of this process says; `None` if no launcher has started it.
    pub fn from_env() -> Result<Option<Self>> {
        // Names and values that are not UTF-8 are none of the variables read here.
        let text = |s: std::ffi::OsString| s.into_string().ok();
        Self::discover(&std::env::vars_os().filter_map(|(n, v)| Some((text(n)?, text(v)?))).collect())
    }

    /// What `variables` (name and value) say; an empty value counts as not set. The module's table lists those that
    /// are read. Errors name the variable that is missing or cannot be read, or the two that contradict each other.
    pub fn discover(variables: &BTreeMap<String, String>) -> Result<Option<Self>> {
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

    /// Whether all ranks are known to be on one host.
    pub fn is_single_host(&self) -> bool {
        self.size.is_some() && self.size == self.local_size
    }

    fn agrees_with(&self, other: &Self) -> bool {
        let sizes = self.size.zip(other.size);
        self.rank == other.rank && sizes.is_none_or(|(mine, theirs)| mine == theirs)
    }

    fn contradicts(&self, other: &Self) -> Error {
        let say = |launch: &Self| {
            let (rank, size) = launch.launcher.variables();
            match launch.size {
                Some(n) => format!("{rank}={} and {size}={n}", launch.rank),
                None => format!("{rank}={}", launch.rank),
            }
        };
        Error::usage(
            "launch",
            format!(
                "two launchers contradict each other: {} ({}), but {} ({}); unset the variables of the one that did \
                 not start this process, or set AQUEDUCT_RANK and AQUEDUCT_WORLD_SIZE",
                say(self),
                self.launcher,
                say(other),
                other.launcher
            ),
        )
    }
}

/// The variables, with errors that name them.
pub(super) struct Vars<'a>(&'a BTreeMap<String, String>);

impl Vars<'_> {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u32>> {
        let parse =
            |value: &str| value.parse().map_err(|_| invalid(name, value, "it must be a whole number"));
        self.text(name).map(parse).transpose()
    }

    /// The numbers of one family, which is known to be present; `""` names a variable that it does not have.
    pub(super) fn family(
        &self,
        launcher: Launcher,
        local_rank: &str,
        local_size: &str,
        node: &str,
    ) -> Result<Launch> {
        let (rank_name, size_name) = launcher.variables();
        let required = |name: &str, other: &str| {
            self.number(name)?.ok_or_else(|| {
                let text = format!("{name} is not set, but {other} is; {launcher} sets both");
                Error::usage("launch", text)
            })
        };
        let (rank, size) = (required(rank_name, size_name)?, required(size_name, rank_name)?);
        if rank >= size {
            return Err(contradiction(&[(rank_name, rank), (size_name, size)]));
        }
        let (here, on_host) = (self.number(local_rank)?, self.number(local_size)?);
        if let (Some(here), Some(on_host)) = (here, on_host)
            && (here >= on_host || on_host > size)
        {
            return Err(contradiction(&[(local_rank, here), (local_size, on_host), (size_name, size)]));
        }
        if let Some(here) = here.filter(|here| *here >= size) {
            return Err(contradiction(&[(local_rank, here), (size_name, size)]));
        }
        Ok(Launch {
            launcher,
            rank,
            size: Some(size),
            local_rank: here,
            local_size: on_host,
            node: self.number(node)?,
            job: None,
            services: Vec::new(),
        })
    }

    /// The PMIx server, if there is one that knows this process by this rank.
    pub(super) fn pmix_service(&self, rank: u32) -> Result<Option<Service>> {
        let known = self.text("PMIX_NAMESPACE").is_some() && self.number("PMIX_RANK")? == Some(rank);
        Ok(known.then_some(Service::Pmix))
    }

    /// The PMI-1 connection, if there is one that knows this process by this rank.
    pub(super) fn pmi_service(&self, rank: u32) -> Result<Option<Service>> {
        let known = self.number("PMI_RANK")? == Some(rank);
        let fd = self.number("PMI_FD")?.and_then(|fd| i32::try_from(fd).ok());
        Ok(fd.filter(|_| known).map(|fd| Service::Pmi { fd }))
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

pub(super) fn invalid(name: &str, value: &str, wanted: &str) -> Error {
    let shown: String = value.chars().take(80).collect();
    Error::usage("launch", format!("{name}={shown} cannot be read: {wanted}"))
}

pub(super) fn contradiction(values: &[(&str, u32)]) -> Error {
    let all: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = format!("the launcher's variables contradict each other: {}", all.join(", "));
    Error::usage("launch", format!("{text}; start the process by its launcher, or unset them"))
}
