//! The states of a peer, and how kernels that wait for it learn of its departure.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a kernel may go on waiting for a rank that has left. Between its last look at the data and its look at the
/// abort word no time passes on a GPU, and a moment on a busy software device.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The state of a peer, as this rank sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    Present,
    /// Another rank has lost it, which ended the communicator; this one still has a path to it.
    Suspected(String),
    /// It said BYE on one link; what it said on others may still be on its way.
    Leaving,
    /// It said BYE on every link, or ended it after that.
    Left {
        at: Instant,
        /// Kernels that wait for it were told.
        told: bool,
    },
    Lost(String),
}

impl PeerState {
    /// Whether it can be reached no more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Left { .. } | Self::Lost(_))
    }

    /// Whether the communicator goes on without it, or not at all.
    pub(crate) fn is_failed(&self) -> bool {
        self.is_gone() || matches!(self, Self::Suspected(_))
    }

    /// `Ok` while the peer can be talked to.
    pub(crate) fn check(&self, op: &'static str, peer: u32) -> Result<()> {
        match self {
            Self::Present | Self::Leaving => Ok(()),
            Self::Left { .. } => {
                Err(Error::peer_lost(op, peer, "it has left the communicator in good order"))
            }
            Self::Suspected(why) | Self::Lost(why) => Err(Error::peer_lost(op, peer, why)),
        }
    }
}

/// The kernels of this rank that wait for others.
pub(crate) trait Waiters: Send + Sync {
    /// Tells those that wait for `peer` to leave.
    fn dismiss(&self, peer: u32);

    /// Whether one has left early, and the rank that it waited for, if it was one.
    fn abandoned(&self) -> Option<Option<u32>>;
}
