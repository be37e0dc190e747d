//! Operations of a connection for a proxy: they never block, and their completion is polled for.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::Connection;
use crate::error::{Error, Result};
use crate::gpu::DeviceSlice;
use crate::sync::Ordering;

/// Exclusive use of a connection by one proxy service, until dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    connection: Connection,
}

impl Connection {
    /// Takes the connection for a service.
    pub(crate) fn claim(&self) -> Result<Claim> {
        if self.inner.claimed.swap(true, Ordering::AcqRel) {
            let message = format!(
                "the connection to rank {} (tag {}) belongs to another proxy service: one service orders what goes over a \
                 connection; connect again, with another tag, or remove its semaphores there and come back when their requests are \
                 done",
                self.peer(),
                self.tag()
            );
            return Err(Error::usage("ProxyService", message).with_peer(self.peer()));
        }
        Ok(Claim { connection: self.clone() })
    }

    /// Whether both are one connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether an operation would be taken without waiting for earlier ones; moves those along.
    pub(crate) fn has_room(&self) -> Result<bool> {
        self.inner.backend.has_room()
    }

    /// Holds operations back until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.inner.batches.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets operations go on their way that a [`hold`](Self::hold) held back.
    pub(crate) fn release(&self) -> Result<()> {
        if self.inner.batches.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.backend.kick()
        } else {
            Ok(())
        }
    }

    /// A position behind everything so far.
    pub(crate) fn mark(&self) -> Result<u64> {
        self.inner.backend.mark()
    }

    /// Whether everything before a mark has completed.
    pub(crate) fn is_done(&self, mark: u64) -> Result<bool> {
        self.inner.backend.is_done(mark)
    }

    /// Has `value` written to `word` when everything so far has completed, if the transport does so by itself.
    pub(crate) fn report(&self, word: &DeviceSlice, value: u64) -> Result<bool> {
        self.inner.backend.report(word, value)
    }
}

impl Claim {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.connection.inner.claimed.store(false, Ordering::Release);
    }
}
