//! Connections: host-driven, one-sided data movement between two ranks.

mod cuda_ipc;

use std::fmt;
use std::sync::Arc;

use super::core::Core;
use super::endpoint::{EndpointConfig, Transport};
use super::key::Key;
use super::mailbox::Offer;
use super::memory::RegisteredMemory;
use super::pending::Pending;
use super::setup::Item;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Event, Stream};
use crate::sync::{AtomicU64, Ordering};

/// One way for data between this rank and another, with the operations of one transport.
///
/// Operations are one-sided: the peer does nothing. Those of one connection are executed in the order of the calls, so
/// that a value written by [`update_and_sync`](Self::update_and_sync) is seen only after the data of earlier
/// [`write`](Self::write)s; between connections there is no order. A call returns when the operation is on its way;
/// [`flush`](Self::flush) waits for all. Memory in use is kept alive until then. Cheap to clone; clones are one
/// connection. Usable from several threads; their calls are ordered as they happen to come.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    key: Key,
    transport: Transport,
    backend: Box<dyn Backend>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    writes: AtomicU64,
    reads: AtomicU64,
    signals: AtomicU64,
    flushes: AtomicU64,
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Calls of [`Connection::write`] that were accepted.
    pub writes: u64,
    /// Calls of [`Connection::read`] that were accepted.
    pub reads: u64,
    /// Calls of [`Connection::update_and_sync`] that were accepted.
    pub signals: u64,
    /// Calls of [`Connection::flush`] that succeeded.
    pub flushes: u64,
    /// Bytes of all writes.
    pub bytes_written: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
}

/// What a transport does. Ranges, rights and registration have been checked.
trait Backend: Send + Sync {
    fn write(&self, dst: &DeviceSlice, src: &DeviceSlice) -> Result<()>;
    fn read(&self, dst: &DeviceSlice, src: &DeviceSlice) -> Result<()>;
    fn update(&self, dst: &DeviceSlice, value: u64) -> Result<()>;
    /// Whether everything before is done; asked again and again by [`Connection::flush`].
    fn is_done(&self) -> Result<bool>;
    fn wait_event(&self, event: &Event) -> Result<()>;
    fn record_event(&self, event: &Event) -> Result<()>;
}

