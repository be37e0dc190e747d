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
use crate::failure::Outcome;
use crate::gpu::{Context, KeepAlive};

/// A semaphore between the devices of two ranks: `signal` and `wait` are done by kernels, through
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

    /// Whom waits for streams ask whether kernels that wait for it gave up.
    pub(crate) fn outcome(&self) -> Arc<dyn Outcome> {
        self.ends.site.exchange.group.outcome()
    }

    /// Where the peer is, seen from this rank.
    pub(crate) fn topology(&self) -> &PeerTopology {
        &self.ends.site.topology.peers()[self.peer() as usize]
    }

    /// `Ok` while signals can still come: the peer is there and the communicator has not failed.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<()> {
        self.ends.connection.check("semaphore")
    }

    /// Where kernels that wait for this semaphore find the abort word and record. Kept alive as [`device_handle`](Self::device_handle) is.
    pub fn abort_handle(&self) -> AbortHandle {
        self.ends.abort_handle()
    }

    /// What kernels need. Plain addresses: keep the semaphore, or its [`keep_alive`](Self::keep_alive), until no kernel
    /// uses them.
    pub fn device_handle(&self) -> SemaphoreHandle {
        let remote_inbound = self.ends.theirs.ptr() + INBOUND as u64;
        SemaphoreHandle { remote_inbound, ..self.ends.waiting_handle() }
    }

    /// What a stream has to retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.ends.clone()
    }

    /// Reads the counters of this end from the device: to see who waits for whom, not to synchronise by.
    ///
    /// # Errors
    /// Timeout, or what the driver says.
    pub fn counters(&self, deadline: impl Into<Deadline>) -> Result<SemaphoreCounters> {
        self.ends.device_counters(deadline.into())
    }

    /// Whether a signal has come that no wait has taken yet, at this moment.
    ///
    /// # Errors
    /// Timeout, or what the driver says.
    pub fn poll(&self, deadline: impl Into<Deadline>) -> Result<bool> {
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
