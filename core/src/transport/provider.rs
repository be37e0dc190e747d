//! Interface that each transport provides: memory registration, and making ends of connections in two steps.

use super::backend::Backend;
use super::endpoint::{EndpointConfig, EndpointWire, Transport};
use super::resources::Resources;
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
    /// The data that the other end needs to connect.
    fn describe(&self) -> Vec<u8>;

    /// Connects to the other end, which offered `theirs`.
    fn accept(
        self: Box<Self>,
        resources: &Resources,
        theirs: &EndpointWire,
        deadline: Deadline,
    ) -> Result<Box<dyn Backend>>;
}
