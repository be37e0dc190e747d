//! One end of a semaphore of any kind.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, SemaphoreHandle};

use crate::comm::abort_memory::AbortMemory;
use crate::comm::connection::Connection;
use crate::comm::tokens::{EXPECTED_INBOUND, INBOUND, OUTBOUND, SLOT_BYTES, TokenSlot, Tokens};
use crate::comm::topology::Topology;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::failure::Failure;
use crate::memory::{Exchange, RegisteredMemory};
use crate::outcome::Outcome;
use crate::transport::Resources;

/// The parts of a communicator that its semaphores use.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) resources: Arc<Resources>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) abort: Arc<AbortMemory>,
    pub(crate) topology: Arc<Topology>,
}

/// One end of a semaphore: the words of both ranks, and the connection between them.
pub(crate) struct Ends {
    pub(super) site: Arc<Site>,
    pub(super) connection: Connection,
    pub(super) mine: RegisteredMemory,
    pub(super) theirs: RegisteredMemory,
    pub(super) slot: Arc<TokenSlot>,
}

/// How the kernels ended that wait for one end: they leave when the communicator aborts, and when the connection has failed.
#[derive(Debug)]
struct EndOutcome {
    site: Arc<Site>,
    connection: Connection,
}

impl EndOutcome {
    /// Where the connection keeps a failure that may have misled a kernel: none if it failed after its last signal had come. Each kernel
    /// that leaves early records that, or another has before it.
    fn failure(&self) -> Option<&Failure> {
        self.connection.failure().filter(|_| self.site.abort.record().is_some())
    }
}

impl Outcome for EndOutcome {
    fn outcome(&self, op: &'static str) -> Result<()> {
        let control = self.site.exchange.group.control();
        control.outcome(op)?;
        self.failure().map_or(Ok(()), Failure::check).map_err(|error| control.ended(op, error))
    }

    fn has_failed(&self) -> bool {
        // The library asks, so no caller has the reason.
        self.site.exchange.group.control().has_failed() || self.failure().is_some_and(Failure::has_failed)
    }
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

impl Ends {
    pub(super) fn abort_handle(&self) -> AbortHandle {
        let peer = self.connection.peer();
        match self.connection.kernel_abort() {
            Some(own) => self.site.abort.handle_of(own, peer),
            None => self.site.abort.handle_for(peer),
        }
    }

    /// Tells waits for streams whether kernels gave up waiting for this end.
    pub(super) fn outcome(&self) -> Arc<dyn Outcome> {
        let (site, connection) = (self.site.clone(), self.connection.clone());
        Arc::new(EndOutcome { site, connection })
    }

    /// The handle for kernels that wait.
    pub(super) fn waiting_handle(&self) -> SemaphoreHandle {
        SemaphoreHandle {
            inbound: self.mine.ptr() + INBOUND as u64,
            expected_inbound: self.mine.ptr() + EXPECTED_INBOUND as u64,
            outbound: self.mine.ptr() + OUTBOUND as u64,
            remote_inbound: 0,
            abort: self.abort_handle(),
        }
    }

    pub(super) fn device_counters(&self, deadline: Deadline) -> Result<SemaphoreCounters> {
        let mut words = [0_u64; SLOT_BYTES / 8];
        self.mine.slice()?.download(0, &mut words, deadline)?;
        Ok(SemaphoreCounters {
            inbound: words[INBOUND / 8],
            expected_inbound: words[EXPECTED_INBOUND / 8],
            outbound: words[OUTBOUND / 8],
        })
    }

    pub(super) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("connection", &self.connection)
            .field("slot", &self.slot.number())
            .finish_non_exhaustive()
    }
}
