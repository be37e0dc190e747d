//! What peers hold of this rank's, and must give back: the only place where that is written down.

pub(crate) mod holds;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod receipt;

pub(crate) use receipt::Ledger;
