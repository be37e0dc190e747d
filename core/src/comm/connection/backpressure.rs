//! Waiting for room on a connection that has too many operations outstanding.
#![forbid(unsafe_code)]

use super::Connection;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};

/// One call's wait for room. It holds no lock between its pauses, so that other callers go on.
pub(crate) struct Backpressure<'a> {
    connection: &'a Connection,
    op: &'static str,
    backoff: Backoff,
    deadline: Deadline,
}

impl<'a> Backpressure<'a> {
    pub(crate) fn new(connection: &'a Connection, op: &'static str) -> Self {
        let deadline = Deadline::after(connection.inner.timeout);
        Self { connection, op, backoff: Backoff::new(), deadline }
    }

    /// Moves earlier operations along and waits a little.
    ///
    /// # Errors
    /// `Timeout` after [`EndpointConfig::timeout`](crate::comm::EndpointConfig::timeout); the failure of the connection.
    pub(crate) fn pause(&mut self) -> Result<()> {
        let Connection { inner } = self.connection;
        inner.backend.kick()?;
        if self.deadline.expired() {
            let (peer, timeout) = (self.connection.peer(), inner.timeout);
            let message =
                format!("rank {peer} has not taken the operations before this one within {timeout:?}");
            return Err(Error::timeout(self.op, message).with_peer(peer));
        }
        inner.backend.pause(&mut self.backoff, self.deadline);
        Ok(())
    }
}
