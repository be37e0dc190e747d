//! How the ranks of a job find each other: a seed for communicators, and nothing more.
//!
//! [`Bootstrap`] is small on purpose. [`TcpBootstrap`] is ours; MPI, PMIx, a torch store or a shared directory can
//! supply the same five calls. Everything a running communicator needs (noticing a death, passing memory
//! handles) goes over its own authenticated control links, never over this.

mod address;
mod collective;
mod config;
mod file;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod joining;
mod launch;
mod local;
mod mailbox;
mod pointers;
mod rendezvous;
mod tcp;
mod unique_id;

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};

pub use crate::env::{Selection, SocketFamily};
pub use crate::net::{Secret, SecretText};
pub use collective::{Bootstrap, MAX_MESSAGE, RESERVED_TAGS};
pub use config::BootstrapConfig;
pub use launch::{Launch, Launcher, from_env, local_rank_from_env, timeout_from_env};
pub use local::{LocalBootstrap, local};
pub use rendezvous::Rendezvous;
pub use tcp::TcpBootstrap;
pub use unique_id::UniqueId;
pub(crate) use unique_id::{read_address, write_address};

/// The most ranks that a job can have. A larger number is a mistake, here or at a peer, and is refused before anything is
/// allocated for it.
pub const MAX_RANKS: u32 = 1 << 20;

/// `Ok` if a job may have `size` ranks.
pub(crate) fn check_size(op: &'static str, size: u32) -> Result<()> {
    if (1..=MAX_RANKS).contains(&size) {
        return Ok(());
    }
    let text = format!(
        "a job has 1 to {MAX_RANKS} ranks, not {size}; give the number of processes that join as the world size"
    );
    Err(Error::usage(op, text))
}
