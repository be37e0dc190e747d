//! Ranks that work together: the communicator, its control links, and what two ranks set up with each other.
//!
//! Setup is two-phase: [`Communicator::connect`], [`send_memory`](Communicator::send_memory),
//! [`recv_memory`](Communicator::recv_memory) and [`build_semaphore`](Communicator::build_semaphore) return a
//! [`Pending`], and [`Communicator::setup`] makes them all, each as soon as both ends are ready. Everything goes over the
//! communicator's own authenticated links; the bootstrap is only needed to make it.

mod abort_record;
mod communicator;
mod config;
mod connection;
mod control;
mod core;
mod endpoint;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod holds;
mod key;
mod links;
mod mailbox;
mod memory;
mod neighbours;
mod nics;
mod peer;
mod pending;
mod register;
mod registry;
mod report;
mod semaphore;
mod setup;
mod shrink;
mod standing;
mod tokens;
mod topology;
mod wire_up;

pub(crate) use abort_record::AbortRecordMemory;
pub use communicator::{Communicator, RESERVED_TAGS};
pub use config::{CommunicatorConfig, NetLayer};
pub(crate) use connection::Claim;
pub use connection::{Batch, Connection, ConnectionCounters};
pub use endpoint::{EndpointConfig, IbSignal, Transport, Transports};
pub use memory::{HostBuffer, RegisteredMemory};
pub use peer::{DeviceIdentity, DriverKind, PeerInfo};
pub use pending::{Dependency, Pending};
pub use report::AbortReport;
pub use semaphore::{Device2DeviceSemaphore, Host2DeviceSemaphore, Host2HostSemaphore, SemaphoreCounters};
pub use topology::{PeerTopology, Topology};
pub use wire_up::{ControlLinks, Introduction};
