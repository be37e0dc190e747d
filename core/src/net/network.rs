//! Settings shared by all connections of a job or a communicator: the secret, and limits.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::claims::Claims;
use super::raw::{Layer, RawStream};
use super::secret::Secret;
use crate::fault::{NetFaults, Rules};

/// How this process talks to the others of its job: the secret, the limits, and an optional fault layer.
#[derive(Clone)]
pub struct Network {
    pub(super) secret: Secret,
    pub(super) max_frame: u32,
    pub(super) max_pending: usize,
    pub(super) ranks: Option<u32>,
    pub(super) max_connections: usize,
    pub(super) handshake_timeout: Duration,
    pub(super) not_yet: Option<Duration>,
    layer: Option<Arc<dyn Layer>>,
}

impl Network {
    /// A network of those who know `secret`: frames up to 16 MiB and some, 128 unproven connections per listener and
    /// 65536 proven ones, eight of each rank, five seconds for a proof.
    pub fn new(secret: Secret) -> Self {
        Self {
            secret,
            max_frame: (16 << 20) + 4096,
            max_pending: 128,
            ranks: None,
            max_connections: 1 << 16,
            handshake_timeout: Duration::from_secs(5),
            not_yet: None,
            layer: None,
        }
    }

    /// The longest payload of a frame that is accepted, in bytes.
    #[must_use]
    pub fn with_max_frame(mut self, bytes: u32) -> Self {
        self.max_frame = bytes;
        self
    }

    /// How many connections per listener may be unproven at a time; beyond it the oldest one is closed.
    #[must_use]
    pub fn with_max_pending(mut self, connections: usize) -> Self {
        self.max_pending = connections.max(1);
        self
    }

    /// How many ranks there are. Listeners refuse peers with higher numbers, and more connections than so many ranks need.
    #[must_use]
    pub fn with_ranks(mut self, ranks: u32) -> Self {
        self.ranks = Some(ranks);
        self.with_max_connections(64 + 4 * ranks as usize)
    }

    /// How many connections of proven peers each listener may have at a time; it refuses further ones, and says so.
    #[must_use]
    pub fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// How long a listener waits for a proof.
    #[must_use]
    pub fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// For how long an address where nobody listens, or which cannot be reached, may still be of somebody who is
    /// about to come. Without it, a second, and an address that cannot be reached is given up at once.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.not_yet = Some(patience);
        self
    }

    /// Puts `layer` between every authenticated stream and its socket: the seam for fault injection.
    #[must_use]
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layer = Some(layer);
        self
    }

    /// Makes connections fail as the network's part of `rules` says; each call starts them anew.
    #[must_use]
    pub fn with_faults(mut self, rules: Option<&Rules>) -> Self {
        if let Some(rules) = rules.filter(|rules| !rules.net.is_empty()) {
            self.layer = Some(Arc::new(NetFaults::new(rules.net.clone(), rules.seed)));
        }
        self
    }

    pub(super) fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        match &self.layer {
            Some(layer) => layer.wrap(local, peer, raw),
            None => raw,
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("max_frame", &self.max_frame).finish_non_exhaustive()
    }
}
