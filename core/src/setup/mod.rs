//! Setting something up together with a peer: what was asked for at both ends, matched by kind, peer and tag.

pub(crate) mod key;
pub(crate) mod mailbox;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod pending;
pub(crate) mod run;
pub(crate) mod wire;
