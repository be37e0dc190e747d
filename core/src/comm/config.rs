//! The settings of a communicator, and their defaults.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{Env, IbEnv, Selection};
use crate::error::Result;
use crate::fault;
use crate::group::config::GroupConfig;
use crate::net::Layer;
use crate::rdma::Verbs;
use crate::transport::resources::Settings;

/// Settings of a [`Communicator`](super::Communicator). Every rank should use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommunicatorConfig {
    /// Bytes of device memory per rank that collectives may use as scratch; 64 MiB.
    pub scratch_bytes: usize,
    /// Number of Device2Device semaphores this rank can have at one time; 4096. They share one small allocation.
    pub semaphores: u32,
    /// The address whose interface control links to other hosts use; chosen by the system if `None`.
    pub interface: Option<IpAddr>,
    /// Identifies this host; host name and boot id if `None`. Ranks with equal host ids pass memory handles to each
    /// other through unix sockets, so give containers that do not share `/tmp` different ids.
    pub host_id: Option<String>,
    /// How long a rank may be silent before it counts as lost; 3 s, at least 1.25 s. A thread of each rank sends a
    /// sign of life twice a second, so only a stopped or starved process, a dead host or a broken network is silent.
    /// `None`, which all ranks must use together, detects a loss only by a closed connection: for debuggers, which
    /// stop processes.
    pub peer_timeout: Option<Duration>,
    /// A layer between control links and their sockets, for fault injection.
    pub(crate) layer: Option<NetLayer>,
    /// The verbs to use; libibverbs of this host if `None`.
    pub(crate) verbs: Option<Verbs>,
    /// Which network interfaces to choose from where none is named; all unless set.
    pub sockets: Selection,
    /// Which NICs to use, and how; all with their defaults unless set.
    pub ib: IbEnv,
    /// Faults on purpose in the network; none unless set.
    pub(crate) faults: Option<fault::Plan>,
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
            scratch_bytes: 64 << 20,
            semaphores: 4096,
            interface: None,
            host_id: None,
            layer: None,
            verbs: None,
            peer_timeout: Some(Duration::from_secs(3)),
            sockets: Selection::default(),
            ib: IbEnv::default(),
            faults: None,
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
            sockets: env.selection(),
            ib: env.ib.clone(),
            faults: env.faults.clone(),
            ..Self::default()
        })
    }

    /// The same with another bound on scratch memory.
    #[must_use]
    pub fn with_scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// The same with another number of semaphores.
    #[must_use]
    pub fn with_semaphores(mut self, count: u32) -> Self {
        self.semaphores = count;
        self
    }

    /// The same with control links on the interface of `address`.
    #[must_use]
    pub fn with_interface(mut self, address: IpAddr) -> Self {
        self.interface = Some(address);
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

    /// The same with another host identity.
    #[must_use]
    pub fn with_host_id(mut self, id: impl Into<String>) -> Self {
        self.host_id = Some(id.into());
        self
    }

    /// The same with another peer timeout.
    #[must_use]
    pub fn with_peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// The settings of connections.
    pub(crate) fn of_transports(&self) -> Settings {
        Settings {
            interface: self.interface,
            sockets: self.sockets.clone(),
            verbs: self.verbs.clone(),
            ib: self.ib.clone(),
        }
    }

    /// The settings of the group, which do not depend on devices.
    pub(crate) fn of_group(&self) -> GroupConfig {
        GroupConfig {
            interface: self.interface,
            host_id: self.host_id.clone(),
            peer_timeout: self.peer_timeout,
            layer: self.layer.as_ref().map(|NetLayer(layer)| layer.clone()),
            sockets: self.sockets.clone(),
            faults: self.faults.clone(),
        }
    }
}
