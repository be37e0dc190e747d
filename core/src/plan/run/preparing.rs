//! Preparation of executors: their plans, then memory for calls on buffers that are not shown.

use std::sync::Arc;

use super::config::ExecutorConfig;
use super::executor::Executor;
use super::ir::Plan;
use super::prepare::{decline, prepare_all};
use super::prepared::Prepared;
use super::staged::Staging;
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

impl Executor {
    /// Checks and compiles `plan` for this rank, allocates its scratch and shows it to the peers. Collective: every rank calls it
    /// with the same plan and `config`, in the same order as other collective calls.
    ///
    /// # Errors
    /// `Plan` for a plan that is wrong, or that kernels cannot run; `InvalidUsage` for one of another number of ranks, one that
    /// reduces without variants, or if ranks give different plans or settings; `Unsupported` where a peer's memory cannot be
    /// reached; `Remote` if another rank fails, with its reason; `Timeout`; a driver error. Every rank gets an error if one does, but for a
    /// `Timeout`, with which a rank may be alone: then all drop what they have, and each rank makes as many further calls as the others.
    pub fn prepare(
        comm: &Communicator,
        plan: &Plan,
        config: ExecutorConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        let mut one = Self::prepare_all(comm, &[(plan, config)], deadline.into())?;
        // One plan, one executor.
        one.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "Executor::prepare", "no executor was made"))
    }

    /// Takes part in a [`prepare`](Self::prepare) of all ranks without a plan, because of `error`: every other rank then gets an error that
    /// tells it. Returns `error`.
    pub(crate) fn decline(comm: &Communicator, error: Error, deadline: Deadline) -> Error {
        match comm.collective_call("Executor::prepare", deadline) {
            Ok(_turn) => decline(comm, error, deadline),
            Err(_) => error,
        }
    }

    /// [`prepare`](Self::prepare) for several plans in one transaction: the ranks meet as often as for one.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare); then none is prepared.
    pub(crate) fn prepare_all(
        comm: &Communicator,
        wanted: &[(&Plan, ExecutorConfig)],
        deadline: Deadline,
    ) -> Result<Vec<Self>> {
        let _turn = comm.collective_call("Executor::prepare", deadline)?;
        let prepared = prepare_all(comm, wanted, deadline)?;
        let finish = |(inner, (_, config)): (Prepared, &(&Plan, ExecutorConfig))| {
            let executor = Self { inner: Arc::new(inner), staging: None };
            let bytes = config.staging_bytes.filter(|&bytes| bytes > 0 && executor.reaches_buffers());
            let staging = bytes.map(|bytes| Staging::prepare(&executor, bytes, deadline).map(Arc::new));
            Ok(Self { staging: staging.transpose()?, ..executor })
        };
        prepared.into_iter().zip(wanted).map(finish).collect()
    }
}
