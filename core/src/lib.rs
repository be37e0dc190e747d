//! aqueduct: driver-level GPU communication.
//!
//! Layers, lowest first; a module imports lower layers only (`ci/layers.sh` checks it):
//!
//! | layer | modules |
//! |---|---|
//! | 0 | [`error`] [`deadline`] [`abort`] [`mod@env`] [`fault`] [`logging`] [`wire`] [`volatile`] [`sync`] |
//! | 1 | [`net`] [`shm`] [`gpu`] [`rdma`] |
//! | 2 | [`bootstrap`] [`comm`] |
//! | 3 | [`proxy`] |
//! | 4 | [`channel`] |
//! | 5 | [`collective`] |

pub mod abort;
pub mod deadline;
pub mod env;
pub mod error;
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
pub mod comm;

pub mod proxy;

pub mod channel;

pub mod collective;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use deadline::Deadline;
pub use error::{Error, ErrorKind, Result};
