//! Ranks that work together: the communicator, its control links, and what two ranks set up with each other.
//!
//! Setup is two-phase: [`Communicator::connect`], [`send_memory`](Communicator::send_memory),
//! [`recv_memory`](Communicator::recv_memory) and [`build_semaphore`](Communicator::build_semaphore) return a
//! [`Pending`], and [`Communicator::setup`] makes them all, each as soon as both ends are ready. Everything goes over the
//! communicator's own authenticated links; the bootstrap is only needed to make it.

pub(crate) mod abort_memory;
mod abort_record;
mod ask;
mod asked;
pub(crate) mod communicator;
pub(crate) mod config;
pub(crate) mod connection;
mod exchange;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod introduction;
mod kept;
mod meeting;
mod register;
mod report;
mod scratch;
pub(crate) mod semaphore;
mod shrink;
mod split;
mod together;
pub(crate) mod tokens;
mod topology;

pub use crate::group::peer::{DeviceIdentity, DriverKind, PeerInfo};
pub use crate::memory::{HostBuffer, RegisteredMemory, Registration, Rights};
pub use crate::rdma::Settings as IbSettings;
pub use crate::setup::pending::{Dependency, Pending};
pub use crate::transport::backend::ConnectionCounters;
pub use crate::transport::endpoint::{EndpointConfig, IbSignal, Transport, Transports};
pub(crate) use abort_memory::StreamWaits;
pub(crate) use abort_record::AbortRecordMemory;
pub use communicator::Communicator;
pub use config::CommunicatorConfig;
pub(crate) use connection::Claim;
pub use connection::{Batch, Connection};
pub use exchange::MemoryExchange;
pub use report::AbortReport;
pub(crate) use scratch::ScratchShare;
pub use semaphore::{Device2DeviceSemaphore, Host2DeviceSemaphore, Host2HostSemaphore, SemaphoreCounters};
pub use together::together;
pub use topology::{PeerTopology, Topology};
