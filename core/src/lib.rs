//! aqueduct: driver-level GPU communication.
//!
//! Layers, lowest first; a module imports lower layers only (`ci/layers.sh` checks it):
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`error`] [`deadline`] [`abort`] [`mod@env`] [`fault`] [`logging`] [`wire`] [`volatile`] [`sync`] |
//! | 1 | [`net`] [`shm`] [`gpu`] [`rdma`] |
//! | 2 | [`bootstrap`] `group` |
//! | 3 | `setup` `memory` |
//! | 4 | `transport` |
//! | 5 | [`comm`] |
//! | 6 | [`proxy`] |
//! | 7 | [`channel`] |
//! | 8 | [`collective`] |

pub mod abort;
pub mod deadline;
pub mod env;
pub mod error;
mod failure;
pub mod fault;
mod fork;
pub mod logging;
pub mod sync;
pub mod volatile;
pub mod wire;

pub mod gpu;
pub mod net;
pub mod rdma;
pub mod shm;

pub mod bootstrap;
mod group;

mod memory;
mod setup;

mod transport;

pub mod comm;

pub mod proxy;

pub mod channel;

pub mod collective;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use deadline::Deadline;
pub use error::{Error, ErrorKind, Result};
