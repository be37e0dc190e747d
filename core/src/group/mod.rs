//! The group: who belongs to it, how its ranks speak while they run, and how they notice that one has gone.

mod birth;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod first_links;
pub(crate) mod frames;
pub(crate) mod handle;
pub(crate) mod links;
pub(crate) mod membership;
pub(crate) mod peer;
pub(crate) mod peer_state;
pub(crate) mod subscriber;
pub(crate) mod subset;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod wire_up;

pub(crate) use handle::Group;
