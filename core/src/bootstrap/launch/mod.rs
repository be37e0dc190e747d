//! Joining the job that a launcher has described in the environment.
//!
//! [`Launch`] finds out which rank this process is; what follows brings rank 0's unique id to the others, by the
//! first of these that there is: `AQUEDUCT_UNIQUE_ID`, `AQUEDUCT_UNIQUE_ID_FILE`, `AQUEDUCT_RENDEZVOUS_FILE`, the
//! launcher's own service (PMI-1, PMIx, torchrun's store), and a file in the temporary directory if all ranks are on
//! one host.

mod discover;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod launcher;
mod pmi;
mod pmix;
mod slurm;
mod store;
mod vars;

#[cfg(all(test, not(loom)))]
mod tests;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use launcher::{Launch, Launcher};

use self::launcher::{OP, Service};
use self::pmix::Pmix;
use self::store::Store;
use super::file::{Place, read_private};
use super::{Bootstrap, BootstrapConfig, Rendezvous, TcpBootstrap, UniqueId, local};
use crate::deadline::Deadline;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::net::SecretText;

type Joined = Arc<dyn Bootstrap>;

/// Joins the job that the environment describes, as `aqueduct run`, mpirun, mpiexec, srun and torchrun do; waits at
/// most `AQUEDUCT_TIMEOUT`. `None` if no launcher has started this process; an error that names what is missing if
/// the variables are incomplete, contradict each other, or leave no way to meet.
///
/// Every rank of the job calls it, once: launchers serve one conversation per process. A program that calls
/// `MPI_Init` shares a [`UniqueId`] by `MPI_Bcast` instead. Whoever can read the launcher's store, or the memory of
/// its daemons, can read the job's secret there.
pub fn from_env() -> Result<Option<Arc<dyn Bootstrap>>> {
    join(Env::get()?, Launch::from_env()?)
}

/// The time that `AQUEDUCT_TIMEOUT` sets, 60 s if it is not set: what [`from_env`] and the `aqueduct` command wait at most.
/// Every other wait takes the deadline that it is given, made from this time or another.
///
/// # Errors
/// `InvalidUsage` if a variable of this library, this or another, has a value that it does not take.
pub fn timeout_from_env() -> Result<Duration> {
    Ok(Env::get()?.timeout)
}

/// The number of this process among those of the job on this host, from 0, as its launcher says; `None` if it does not say.
/// Choose a GPU with it ([`Device::of_rank`](crate::gpu::Device::of_rank)): neighbouring ranks may be on different hosts.
///
/// # Errors
/// `InvalidUsage` if the variables are incomplete or contradict each other.
pub fn local_rank_from_env() -> Result<Option<u32>> {
    let own = Env::get()?.local_rank;
    Ok(own.or(Launch::from_env()?.and_then(|launch| launch.local_rank)))
}

fn join(env: &Env, launch: Option<Launch>) -> Result<Option<Joined>> {
    let has_id = env.unique_id.is_some() || env.unique_id_file.is_some();
    let Some(launch) = launch else {
        if !has_id {
            return Ok(None);
        }
        let id = if env.unique_id.is_some() { "AQUEDUCT_UNIQUE_ID" } else { "AQUEDUCT_UNIQUE_ID_FILE" };
        let text = format!(
            "{id} is set, but neither AQUEDUCT_RANK nor a launcher's variables; set AQUEDUCT_RANK and AQUEDUCT_WORLD_SIZE too"
        );
        return Err(Error::usage(OP, text));
    };
    let (config, deadline) = (BootstrapConfig::of(env), Deadline::after(env.timeout));
    let job = Job { launch: &launch, config: &config, deadline };
    let id: Option<UniqueId> = match (&env.unique_id, &env.unique_id_file) {
        (Some(text), _) => Some(text.parse()?),
        (None, Some(path)) => Some(existing(path)?.expose().parse()?),
        (None, None) => None,
    };
    if let Some(id) = id {
        return job.known_id(launch.size, &id).map(Some);
    }
    if launch.size == Some(1) {
        return Ok(local(1).pop().map(|alone| Arc::new(alone) as Joined));
    }
    if let Some(path) = &env.rendezvous_file {
        let place = Place::at(path, launch.job.as_deref().unwrap_or(""));
        return job.by_file(&place).map(Some);
    }
    for service in &launch.services {
        if let Some(joined) = job.by_service(service)? {
            return Ok(Some(joined));
        }
    }
    if let Some(name) = launch.job.as_ref().filter(|_| launch.is_single_host()) {
        let place = Place::on_this_host(&format!("{} {name}", launch.launcher));
        return job.by_file(&place).map(Some);
    }
    Err(no_way(&launch))
}

