//! Semaphores that kernels signal and wait for.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, SemaphoreHandle};

use super::ends::{Ends, SemaphoreCounters};
use super::item::Flavour;
use crate::comm::connection::Connection;
use crate::comm::tokens::{INBOUND, Side};
use crate::comm::topology::PeerTopology;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::gpu::{Context, KeepAlive};
use crate::outcome::Outcome;

/// A semaphore between the devices of two ranks: kernels `signal` and `wait` through its
/// [`device_handle`](Self::device_handle). Cheap to clone.
#[derive(Clone)]
pub struct Device2DeviceSemaphore {
    ends: Arc<Ends>,
}

impl Device2DeviceSemaphore {
    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.ends.connection.peer()
    }

    /// The connection it was built on.
    pub fn connection(&self) -> &Connection {
        &self.ends.connection
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.ends.site.exchange.context
    }

    /// Tells waits for streams whether kernels gave up waiting for this semaphore.
    pub(crate) fn outcome(&self) -> Arc<dyn Outcome> {
        self.ends.site.exchange.group.outcome()
    }

    /// Where the peer is, seen from this rank.
    pub(crate) fn topology(&self) -> &PeerTopology {
        &self.ends.site.topology.peers()[self.peer() as usize]
    }

    /// Returns `Ok` while signals can still come.
    ///
    /// # Errors
    /// The reason if the peer is gone or the communicator has failed.
    pub fn check(&self) -> Result<()> {
        self.ends.connection.check("semaphore")
    }

    /// The abort word and record for kernels that wait for the peer, as [`device_handle`](Self::device_handle) has it: for
    /// waits by other means, such as packets. [`keep_alive`](Self::keep_alive) keeps them.
    pub fn abort_handle(&self) -> AbortHandle {
        self.ends.abort_handle()
    }

    /// The handle for kernels. Plain addresses: keep the semaphore, or its [`keep_alive`](Self::keep_alive), until no
    /// kernel uses them.
    pub fn device_handle(&self) -> SemaphoreHandle {
        let remote_inbound = self.ends.theirs.ptr() + INBOUND as u64;
        SemaphoreHandle { remote_inbound, ..self.ends.waiting_handle() }
    }

    /// The owner that a stream must retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.ends.clone()
    }

    /// Reads the counters of this end from the device: for diagnosis, not for synchronisation.
    ///
    /// # Errors
    /// `Timeout`, or a driver error.
    pub fn counters(&self, deadline: impl Into<Deadline>) -> Result<SemaphoreCounters> {
        self.ends.device_counters(deadline.into())
    }

    /// Whether there is a signal that no wait has taken yet. It takes none.
    ///
    /// # Errors
    /// `Timeout`, or a driver error.
    pub fn has_signal(&self, deadline: impl Into<Deadline>) -> Result<bool> {
        let counters = self.counters(deadline)?;
        Ok(counters.inbound > counters.expected_inbound)
    }
}

impl Flavour for Device2DeviceSemaphore {
    const NUMBER: u8 = 1;
    const NAME: &'static str = "Device2Device";
    const SIDE: Side = Side::Device;
    const NEEDS_MAPPING: bool = true;

    fn over(ends: Ends) -> Self {
        Self { ends: Arc::new(ends) }
    }
}

impl fmt::Debug for Device2DeviceSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ends.describe("Device2DeviceSemaphore", f)
    }
}
