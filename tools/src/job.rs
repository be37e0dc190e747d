//! Joining a job: driver, device, bootstrap and communicator of one rank.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aqueduct::bootstrap::{self, Bootstrap, Launch, Launcher};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::env::Env;
use aqueduct::{Deadline, ErrorKind};

/// A rank that is ready to communicate.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) context: Context,
    pub(crate) comm: Communicator,
    pub(crate) timeout: Duration,
}

/// The exit code of a rank that failed only because another was lost or aborted the job: `EX_TEMPFAIL` of sysexits.h. It
/// tells a launcher to look for the cause elsewhere.
pub(crate) const OTHER_RANK_FAILED: u8 = 75;

/// A second handle on the communicator of this process's [`Rank`]. It keeps a rank whose operation has failed from saying
/// goodbye, in good order, while its error is on its way to `main`: peers would fail for want of it, and might end first.
static JOINED: Mutex<Option<Communicator>> = Mutex::new(None);

fn joined() -> std::sync::MutexGuard<'static, Option<Communicator>> {
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a rank that has done its work waits for peers to let go of its memory.
const GOODBYE: Duration = Duration::from_secs(2);

/// Leaves the job at the end of the process. After a failure, aborts it first, with `reason` for all ranks.
pub(crate) fn leave(reason: Option<&str>) {
    let Some(comm) = joined().take() else { return };
    match reason {
        Some(reason) => comm.abort(reason),
        // The results are out. A rank that is lost now is the launcher's to report.
        None => comm.close(GOODBYE).unwrap_or_else(|error| log::debug!("left without waiting: {error}")),
    }
}

/// Whether `error` says that another rank of this process's job has failed.
pub(crate) fn blames_another(error: &anyhow::Error) -> bool {
    // A rank that fails before it has a communicator has its number from the launcher.
    let launched = || Some(Launch::from_env().ok()??.rank);
    let Some(me) = joined().as_ref().map(Communicator::rank).or_else(launched) else { return false };
    names_another(error, me)
}

/// Whether `error` says that another rank than `me` has failed.
pub(crate) fn names_another(error: &anyhow::Error, me: u32) -> bool {
    let names = |error: &aqueduct::Error| {
        let gone = matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Aborted);
        error.origin().or(error.peer().filter(|_| gone)).is_some_and(|rank| rank != me)
    };
    error.chain().filter_map(|cause| cause.downcast_ref()).any(names)
}

/// The driver that `AQUEDUCT_DRIVER` selects: NVIDIA's, or the software device.
pub(crate) fn driver() -> Result<Driver> {
    Ok(Driver::select(Some(cuda_soft::driver_table))?)
}

impl Rank {
    /// Joins the job that the environment describes. Without one, this is a job of a single rank.
    pub(crate) fn join() -> Result<Self> {
        let env = Env::get()?;
        let timeout = env.timeout;
        let deadline = Deadline::after(timeout);
        let driver = driver()?;
        let bootstrap = connect_bootstrap()?;
        let device = Device::new(&driver, ordinal(&driver, bootstrap.rank())?)?;
        let context = Context::new(&device)?;
        let comm = Communicator::new(&bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;
        Ok(Self::new(bootstrap, context, comm, timeout))
    }

    /// A rank that has joined by other calls than [`join`](Self::join). From now on a failure aborts the job.
    pub(crate) fn new(
        bootstrap: Arc<dyn Bootstrap>,
        context: Context,
        comm: Communicator,
        timeout: Duration,
    ) -> Self {
        *joined() = Some(comm.clone());
        Self { bootstrap, context, comm, timeout }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.bootstrap.rank() == 0
    }

    /// The sum of `mine` over all ranks.
    pub(crate) fn sum(&self, mine: u64) -> Result<u64> {
        Ok(self.gather(mine.to_le_bytes())?.into_iter().map(u64::from_le_bytes).sum())
    }

    /// The largest `mine` of all ranks.
    pub(crate) fn max(&self, mine: f64) -> Result<f64> {
        Ok(self.gather(mine.to_le_bytes())?.into_iter().map(f64::from_le_bytes).fold(f64::MIN, f64::max))
    }

    /// The smallest `mine` of all ranks.
    pub(crate) fn min(&self, mine: u64) -> Result<u64> {
        Ok(self.gather(mine.to_le_bytes())?.into_iter().map(u64::from_le_bytes).min().unwrap_or(mine))
    }

    fn gather(&self, mine: [u8; 8]) -> Result<Vec<[u8; 8]>> {
        self.bootstrap
            .all_gather(&mine, self.deadline())?
            .into_iter()
            .map(|bytes| {
                bytes.try_into().ok().context(
                    "another rank sent a value of a different size; do all ranks run the same version?",
                )
            })
            .collect()
    }

    /// Waits for all ranks.
    pub(crate) fn barrier(&self) -> Result<()> {
        Ok(self.bootstrap.barrier(self.deadline())?)
    }
}

/// Whether a launcher started this process as a rank of a job.
pub(crate) fn is_rank() -> Result<bool> {
    Ok(Launch::from_env()?.is_some_and(|launch| !is_shell(&launch)))
}

/// Whether this is a shell on a compute node (`srun --pty bash`), which Slurm starts as a step of one task.
fn is_shell(launch: &Launch) -> bool {
    launch.launcher == Launcher::Slurm && launch.size == Some(1)
}

/// Connects to the bootstrap that the environment describes, or makes one for a single rank.
pub(crate) fn connect_bootstrap() -> Result<Arc<dyn Bootstrap>> {
    match bootstrap::from_env()? {
        Some(bootstrap) => Ok(bootstrap),
        None => alone(),
    }
}

fn alone() -> Result<Arc<dyn Bootstrap>> {
    match bootstrap::local(1).pop() {
        Some(one) => Ok(Arc::new(one)),
        None => bail!("a bootstrap of one rank has no rank"),
    }
}

/// The ordinal of this rank's device: the local rank, or `rank` if that is unknown, modulo the number of devices.
pub(crate) fn ordinal(driver: &Driver, rank: u32) -> Result<u32> {
    let devices = Device::count(driver)?;
    if devices == 0 {
        bail!(
            "{} has no device; unset CUDA_VISIBLE_DEVICES or use AQUEDUCT_DRIVER=soft",
            driver.provenance()
        );
    }
    Ok(bootstrap::local_rank_from_env()?.unwrap_or(rank) % devices)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs `body` as both ranks of a job in this process, each on a thread and a device of its own. Returns what they return.
    pub(crate) fn as_two_ranks<T: Send>(body: impl Fn(&Rank) -> T + Sync) -> [T; 2] {
        const TIMEOUT: Duration = Duration::from_secs(60);
        let driver = driver().unwrap();
        let run = |bootstrap: Arc<dyn Bootstrap>| {
            let device = Device::new(&driver, ordinal(&driver, bootstrap.rank()).unwrap()).unwrap();
            let context = Context::new(&device).unwrap();
            let comm =
                Communicator::new(&bootstrap, &context, CommunicatorConfig::default(), TIMEOUT).unwrap();
            body(&Rank { bootstrap, context, comm, timeout: TIMEOUT })
        };
        let ranks: Vec<T> = std::thread::scope(|scope| {
            let ranks: Vec<_> = bootstrap::local(2)
                .into_iter()
                .map(|bootstrap| scope.spawn(|| run(Arc::new(bootstrap))))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        ranks.try_into().ok().expect("two ranks have returned")
    }
}