/// The job to join, and the settings to join it with.
struct Job<'a> {
    launch: &'a Launch,
    config: &'a BootstrapConfig,
    deadline: Deadline,
}

impl Job<'_> {
    fn known_id(&self, size: Option<u32>, id: &UniqueId) -> Result<Joined> {
        let size = known(size)?;
        Ok(Arc::new(TcpBootstrap::with_config(self.launch.rank, size, id, self.config, self.deadline)?))
    }

    /// On rank 0, starts a rendezvous for as many ranks as the launcher has started.
    fn host(&self) -> Result<Hosted> {
        let starts = (self.launch.rank == 0).then(|| Rendezvous::with_config(self.launch.size, self.config));
        starts.transpose().map(Hosted)
    }

    fn by_file(&self, place: &Place) -> Result<Joined> {
        let size = known(self.launch.size)?;
        Ok(Arc::new(TcpBootstrap::by_place(self.launch.rank, size, place, self.config, self.deadline)?))
    }

    /// `None` if this host lacks what the service needs.
    fn by_service(&self, service: &Service) -> Result<Option<Joined>> {
        let (launch, deadline) = (self.launch, self.deadline);
        let joined = match service {
            Service::Pmi { fd } => {
                let (manager, hosted) = (manager(*fd)?, self.host()?);
                let id = pmi::share(manager, hosted.text().as_ref(), deadline)?.expose().parse()?;
                hosted.stay();
                self.known_id(launch.size, &id)?
            }
            Service::Pmix => {
                let Some(library) = Pmix::open() else { return Ok(None) };
                let hosted = self.host()?;
                let (id, size) = library.share(hosted.text(), deadline)?;
                if let Some(known) = launch.size.filter(|known| *known != size) {
                    let text =
                        format!("the PMIx server says there are {size} ranks, the environment {known}");
                    return Err(Error::usage(OP, text));
                }
                let id = id.expose().parse()?;
                hosted.stay();
                self.known_id(Some(size), &id)?
            }
            Service::Store { host, port, key } => {
                let mut store = Store::connect(host, *port, key, deadline)?;
                let hosted = self.host()?;
                let id = store.share(hosted.text().as_ref()).and_then(|id| id.expose().parse());
                let joined = id.and_then(|id| {
                    hosted.stay();
                    self.known_id(launch.size, &id)
                });
                // However it went.
                if launch.rank == 0
                    && let Err(error) = store.delete()
                {
                    log::warn!("torchrun's store keeps the job's secret: {error}");
                }
                joined?
            }
        };
        Ok(Some(joined))
    }
}

/// Rank 0's rendezvous; on other ranks nothing. Ends with this unless it is to stay, so that an attempt that fails before the
/// others can know the id leaves no thread and no socket behind.
struct Hosted(Option<Rendezvous>);

impl Hosted {
    fn text(&self) -> Option<SecretText> {
        self.0.as_ref().map(|rendezvous| rendezvous.unique_id().to_text())
    }

    /// Serves the ranks until all have come, whatever becomes of this one.
    fn stay(self) {
        self.0.map(Rendezvous::detach);
    }
}

fn known(size: Option<u32>) -> Result<u32> {
    size.ok_or_else(|| {
        let text = "the ranks are to meet by AQUEDUCT_UNIQUE_ID or a file, but the number of ranks is not known; set \
                    AQUEDUCT_RANK and AQUEDUCT_WORLD_SIZE too";
        Error::usage(OP, text)
    })
}

/// A connection of our own to the process manager at `PMI_FD`; the launcher's descriptor stays as it is.
fn manager(fd: i32) -> Result<UnixStream> {
    // SAFETY: only duplicated, which fails if nothing is open there; -1, the one forbidden value, is never parsed.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map(UnixStream::from).map_err(|error| {
        let text = format!(
            "PMI_FD={fd} is not open: something between the launcher and this process has closed it; start the \
             process directly by the launcher, or set AQUEDUCT_RENDEZVOUS_FILE"
        );
        Error::system(OP, text, error)
    })
}

fn existing(path: &Path) -> Result<SecretText> {
    read_private(path)?.ok_or_else(|| {
        let text = format!("cannot read {}; AQUEDUCT_UNIQUE_ID_FILE must name a file", path.display());
        Error::new(ErrorKind::System, OP, text)
    })
}

fn no_way(launch: &Launch) -> Error {
    let text = format!(
        "this is rank {} of a job of {}, but that offers no way to meet the other ranks; set AQUEDUCT_RENDEZVOUS_FILE \
         to a path that all ranks see, or AQUEDUCT_UNIQUE_ID to the job's id on all ranks, or start them by \
         aqueduct run, torchrun, mpirun, mpiexec, or srun --mpi=pmix",
        launch.rank, launch.launcher
    );
    Error::usage(OP, text)
}
