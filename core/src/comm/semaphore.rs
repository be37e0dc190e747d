//! Semaphores: how the device of one rank waits for another rank's.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, SemaphoreHandle};

use super::connection::Connection;
use super::core::Core;
use super::endpoint::Transport;
use super::holds::HoldId;
use super::key::Key;
use super::mailbox::Offer;
use super::memory::{self, RegisteredMemory};
use super::pending::{Dependency, Pending};
use super::setup::Item;
use super::tokens::{EXPECTED_INBOUND, INBOUND, OUTBOUND, SLOT_BYTES, TokenSlot};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, KeepAlive};

const OP: &str = "build_semaphore";

/// A semaphore between the devices of two ranks: `signal` and `wait` are done by kernels, through
/// [`device_handle`](Self::device_handle).
///
/// Each end has three 64-bit counters in its device's memory. *Inbound* is written by the peer and waited on here;
/// *expected inbound* counts the waits here; *outbound* counts the signals sent, and a signal publishes its absolute value
/// as the peer's inbound. Each word has one writer, so nothing needs atomics across devices. Cheap to clone.
#[derive(Clone)]
pub struct Device2DeviceSemaphore {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    connection: Connection,
    mine: RegisteredMemory,
    theirs: RegisteredMemory,
    slot: Arc<TokenSlot>,
    their_slot: u64,
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
        self.inner.connection.peer()
    }

    /// The connection it was built on.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        self.inner.core.context()
    }

    /// `Ok` while signals can still come: the peer is there and the communicator has not failed.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<()> {
        self.inner.connection.check("semaphore")
    }

    /// Where kernels that wait for this semaphore find the abort word and record. Kept alive as [`device_handle`](Self::device_handle) is.
    pub fn abort_handle(&self) -> AbortHandle {
        self.inner.core.abort_memory().handle_for(self.peer())
    }

    /// What kernels need. Plain addresses: keep the semaphore, or its [`keep_alive`](Self::keep_alive), until no kernel
    /// uses them.
    pub fn device_handle(&self) -> SemaphoreHandle {
        let Inner { mine, theirs, .. } = &*self.inner;
        SemaphoreHandle {
            inbound: mine.ptr() + INBOUND as u64,
            expected_inbound: mine.ptr() + EXPECTED_INBOUND as u64,
            outbound: mine.ptr() + OUTBOUND as u64,
            remote_inbound: theirs.ptr() + INBOUND as u64,
        }
    }

    /// What a stream has to retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.inner.clone()
    }

    /// Reads the counters of this end from the device: to see who waits for whom, not to synchronise by.
    ///
    /// # Errors
    /// Timeout, or what the driver says.
    pub fn counters(&self, deadline: impl Into<Deadline>) -> Result<SemaphoreCounters> {
        let mut words = [0_u64; SLOT_BYTES / 8];
        self.inner.mine.slice().download(0, &mut words, deadline)?;
        Ok(SemaphoreCounters {
            inbound: words[INBOUND / 8],
            expected_inbound: words[EXPECTED_INBOUND / 8],
            outbound: words[OUTBOUND / 8],
        })
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

impl fmt::Debug for Device2DeviceSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device2DeviceSemaphore")
            .field("connection", &self.inner.connection)
            .field("slot", &self.inner.slot.number())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No kernel of ours signals any more: the peer may use its words for another semaphore.
        self.core.control().give_back(self.connection.peer(), HoldId::Token(self.their_slot), 1);
    }
}

/// `build_semaphore()` in the queue of `setup()`.
pub(super) struct SemaphoreItem {
    key: Key,
    dependency: Dependency<Connection>,
    pending: Pending<Device2DeviceSemaphore>,
    connection: Option<Connection>,
    slot: Option<Arc<TokenSlot>>,
    held: Vec<HoldId>,
    made: Option<Device2DeviceSemaphore>,
}

impl SemaphoreItem {
    pub(super) fn new(
        key: Key,
        dependency: Dependency<Connection>,
        pending: Pending<Device2DeviceSemaphore>,
    ) -> Self {
        Self { key, dependency, pending, connection: None, slot: None, held: Vec::new(), made: None }
    }

    fn make_offer(&mut self, core: &Arc<Core>, connection: Connection) -> Result<Offer> {
        if !connection.belongs_to(core) {
            return Err(Error::usage(OP, "the connection is of another communicator"));
        }
        if connection.transport() != Transport::CudaIpc {
            let message = format!(
                "a Device2Device semaphore needs CudaIpc; this connection is {}",
                connection.transport()
            );
            return Err(Error::usage(OP, message));
        }
        let slot = core.tokens()?.claim()?;
        let mut export = memory::export(core, &slot.memory()?, self.key.peer)?;
        self.held.extend(export.hold_id());
        let Offer { body, fds } = export.offer(core);
        self.held.push(HoldId::Token(slot.number()));
        core.control().hold(HoldId::Token(slot.number()), slot.clone(), self.key.peer);
        let mut with_slot = slot.number().to_le_bytes().to_vec();
        with_slot.extend(body);
        self.connection = Some(connection);
        self.slot = Some(slot);
        Ok(Offer { body: with_slot, fds })
    }
}

impl Item for SemaphoreItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self, core: &Arc<Core>) -> Option<Result<Offer>> {
        match self.dependency.outcome()? {
            Ok(connection) => Some(self.make_offer(core, connection)),
            Err(error) => {
                let message = format!("{}: its connection failed: {}", self.key, error.message());
                Some(Err(Error::new(error.kind(), OP, message).with_peer(self.key.peer)))
            }
        }
    }

    fn build(&mut self, core: &Arc<Core>, offer: Offer) -> Result<()> {
        let invalid = || {
            let message = format!("rank {} described its semaphore in an invalid way", self.key.peer);
            Error::new(ErrorKind::Remote, OP, message).with_peer(self.key.peer)
        };
        let Offer { mut body, fds } = offer;
        let their_slot = u64::from_le_bytes(*body.first_chunk::<8>().ok_or_else(invalid)?);
        body.drain(..8);
        let (Some(connection), Some(slot)) = (self.connection.take(), self.slot.take()) else {
            return Err(Error::new(ErrorKind::Internal, OP, "a semaphore was built before it was offered"));
        };
        let mine = slot.memory()?;
        // Last: from here on the peer's memory and words count as used by us.
        let theirs = memory::import(core, self.key.peer, Offer { body, fds })?;
        if theirs.len() != SLOT_BYTES || !theirs.ptr().is_multiple_of(8) {
            return Err(invalid());
        }
        let inner = Inner { core: core.clone(), connection, mine, theirs, slot, their_slot };
        self.made = Some(Device2DeviceSemaphore { inner: Arc::new(inner) });
        Ok(())
    }

    fn refused(&mut self, core: &Arc<Core>) {
        for id in self.held.drain(..) {
            core.control().unhold(id, self.key.peer);
        }
    }

    fn finish(self: Box<Self>, _: &Arc<Core>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, OP, "a semaphore ended without being made");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
