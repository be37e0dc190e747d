//! Numbers by which triggers name semaphores and memories.
#![forbid(unsafe_code)]

use crate::error::Error;

/// Number of a semaphore in a [`ProxyService`](super::ProxyService).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SemaphoreId(pub u16);

/// Number of a memory in a [`ProxyService`](super::ProxyService).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryId(pub u16);

pub(super) fn unknown_semaphore(id: SemaphoreId) -> Error {
    let message = format!("there is no semaphore {}: it was removed or never added", id.0);
    Error::usage("ProxyService", message)
}

pub(super) fn unknown_memory(id: MemoryId) -> Error {
    Error::usage("ProxyService", format!("there is no memory {}: it was removed or never added", id.0))
}
