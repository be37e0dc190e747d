//! Authenticated, framed streams between the processes of one job.
//!
//! A [`Network`] holds the job's [`Secret`]. Whoever connects or listens through it proves the secret by challenge
//! and response before a byte of payload is looked at, on TCP and on unix sockets alike, and so does the other
//! side. After that a [`Stream`] carries [`Frame`]s of bounded length. A [`Reactor`] serves many streams and
//! listeners with one thread. There is no confidentiality and no protection against someone who can alter packets
//! between two hosts: the secret keeps strangers out, it does not hide what is said.

mod admission;
mod bell;
mod connect;
mod faulty;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handshake;
mod interface;
mod link;
mod listener;
mod pollable;
pub(crate) mod pulse;
mod raw;
mod reactor;
mod secret;
mod served;
mod stream;
mod sys;
mod unix;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use connect::tells_of_loss;
pub use frame::{Frame, MAX_FDS};
pub use interface::{Interface, choose, interfaces};
pub use link::Link;
pub use listener::{Listener, Rejections};
pub use pollable::{Acceptor, Interest, Next, Pollable, Registration};
pub use raw::{Layer, RawStream};
pub use reactor::{Handler, Reactor, ReactorConfig};
pub use secret::{Secret, SecretText, random_bytes};
pub use stream::Stream;

use crate::fault::{NetFaults, Plan};
pub(crate) use unix::sweep as sweep_sockets;

/// What connections of the library are for; other users of this module take 16 and up.
pub(crate) mod purpose {
    pub(crate) const RENDEZVOUS: u16 = 1;
    pub(crate) const BOOTSTRAP: u16 = 2;
    pub(crate) const CONTROL: u16 = 3;
    pub(crate) const DATA: u16 = 4;
}

/// What one end of a connection says about itself. Bound into both proofs, so it cannot be altered.
///
/// Both ends must name the same purpose and scope, and the listener must be the rank that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// What the connection is for; the numbers belong to the users of this module.
    pub purpose: u16,
    /// Which bootstrap or communicator it belongs to.
    pub scope: u64,
    /// The rank that speaks, or [`Claims::ANY`].
    pub from: u32,
    /// The rank that is spoken to, or [`Claims::ANY`].
    pub to: u32,
}

impl Claims {
    /// "Some rank": a listener that takes anyone of the job, or a connection made before ranks are known.
    pub const ANY: u32 = u32::MAX;
}

/// Where a listener can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A socket in the file system of this host.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// How this process talks to the others of its job: the secret, the limits, and an optional fault layer.
#[derive(Clone)]
pub struct Network {
    secret: Secret,
    max_frame: u32,
    max_pending: usize,
    ranks: Option<u32>,
    max_connections: usize,
    handshake_timeout: Duration,
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

    /// Puts `layer` between every authenticated stream and its socket: the seam for fault injection.
    #[must_use]
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layer = Some(layer);
        self
    }

    /// Makes connections fail as the network's part of `plan` says; each call starts the plan anew.
    #[must_use]
    pub fn with_faults(mut self, plan: Option<&Plan>) -> Self {
        if let Some(plan) = plan.filter(|plan| !plan.net.is_empty()) {
            self.layer = Some(Arc::new(NetFaults::new(plan.net.clone(), plan.seed)));
        }
        self
    }

    fn wrap(&self, local: Claims, peer: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
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
