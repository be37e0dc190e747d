//! The settings of a communicator, and their defaults.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{ETHERNET_STAGING, Env, SCRATCH_BYTES, Selection};
use crate::error::Result;
use crate::fault;
use crate::group::config::GroupConfig;
use crate::net::Layer;
use crate::rdma::{self, Verbs};
use crate::transport::resources::Settings;

/// Settings of a [`Communicator`](super::Communicator). Every rank should use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorConfig {
    pub(crate) scratch_bytes: usize,
    pub(crate) max_semaphores: u32,
    pub(crate) local_address: Option<IpAddr>,
    pub(crate) host_id: Option<String>,
    pub(crate) peer_timeout: Option<Duration>,
    /// A layer between control links and their sockets, for fault injection.
    pub(crate) layer: Option<NetLayer>,
    /// The verbs to use; libibverbs of this host if `None`.
    pub(crate) verbs: Option<Verbs>,
    pub(crate) interfaces: Selection,
    pub(crate) ethernet_staging: usize,
    pub(crate) ib_devices: Option<String>,
    pub(crate) ib: rdma::Settings,
    /// Faults on purpose in the network; none unless set.
    pub(crate) faults: Option<fault::Rules>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) tuning: Option<PathBuf>,
    pub(crate) multicast: bool,
}

/// A [`Layer`] in a configuration. Two are equal if they are the same object.
#[derive(Clone, Debug)]
pub(crate) struct NetLayer(pub(crate) Arc<dyn Layer>);

impl PartialEq for NetLayer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for NetLayer {}

impl Default for CommunicatorConfig {
    fn default() -> Self {
        Self {
            scratch_bytes: SCRATCH_BYTES,
            max_semaphores: 4096,
            local_address: None,
            host_id: None,
            layer: None,
            verbs: None,
            peer_timeout: Some(Duration::from_secs(3)),
            interfaces: Selection::default(),
            ethernet_staging: ETHERNET_STAGING,
            ib_devices: None,
            ib: rdma::Settings::default(),
            faults: None,
            cache: None,
            tuning: None,
            multicast: false,
        }
    }
}

impl CommunicatorConfig {
    /// The defaults, changed where the environment says so. Nothing below a communicator reads the environment: two of one
    /// process may differ in everything.
    ///
    /// # Errors
    /// `InvalidUsage` for a variable that cannot be read.
    pub fn from_env() -> Result<Self> {
        let env = Env::get()?;
        Ok(Self {
            scratch_bytes: env.scratch_bytes,
            peer_timeout: env.peer_timeout,
            interfaces: env.selection(),
            ethernet_staging: env.ethernet_staging,
            ib_devices: env.ib.devices.clone(),
            ib: rdma::Settings::from_env(&env.ib),
            faults: env.faults.clone(),
            cache: env.cache.clone(),
            tuning: env.tuning.clone(),
            multicast: env.multicast,
            ..Self::default()
        })
    }

    /// The same with another limit of device memory per rank that all plans of the communicator together may use as scratch, in bytes; 1 GiB.
    /// Collectives take less where less is left; a plan that does not fit is refused.
    #[must_use]
    pub fn with_scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// The same with a folder that keeps compiled kernels of plans between processes; none unless set. Only trusted users may be
    /// able to write to it: GPUs run what lies there.
    #[must_use]
    pub fn with_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// The same with a file of choices that `aqueduct tune` wrote, which every built-in collective reads when it is prepared; none
    /// unless set. All ranks need the same choices.
    #[must_use]
    pub fn with_tuning(mut self, file: impl Into<PathBuf>) -> Self {
        self.tuning = Some(file.into());
        self
    }

    /// The same with switches of plans on multicast hardware where an executor's settings do not say otherwise; off. **No hardware
    /// has confirmed it**: see [`ExecutorConfig::with_multicast`](crate::plan::ExecutorConfig::with_multicast).
    #[must_use]
    pub fn with_multicast(mut self, multicast: bool) -> Self {
        self.multicast = multicast;
        self
    }

    /// The same with another number of semaphores that this rank can have at one time for kernels, those of port channels and plans
    /// included, and of as many for the host; 4096. They share one small allocation each.
    #[must_use]
    pub fn with_max_semaphores(mut self, count: u32) -> Self {
        self.max_semaphores = count;
        self
    }

    /// The same with control links and Ethernet connections on the interface that has `address`; the best of
    /// [`with_interfaces`](Self::with_interfaces) unless set.
    #[must_use]
    pub fn with_local_address(mut self, address: IpAddr) -> Self {
        self.local_address = Some(address);
        self
    }

    /// The same with other network interfaces to choose from where no address is named; all.
    #[must_use]
    pub fn with_interfaces(mut self, interfaces: Selection) -> Self {
        self.interfaces = interfaces;
        self
    }

    /// The same with another amount of pinned host memory, in bytes, that all Ethernet connections of this communicator share for
    /// data of GPUs; 8 MiB; less than 1 MiB counts as 1 MiB. The first connection allocates it. One connection uses 4 MiB at most; with
    /// less than all of them could use, they take turns.
    #[must_use]
    pub fn with_ethernet_staging(mut self, bytes: usize) -> Self {
        self.ethernet_staging = bytes;
        self
    }

    /// The same with `names` as `Ib0`, `Ib1` and so on, separated by commas; all NICs of the host.
    #[must_use]
    pub fn with_ib_devices(mut self, names: impl Into<String>) -> Self {
        self.ib_devices = Some(names.into());
        self
    }

    /// The same with other settings for the NICs of all endpoints that have none of their own.
    #[must_use]
    pub fn with_ib(mut self, settings: rdma::Settings) -> Self {
        self.ib = settings;
        self
    }

    /// The same with `layer` between control links and their sockets.
    #[must_use]
    #[doc(hidden)]
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layer = Some(NetLayer(layer));
        self
    }

    /// The same with other verbs: statically linked ones, or a stand-in.
    #[must_use]
    #[doc(hidden)]
    pub fn with_verbs(mut self, verbs: Verbs) -> Self {
        self.verbs = Some(verbs);
        self
    }

    /// The same with another identity of this host; its name and boot id. Ranks with equal identities pass memory handles to
    /// each other through unix sockets, so give containers that do not share `/tmp` different ones.
    #[must_use]
    pub fn with_host_id(mut self, id: impl Into<String>) -> Self {
        self.host_id = Some(id.into());
        self
    }

    /// The same with another time that a rank may be silent before it counts as lost; 3 s, at least 1.25 s. A thread of each
    /// rank sends a sign of life twice a second, so only a stopped or starved process, a dead host or a broken network is
    /// silent. `None`, which all ranks must use together, detects a loss only by a closed connection: for debuggers, which
    /// stop processes.
    #[must_use]
    pub fn with_peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// The settings of connections.
    pub(crate) fn of_transports(&self) -> Settings {
        Settings {
            local_address: self.local_address,
            interfaces: self.interfaces.clone(),
            ethernet_staging: self.ethernet_staging,
            verbs: self.verbs.clone(),
            ib_devices: self.ib_devices.clone(),
            ib: self.ib.clone(),
        }
    }

    /// The settings of the group, which do not depend on devices.
    pub(crate) fn of_group(&self) -> GroupConfig {
        GroupConfig {
            local_address: self.local_address,
            host_id: self.host_id.clone(),
            peer_timeout: self.peer_timeout,
            layer: self.layer.as_ref().map(|NetLayer(layer)| layer.clone()),
            interfaces: self.interfaces.clone(),
            faults: self.faults.clone(),
        }
    }
}
