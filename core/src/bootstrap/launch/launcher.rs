//! The launchers that are known, and what one of them says about this process.
#![forbid(unsafe_code)]

use std::fmt;

use crate::error::Error;

/// The operation that errors of joining by a launcher name.
pub(super) const OP: &str = "bootstrap::from_env";

/// The program that started this process as a rank.
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
    /// Its name in messages.
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
    pub(super) const fn variables(self) -> (&'static str, &'static str) {
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

/// A launcher's description of this process and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// The launcher that gave this description.
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
    /// Whether all ranks are known to be on one host.
    pub(crate) fn is_single_host(&self) -> bool {
        self.size.is_some() && self.size == self.local_size
    }

    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let sizes = self.size.zip(other.size);
        self.rank == other.rank && sizes.is_none_or(|(mine, theirs)| mine == theirs)
    }

    pub(super) fn contradicts(&self, other: &Self) -> Error {
        let say = |launch: &Self| {
            let (rank, size) = launch.launcher.variables();
            match launch.size {
                Some(n) => format!("{rank}={} and {size}={n}", launch.rank),
                None => format!("{rank}={}", launch.rank),
            }
        };
        Error::usage(
            OP,
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
