//! How the ranks of a job find each other: a seed for communicators, and nothing more.
//!
//! [`Bootstrap`] is small on purpose. [`TcpBootstrap`] is ours; MPI, PMIx, a torch store or a shared directory can
//! supply the same five calls. Everything a running communicator needs (noticing a death, passing memory
//! handles) goes over its own authenticated control links, never over this.

mod collective;
mod config;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod launch;
mod local;
mod mailbox;
mod rendezvous;
mod tcp;
mod unique_id;

#[cfg(test)]
mod tests;

use std::fmt::Debug;

pub use crate::env::{Selection, SocketFamily};
pub use crate::net::{Secret, SecretText};
pub(crate) use collective::broadcast;
pub use config::BootstrapConfig;
pub use launch::{Launch, Launcher, from_env};
pub use local::{LocalBootstrap, local};
pub use rendezvous::Rendezvous;
pub use tcp::TcpBootstrap;
pub use unique_id::UniqueId;

use crate::deadline::Deadline;
use crate::error::Result;

/// Tags from here on belong to [`Bootstrap::all_gather`] and [`Bootstrap::barrier`]; users' tags are below.
pub const RESERVED_TAGS: u64 = 1 << 63;

/// The most ranks that a job can have. A larger number is a mistake, here or at a peer, and is refused before anything is
/// allocated for it.
pub const MAX_RANKS: u32 = 1 << 20;

/// The longest message that [`Bootstrap::send`] takes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Messages between the ranks of a job while it starts.
///
/// Messages of one (sender, receiver, tag) arrive in order; different tags are independent. Every wait has a
/// deadline. The implementation may be used from several threads; collective calls ([`all_gather`], [`barrier`])
/// are made by all ranks in the same order, one at a time.
///
/// [`all_gather`]: Bootstrap::all_gather
/// [`barrier`]: Bootstrap::barrier
pub trait Bootstrap: Debug + Send + Sync {
    /// This process's number, `0 .. size`.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// Sends `bytes` to `peer`. Returns when the message is on its way, without waiting for the peer to receive
    /// it. Sending to oneself is allowed.
    fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()>;

    /// The next message that `peer` sent with `tag`.
    fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>>;

    /// A secret that all ranks of this bootstrap share and nobody else knows, if it has one. Provided: none.
    fn secret(&self) -> Option<Secret> {
        None
    }

    /// Everybody's `mine`, in rank order; the lengths may differ. Collective. Provided: Bruck's algorithm over
    /// `send` and `recv`, ceil(log2(size)) rounds.
    fn all_gather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        collective::all_gather(self, mine, deadline)
    }

    /// Returns when every rank has called it. Collective. Provided: dissemination, ceil(log2(size)) rounds.
    fn barrier(&self, deadline: Deadline) -> Result<()> {
        collective::barrier(self, deadline)
    }
}
