//! The one record of this rank's objects that peers hold and must give back.

pub(crate) mod holds;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod receipt;

pub(crate) use receipt::Ledger;
