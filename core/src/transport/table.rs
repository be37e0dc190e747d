//! The provider of each transport. No transport uses this table: callers look a provider up and hand it on.
#![forbid(unsafe_code)]

use super::endpoint::Transport;
use super::ipc::CopyEngines;
use super::provider::Provider;
use super::resources::Resources;
use super::tcp::Sockets;
use super::verbs::QueuePairs;
use crate::error::Result;
use crate::memory::RegisteredMemory;

/// The provider of `transport`.
pub(crate) fn provider(transport: Transport) -> &'static dyn Provider {
    match transport {
        Transport::CudaIpc => &CopyEngines,
        Transport::Ethernet => &Sockets,
        Transport::Ib(_) => &QueuePairs,
    }
}

/// Registers `memory` with all its transports, for what its rights allow.
///
/// # Errors
/// The first failure of a transport.
pub(crate) fn register(resources: &Resources, memory: RegisteredMemory) -> Result<RegisteredMemory> {
    memory.transports().check("register_memory")?;
    let (mut transports, access) = (memory.transports().iter(), memory.rights().access());
    transports.try_fold(memory, |memory, transport| {
        provider(transport).register(resources, transport, memory, access)
    })
}
