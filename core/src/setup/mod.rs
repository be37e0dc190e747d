//! Setting something up together with a peer: what was asked for at both ends, matched by kind, peer and tag.
//! Semaphores of all flavours are of one kind.

#[cfg(test)]
mod agreement;
pub(crate) mod attempts;
pub(crate) mod key;
pub(crate) mod mailbox;
pub(crate) mod message;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod pending;
pub(crate) mod run;
