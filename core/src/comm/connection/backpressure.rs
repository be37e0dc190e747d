//! Waiting for room on a connection that has too many operations outstanding.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};
use crate::transport::backend::Backend;

/// One call's wait for room. It holds no lock between its pauses, so that other callers go on.
pub(crate) struct Backpressure<'a> {
    backend: &'a dyn Backend,
    peer: u32,
    op: &'static str,
    backoff: Backoff,
    timeout: Duration,
    deadline: Deadline,
}

impl<'a> Backpressure<'a> {
    /// A wait of the call `op` for `backend`, the connection to `peer`, which gives up after `timeout`.
    pub(super) fn new(backend: &'a dyn Backend, peer: u32, timeout: Duration, op: &'static str) -> Self {
        Self { backend, peer, op, backoff: Backoff::new(), timeout, deadline: Deadline::after(timeout) }
    }

    /// Moves earlier operations along and waits a little.
    ///
    /// # Errors
    /// `Timeout` after [`EndpointConfig::timeout`](crate::comm::EndpointConfig::timeout); the failure of the connection.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.backend.kick()?;
        if self.deadline.expired() {
            let Self { peer, timeout, .. } = self;
            let message =
                format!("rank {peer} has not acknowledged the operations before this one within {timeout:?}");
            return Err(Error::timeout(self.op, message).with_peer(*peer));
        }
        self.backend.pause(&mut self.backoff, self.deadline);
        Ok(())
    }
}
