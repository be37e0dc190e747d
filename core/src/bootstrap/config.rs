//! The settings of a bootstrap, and their defaults.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{Env, Selection};
use crate::error::{Error, Result};
use crate::fault::Rules;
use crate::net::{Interface, Layer, Network, Secret, choose};

/// Settings of a [`TcpBootstrap`](super::TcpBootstrap) and a [`Rendezvous`](super::Rendezvous). The environment is read by
/// [`from_env`](Self::from_env) only, so that two bootstraps of one process may differ in everything.
#[derive(Clone)]
#[non_exhaustive]
pub struct BootstrapConfig {
    /// Which network interfaces to listen on; those that other hosts can reach come first.
    pub(crate) interfaces: Selection,
    /// How long a rank may be silent before it counts as lost; 3 s. `None`, on all ranks: a closed connection is the only
    /// sign of a loss.
    pub(crate) peer_timeout: Option<Duration>,
    /// Faults to inject; `None` injects none.
    pub(crate) faults: Option<Rules>,
    /// A layer between connections and their sockets, which replaces `faults`.
    pub(crate) layer: Option<Arc<dyn Layer>>,
}

impl Default for BootstrapConfig {
    fn default() -> Self {
        let peer_timeout = Some(Duration::from_secs(3));
        Self { interfaces: Selection::default(), peer_timeout, faults: None, layer: None }
    }
}

impl BootstrapConfig {
    /// The defaults, changed where the environment of this process says so.
    ///
    /// # Errors
    /// `InvalidUsage` for a variable that cannot be read.
    pub fn from_env() -> Result<Self> {
        Ok(Self::of(Env::get()?))
    }

    /// The settings in `env`.
    pub(crate) fn of(env: &Env) -> Self {
        let (peer_timeout, faults) = (env.peer_timeout, env.faults.clone());
        Self { interfaces: env.selection(), peer_timeout, faults, layer: None }
    }

    /// The same on other interfaces.
    #[must_use]
    pub fn with_interfaces(mut self, interfaces: Selection) -> Self {
        self.interfaces = interfaces;
        self
    }

    /// The same with another peer timeout.
    #[must_use]
    pub fn with_peer_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.peer_timeout = timeout;
        self
    }

    /// The same with `layer` between connections and their sockets, for fault injection.
    #[must_use]
    #[doc(hidden)]
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layer = Some(layer);
        self
    }

    /// The interfaces to listen on, best first; at least one.
    pub(super) fn choose(&self) -> Result<Vec<Interface>> {
        let chosen = choose(&self.interfaces)?;
        if chosen.is_empty() {
            let text = "this host has no network interface that is up, not even the loopback";
            return Err(Error::usage("bootstrap", text));
        }
        Ok(chosen)
    }

    /// The network of the bootstrap of a job. Its key is derived from the job's secret, so that it opens nothing else.
    pub(super) fn network(&self, secret: &Secret) -> Network {
        let network = Network::new(secret.derive("bootstrap")).with_faults(self.faults.as_ref());
        match &self.layer {
            Some(layer) => network.with_layer(layer.clone()),
            None => network,
        }
    }
}

impl fmt::Debug for BootstrapConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapConfig")
            .field("interfaces", &self.interfaces)
            .field("peer_timeout", &self.peer_timeout)
            .finish_non_exhaustive()
    }
}