impl Connection {
    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.inner.key.peer
    }

    /// The tag that both ends named.
    pub fn tag(&self) -> u64 {
        self.inner.key.tag
    }

    /// The transport.
    pub fn transport(&self) -> Transport {
        self.inner.transport
    }

    /// Copies `size` bytes from `src`, memory of this rank, to `dst`, memory of the peer. Zero bytes are fine.
    ///
    /// # Errors
    /// `InvalidUsage` for ranges outside the memories, memory of the wrong rank, or not registered for this transport;
    /// the reason if the peer is lost or the communicator aborted; what the driver says.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        src: &RegisteredMemory,
        src_offset: usize,
        size: usize,
    ) -> Result<()> {
        const OP: &str = "write";
        self.check(OP)?;
        let dst = self.theirs(OP, dst)?.checked(OP, dst_offset, size)?;
        let src = self.ours(OP, src)?.checked(OP, src_offset, size)?;
        self.inner.backend.write(&dst, &src)?;
        count(&self.inner.counters.writes, 1);
        count(&self.inner.counters.bytes_written, size as u64);
        Ok(())
    }

    /// Copies `size` bytes from `src`, memory of the peer, to `dst`, memory of this rank. Zero bytes are fine.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn read(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        src: &RegisteredMemory,
        src_offset: usize,
        size: usize,
    ) -> Result<()> {
        const OP: &str = "read";
        self.check(OP)?;
        let dst = self.ours(OP, dst)?.checked(OP, dst_offset, size)?;
        let src = self.theirs(OP, src)?.checked(OP, src_offset, size)?;
        self.inner.backend.read(&dst, &src)?;
        count(&self.inner.counters.reads, 1);
        count(&self.inner.counters.bytes_read, size as u64);
        Ok(())
    }

    /// Sets `counter` to `value` and writes it to the 8 bytes at `dst_offset` of the peer's memory `dst`, after the data
    /// of all earlier writes of this connection is visible there.
    ///
    /// # Errors
    /// As for [`write`](Self::write); `InvalidUsage` unless the address is a multiple of 8. `counter` is only set if the
    /// call succeeds.
    pub fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        counter: &mut u64,
        value: u64,
    ) -> Result<()> {
        const OP: &str = "update_and_sync";
        self.check(OP)?;
        let dst = self.theirs(OP, dst)?.checked(OP, dst_offset, 8)?;
        if !dst.ptr().is_multiple_of(8) {
            return Err(Error::usage(
                OP,
                format!("offset {dst_offset} gives an address that is no multiple of 8"),
            ));
        }
        self.inner.backend.update(&dst, value)?;
        *counter = value;
        count(&self.inner.counters.signals, 1);
        Ok(())
    }

    /// Waits until everything called before is done: data has arrived, sources can be reused.
    ///
    /// # Errors
    /// Timeout, leaving the work running; the reason if the communicator is aborted meanwhile; a failure of the work.
    pub fn flush(&self, deadline: impl Into<Deadline>) -> Result<()> {
        const OP: &str = "flush";
        let deadline = deadline.into();
        let mut wait = Backoff::new();
        while !self.inner.backend.is_done()? {
            self.inner.core.check(OP)?;
            if deadline.expired() {
                let message =
                    format!("operations of the connection to rank {} are not done in time", self.peer());
                return Err(Error::timeout(OP, message).with_peer(self.peer()));
            }
            wait.pause(deadline);
        }
        self.check(OP)?;
        count(&self.inner.counters.flushes, 1);
        Ok(())
    }

    /// Lets later operations of this connection begin only after the work that `event` was recorded behind: how data that
    /// a stream of the user's produces is written after it is there.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.inner.backend.wait_event(event)
    }

    /// Puts `event` behind all operations so far: how a stream of the user's waits for them.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record_event(&self, event: &Event) -> Result<()> {
        self.inner.backend.record_event(event)
    }

    /// What it has done so far.
    pub fn counters(&self) -> ConnectionCounters {
        let Counters { writes, reads, signals, flushes, bytes_written, bytes_read } = &self.inner.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionCounters {
            writes: load(writes),
            reads: load(reads),
            signals: load(signals),
            flushes: load(flushes),
            bytes_written: load(bytes_written),
            bytes_read: load(bytes_read),
        }
    }

    pub(super) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.inner.core, core)
    }

    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        self.inner.core.check(op)?;
        if self.peer() == self.inner.core.rank() {
            Ok(())
        } else {
            self.inner.core.control().check_peer(op, self.peer())
        }
    }

    /// `memory`, if it is the peer's. On a connection to oneself, one's own memory is the peer's.
    fn theirs<'a>(&self, op: &'static str, memory: &'a RegisteredMemory) -> Result<&'a RegisteredMemory> {
        let own = memory.is_local() && self.peer() == self.inner.core.rank();
        if memory.received_from() != Some(self.peer()) && !own {
            let whose = match memory.received_from() {
                Some(rank) => format!("it was received from rank {rank}"),
                None => "it is this rank's own".into(),
            };
            let message = format!("the remote memory must be received from rank {}; {whose}", self.peer());
            return Err(Error::usage(op, message));
        }
        memory.check_transport(op, self.inner.transport)?;
        Ok(memory)
    }

    fn ours<'a>(&self, op: &'static str, memory: &'a RegisteredMemory) -> Result<&'a RegisteredMemory> {
        let own = memory.received_from() == Some(self.peer()) && self.peer() == self.inner.core.rank();
        if !memory.is_local() && !own {
            return Err(Error::usage(
                op,
                "the local memory must be registered by this rank; this one was received",
            ));
        }
        memory.check_transport(op, self.inner.transport)?;
        Ok(memory)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer())
            .field("tag", &self.tag())
            .field("transport", &self.transport())
            .finish_non_exhaustive()
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// `connect()` in the queue of `setup()`.
pub(super) struct ConnectItem {
    key: Key,
    config: EndpointConfig,
    pending: Pending<Connection>,
    made: Option<Connection>,
}

impl ConnectItem {
    pub(super) fn new(key: Key, config: EndpointConfig, pending: Pending<Connection>) -> Self {
        Self { key, config, pending, made: None }
    }
}

impl Item for ConnectItem {
    fn key(&self) -> Key {
        self.key
    }

    fn offer(&mut self, _: &Arc<Core>) -> Option<Result<Offer>> {
        Some(Ok(Offer { body: self.config.encode(), fds: Vec::new() }))
    }

    fn build(&mut self, core: &Arc<Core>, offer: Offer) -> Result<()> {
        let peer = self.key.peer;
        let theirs = EndpointConfig::decode(&offer.body).map_err(|error| {
            let message = format!("rank {peer} asked for a transport that this version does not have");
            Error::new(ErrorKind::Remote, "connect", message).with_peer(peer).with_source(error)
        })?;
        if theirs.transport != self.config.transport {
            let message = format!(
                "{}: rank {peer} asked for {}, this rank for {}; name the same transport at both ends",
                self.key, theirs.transport, self.config.transport
            );
            return Err(Error::usage("connect", message).with_peer(peer));
        }
        let backend: Box<dyn Backend> = match self.config.transport {
            Transport::CudaIpc => Box::new(cuda_ipc::CudaIpc::new(Stream::new(core.context())?)),
        };
        let inner = Inner {
            core: core.clone(),
            key: self.key,
            transport: self.config.transport,
            backend,
            counters: Counters::default(),
        };
        self.made = Some(Connection { inner: Arc::new(inner) });
        Ok(())
    }

    fn finish(self: Box<Self>, _: &Arc<Core>, result: Result<()>) {
        let Self { pending, made, .. } = *self;
        let missing = || Error::new(ErrorKind::Internal, "connect", "a connection ended without being made");
        pending.complete(result.and_then(|()| made.ok_or_else(missing)));
    }
}
