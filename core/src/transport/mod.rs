//! The transports: the ways in which data gets from one rank to another.
//!
//! Each has a folder or file of its own with a [`Provider`](provider::Provider), and [`table`] is the only place that names them
//! all. A provider registers memory and offers one end of a connection; [`Draft::accept`](provider::Draft::accept) makes a
//! [`Backend`](backend::Backend) of it from the peer's offer; the backend takes operations (`post`), moves them along (`kick`,
//! `pause`) and says when they are acknowledged (`mark`, `is_done`).

pub(crate) mod backend;
mod blocks;
pub(crate) mod completion;
pub(crate) mod endpoint;
mod idle;
mod in_flight;
mod ipc;
pub(crate) mod provider;
pub(crate) mod resources;
pub(crate) mod service;
mod stock;
pub(crate) mod table;
mod tcp;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod verbs;
mod waits;
mod words;

pub(crate) use resources::Resources;
#[cfg(feature = "fuzzing")]
pub(crate) use tcp::fuzzing;
