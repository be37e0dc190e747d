//! Semaphores: how the device or host of one rank waits for another rank's.
//!
//! Each end has three 64-bit counters. *Inbound* is written by the peer and waited on here; *expected inbound* counts
//! the waits here; *outbound* counts the signals sent, and a signal publishes its absolute value as the peer's inbound.
//! Each word has one writer, so nothing needs atomics across devices.
//!
//! | semaphore | who signals | who waits | transports |
//! |---|---|---|---|
//! | [`Device2DeviceSemaphore`] | a kernel, into the peer's memory | a kernel | CudaIpc |
//! | [`Host2DeviceSemaphore`] | the host, through the connection | a kernel | all |
//! | [`Host2HostSemaphore`] | the host, through the connection | the host | all |

mod host;
mod item;

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, SemaphoreHandle};

pub use host::{Host2DeviceSemaphore, Host2HostSemaphore};
pub(crate) use item::{Flavour, SemaphoreItem};

use crate::comm::abort_memory::AbortMemory;
use crate::comm::connection::Connection;
use crate::comm::tokens::{EXPECTED_INBOUND, INBOUND, OUTBOUND, SLOT_BYTES, Side, TokenSlot, Tokens};
use crate::comm::topology::{PeerTopology, Topology};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::failure::Outcome;
use crate::gpu::{Context, KeepAlive};
use crate::memory::{Exchange, RegisteredMemory};
use crate::transport::Resources;

/// A semaphore between the devices of two ranks: `signal` and `wait` are done by kernels, through
/// [`device_handle`](Self::device_handle). Cheap to clone.
#[derive(Clone)]
pub struct Device2DeviceSemaphore {
    ends: Arc<Ends>,
}

/// What semaphores of a communicator are made with.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) resources: Arc<Resources>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) abort: Arc<AbortMemory>,
    pub(crate) topology: Arc<Topology>,
}

/// What both ends of a semaphore are made of.
pub(crate) struct Ends {
    site: Arc<Site>,
    connection: Connection,
    mine: RegisteredMemory,
    theirs: RegisteredMemory,
    slot: Arc<TokenSlot>,
}

/// The counters of one end at one moment, for debugging: kernels may be changing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphoreCounters {
    /// Signals received.
    pub inbound: u64,
    /// Waits begun.
    pub expected_inbound: u64,
    /// Signals sent.
    pub outbound: u64,
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

impl Ends {
    fn abort_handle(&self) -> AbortHandle {
        self.site.abort.handle_for(self.connection.peer())
    }

    /// What kernels that wait need.
    fn waiting_handle(&self) -> SemaphoreHandle {
        SemaphoreHandle {
            inbound: self.mine.ptr() + INBOUND as u64,
            expected_inbound: self.mine.ptr() + EXPECTED_INBOUND as u64,
            outbound: self.mine.ptr() + OUTBOUND as u64,
            remote_inbound: 0,
        }
    }

    fn device_counters(&self, deadline: Deadline) -> Result<SemaphoreCounters> {
        let mut words = [0_u64; SLOT_BYTES / 8];
        self.mine.slice()?.download(0, &mut words, deadline)?;
        Ok(SemaphoreCounters {
            inbound: words[INBOUND / 8],
            expected_inbound: words[EXPECTED_INBOUND / 8],
            outbound: words[OUTBOUND / 8],
        })
    }

    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("connection", &self.connection)
            .field("slot", &self.slot.number())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Device2DeviceSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ends.describe("Device2DeviceSemaphore", f)
    }
}
