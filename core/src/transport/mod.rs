//! The transports: the ways in which data gets from one rank to another.
//!
//! Each has a folder or file of its own with a [`Provider`], and [`provider`] is the only place that names them all. A provider
//! registers memory and offers one end of a connection; [`Draft::accept`] makes a [`Backend`] of it from the peer's offer; the
//! backend takes operations (`post`), moves them along (`kick`, `pause`) and says when they are acknowledged (`mark`, `is_done`).

pub(crate) mod backend;
mod completion;
pub(crate) mod endpoint;
mod failure;
mod idle;
mod in_flight;
mod ipc;
pub(crate) mod resources;
pub(crate) mod service;
mod tcp;
pub(crate) mod verbs;

use backend::{Backend, ConnectionCounters, Operation, Span};
use endpoint::{EndpointConfig, EndpointWire, Transport};
pub(crate) use resources::Resources;

use crate::deadline::Deadline;
use crate::error::Result;
use crate::memory::RegisteredMemory;
use crate::rdma::Access;
use crate::setup::key::Key;

/// How connections of one transport are made.
pub(crate) trait Provider: Sync {
    /// Registers `memory` with the devices of `transport`, for `access`.
    fn register(
        &self,
        resources: &Resources,
        transport: Transport,
        memory: RegisteredMemory,
        access: Access,
    ) -> Result<RegisteredMemory> {
        let _ = (resources, transport, access);
        Ok(memory)
    }

    /// Makes this rank's end of the connection `key`, as far as it can be made without knowing the other.
    fn offer(&self, resources: &Resources, key: Key, config: &EndpointConfig) -> Result<Box<dyn Draft>>;
}

/// One end of a connection before the other is known.
pub(crate) trait Draft: Send {
    /// What the other end needs.
    fn describe(&self) -> Vec<u8>;

    /// Connects to the other end, which offered `theirs`.
    fn accept(
        self: Box<Self>,
        resources: &Resources,
        theirs: &EndpointWire,
        deadline: Deadline,
    ) -> Result<Box<dyn Backend>>;
}

/// The provider of each transport.
pub(crate) fn provider(transport: Transport) -> &'static dyn Provider {
    match transport {
        Transport::CudaIpc => &ipc::CopyEngines,
        Transport::Ethernet => &tcp::Sockets,
        Transport::Ib(_) => &verbs::QueuePairs,
    }
}
