//! aqueduct: driver-level GPU communication.
//!
//! Begin with `docs/first-crate.md` of the repository: in less than ten minutes it leads to a crate of your own that runs on GPUs
//! or on the software device. Those who know MSCCL++ or NCCL continue with `docs/porting.md`. Every program begins like this:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use aqueduct::comm::{Communicator, CommunicatorConfig};
//! use aqueduct::gpu::{Context, Device, Driver};
//! use aqueduct::{Deadline, bootstrap};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let deadline = Deadline::after(Duration::from_secs(60));
//!     // GPUs, or the software device of package `aqueduct-cuda-soft` where there are none.
//!     let driver = Driver::select(Some(cuda_soft::driver_table))?;
//!     // Started by `aqueduct run -n 2 -- PROGRAM` or another launcher.
//!     let bootstrap = bootstrap::from_env()?.ok_or("no launcher")?;
//!     let local_rank = bootstrap::local_rank_from_env()?.unwrap_or(bootstrap.rank());
//!     let device = Device::of_rank(&driver, local_rank)?;
//!     let context = Context::new(&device)?;
//!     let comm = Communicator::new(&*bootstrap, &context, CommunicatorConfig::from_env()?, deadline)?;
//!     println!("rank {} of {} on {}", comm.rank(), comm.size(), driver.provenance());
//!     Ok(comm.close(deadline)?)
//! }
//! ```
//!
//! Ranks meet through a [`bootstrap`] and become a group with a [`comm::Communicator`]. They register memory, connect, build
//! semaphores, and call `setup()` together; then hosts move data over [`comm::Connection`]s, kernels over the channels of
//! [`channel`], and whole groups by [`collective`]s. [`gpu`] is the CUDA driver as safe values; [`proxy`] lets kernels ask
//! the host for work; [`device`] has what kernels of your own take.
//!
//! Every fallible call returns an [`Error`] that says what to do. Every call that waits for another rank, or for work on a
//! device, takes a [`Deadline`] or a [`Duration`](std::time::Duration) from now, or its documentation names the limit. A wait
//! that kernels gave up, because a peer was lost or the communicator aborted, is an error of [`gpu::Stream::synchronize`]; for
//! streams of other libraries, ask [`comm::Communicator::check`] after waiting.
//!
//! Rooms, lowest first; a file uses lower rooms and its own only (`ci/layers.sh` checks it):
//!
//! | floor | rooms |
//! |---|---|
//! | 0 | error, outcome, failure, deadline, descriptors, abort, env, fault, fork, [`logging`], service_thread, wire, volatile, sync |
//! | 1 | net, shm, [`gpu`], rdma |
//! | 2 | [`bootstrap`] |
//! | 3 | group, [`message`] |
//! | 4 | device_messages, ledger |
//! | 5 | setup |
//! | 6 | memory |
//! | 7 | transport |
//! | 8 | [`comm`] |
//! | 9 | [`proxy`] |
//! | 10 | [`channel`] |
//! | 11 | [`plan`] |
//! | 12 | [`collective`], [`device`] |

mod abort;
mod deadline;
mod descriptors;
mod digest;
mod error;
mod failure;
mod fork;
pub mod logging;
mod outcome;
#[cfg(test)]
mod own_process;
mod processors;
mod service_thread;

pub mod gpu;

pub mod bootstrap;
mod group;
pub mod message;

mod device_messages;
mod ledger;
mod memory;
mod setup;

mod transport;

pub mod comm;

pub mod proxy;

pub mod channel;

pub mod plan;

pub mod collective;

pub mod device;

/// Parts that the project's own tools and tests need besides. Not an interface: they change without notice.
#[doc(hidden)]
#[path = "."]
pub mod internals {
    pub mod env;
    pub mod fault;
    #[cfg(feature = "fuzzing")]
    pub mod fuzzing;
    pub mod net;
    pub mod rdma;
    pub mod shm;
    pub mod sync;
    pub mod volatile;
    pub mod wire;

    /// The words by which the host tells kernels to leave, and the records that they leave.
    pub mod abort {
        pub use crate::abort::{AbortRecordCell, AbortWord};
    }

    /// Control links alone, without a communicator.
    pub mod control {
        pub use crate::group::wire_up::{ControlLinks, Introduction};
    }

    /// The ring of messages within a host, without a messenger.
    pub mod ring {
        pub use crate::message::BareRing;
    }

    /// Preparation of plans without peers.
    pub mod plans {
        pub use crate::plan::{Steps, prepare_alone};
    }

    /// Probes a device's capabilities by using them.
    pub mod probe {
        pub use crate::gpu::probe::{Finding, is_refusal, peer_access, sharing};
    }

    /// Watches the calls of a driver, or answers in its place.
    pub mod hooks {
        pub use crate::gpu::driver::Hooks;
    }

    /// Memory that processes share through the driver.
    pub mod share {
        pub use crate::gpu::ipc::{FabricHandle, LegacyHandle, LegacyMapping};
        pub use crate::gpu::vmm::{Chunk, HandleTypes, Mapping, PhysicalAllocation, chunks};
    }
}

pub(crate) use internals::{env, fault, net, rdma, shm, sync, volatile, wire};

pub use deadline::Deadline;
pub use error::{Error, ErrorKind, Result};
