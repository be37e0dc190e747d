//! Connections: host-driven, one-sided data movement between two ranks.

mod backpressure;
mod counters;
mod item;
mod served;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use item::ConnectItem;
pub(crate) use served::Claim;

use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::gpu::{Context, Event};
use crate::group::Group;
use crate::memory::{RegisteredMemory, Rights};
use crate::setup::key::Key;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::transport::backend::{Backend, ConnectionCounters, Operation, Span};
use crate::transport::completion::KernelAbort;
use crate::transport::endpoint::Transport;
use backpressure::Backpressure;
use counters::Counters;

/// One way for data between this rank and another, with the operations of one transport.
///
/// Operations are one-sided: the peer's program does nothing. Those of one connection take effect in the order of the calls: each reads
/// and overwrites what earlier ones wrote, and a value written by [`update_and_sync`](Self::update_and_sync) is seen only after
/// the data of earlier [`write`](Self::write)s. Only such a value tells the peer that data has arrived: it may see writes to
/// different bytes in any order. Between connections there is no order. docs/rdma.md has the limits over `Ib`.
///
/// A call returns when the operation is on its way, or waits for earlier ones when too many are outstanding;
/// [`flush`](Self::flush) waits for all. An operation holds the memory at both its ends until the peer has acknowledged it, so
/// every handle can be dropped right after the call. An operation that fails fails its connection, and every later call says
/// why; other connections go on.
///
/// Accepted operations are delivered even if the connection, and everything else of this rank, is dropped before, as long as the
/// process and the peer's end live; a failure after that is logged, and [`Communicator::close`](super::Communicator::close)
/// returns it. RDMA has no farewell: over `Ib` a peer that dropped its end, or whose NIC is gone, is noticed when the retries of
/// this rank's NIC are over (`AQUEDUCT_IB_TIMEOUT`, `AQUEDUCT_IB_RETRY_CNT`), so agree, by a signal or a barrier, before
/// dropping. The communicator notices a lost process sooner. See docs/operations.md.
///
/// Cheap to clone; clones are one connection. Usable from several threads; their calls are ordered as they happen to come.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    group: Group,
    key: Key,
    transport: Transport,
    /// How long a call waits for room.
    timeout: Duration,
    /// The context of this rank.
    context: Context,
    backend: Box<dyn Backend>,
    counters: Counters,
    /// How many batches are open.
    batches: AtomicU32,
    /// Whether a proxy service uses it.
    claimed: AtomicBool,
}

/// Operations that go on their way together, when this is dropped: one system call, or one doorbell, for all of them.
#[derive(Debug)]
#[must_use = "operations go one by one when it is dropped"]
pub struct Batch<'a> {
    connection: &'a Connection,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let inner = &self.connection.inner;
        if inner.batches.fetch_sub(1, Ordering::AcqRel) == 1
            && !inner.group.forked()
            && let Err(error) = inner.backend.kick()
        {
            // It stays with the connection: the next call returns it.
            log::debug!("a batch to rank {} failed: {error}", self.connection.peer());
        }
    }
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
        self.check_peer(OP)?;
        dst.check_rights(OP, Rights::REMOTE_WRITE)?;
        let dst = self.theirs(OP, dst, dst_offset, size)?;
        let src = self.ours(OP, src, src_offset, size)?;
        if size > 0 {
            self.post(OP, &Operation::Write { dst, src })?;
        } else {
            self.inner.backend.check()?;
        }
        self.inner.counters.written(size);
        Ok(())
    }

    /// Copies `size` bytes from `src`, memory of the peer, to `dst`, memory of this rank. Zero bytes are fine.
    ///
    /// # Errors
    /// As for [`write`](Self::write). Over Ethernet the threads of the peer that serve its connections send the bytes: a peer whose
    /// process is stopped answers no read.
    pub fn read(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        src: &RegisteredMemory,
        src_offset: usize,
        size: usize,
    ) -> Result<()> {
        const OP: &str = "read";
        self.check_peer(OP)?;
        let dst = self.ours(OP, dst, dst_offset, size)?;
        src.check_rights(OP, Rights::REMOTE_READ)?;
        let src = self.theirs(OP, src, src_offset, size)?;
        if size > 0 {
            self.post(OP, &Operation::Read { dst, src })?;
        } else {
            self.inner.backend.check()?;
        }
        self.inner.counters.read(size);
        Ok(())
    }

    /// Sets `counter` to `value` and writes it to the 8 bytes at `dst_offset` of the peer's memory `dst`, after the data
    /// of all earlier writes of this connection is visible there.
    ///
    /// # Errors
    /// As for [`write`](Self::write); `InvalidUsage` unless the address is a multiple of 8, and, over verbs with
    /// [`IbSignal::Atomic`](super::IbSignal::Atomic), the memory is registered with [`Rights::REMOTE_ATOMIC`]. `counter` is set exactly if the
    /// call succeeds, which means that the signal was accepted; what fails later is returned by the next call.
    pub fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        counter: &mut u64,
        value: u64,
    ) -> Result<()> {
        let mut wait = None;
        while !self.try_update_and_sync(dst, dst_offset, counter, value)? {
            wait.get_or_insert_with(|| self.backpressure("update_and_sync")).pause()?;
        }
        Ok(())
    }

    /// [`update_and_sync`](Self::update_and_sync), which never waits: false, having done nothing, if too many operations wait
    /// already.
    pub(crate) fn try_update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: usize,
        counter: &mut u64,
        value: u64,
    ) -> Result<bool> {
        const OP: &str = "update_and_sync";
        self.check_peer(OP)?;
        let allowed = dst.check_rights(OP, self.inner.backend.signal_rights());
        let dst = self.theirs(OP, dst, dst_offset, 8)?;
        let offset = dst_offset as u64;
        let aligned = match dst.memory.remote() {
            Some((remote, base)) => remote.is_aligned(base + offset),
            None => (dst.memory.ptr() + offset).is_multiple_of(8),
        };
        if !aligned {
            return Err(Error::usage(
                OP,
                format!("offset {dst_offset} gives an address that is no multiple of 8"),
            ));
        }
        allowed?;
        if !self.inner.backend.post(&Operation::Update { dst, old: *counter, value })? {
            return Ok(false);
        }
        *counter = value;
        self.inner.counters.signalled();
        if let Err(error) = self.kick() {
            // The signal was accepted. The failure stays with the connection: the next call returns it.
            log::debug!("a signal to rank {} failed: {error}", self.peer());
        }
        Ok(true)
    }

    /// Waits until everything called before is done: data has arrived, sources can be reused.
    ///
    /// # Errors
    /// Timeout, leaving the work running; the reason if the communicator is aborted meanwhile; a failure of the work. A peer
    /// that leaves in good order is none: what was accepted is still delivered, or fails. `InvalidUsage` while operations are
    /// captured into a graph, see [`wait_event`](Self::wait_event).
    pub fn flush(&self, deadline: impl Into<Deadline>) -> Result<()> {
        const OP: &str = "flush";
        let deadline = deadline.into();
        let mut wait = Backoff::new();
        self.inner.group.check(OP)?;
        let mark = self.inner.backend.mark()?;
        while !self.inner.backend.is_done(mark)? {
            self.inner.group.check(OP)?;
            if deadline.expired() {
                let message = format!(
                    "operations of the connection to rank {0} did not complete before the deadline; rank {0} may be stopped: give \
                     a later deadline, or see Communicator::check",
                    self.peer()
                );
                return Err(Error::timeout(OP, message).with_peer(self.peer()));
            }
            self.inner.backend.pause(&mut wait, deadline);
        }
        self.inner.group.check(OP)?;
        self.inner.counters.flushed();
        Ok(())
    }

    /// Defers operations until the returned guard is dropped, then sends them together. Do not wait for their effects before
    /// that, except with [`flush`](Self::flush), which sends them. Batches of several threads end with the last.
    pub fn batch(&self) -> Batch<'_> {
        self.inner.batches.fetch_add(1, Ordering::AcqRel);
        Batch { connection: self }
    }

    /// Lets later operations of this connection begin only after the work that `event` was recorded behind: how data that
    /// a stream of the user's produces is written after it is there.
    ///
    /// An event that was recorded in a capture makes operations of a CudaIpc connection part of that graph, whichever thread
    /// asks for them, until the capture ends; [`record_event`](Self::record_event) lets the capture join them. They run when
    /// the graph does.
    ///
    /// # Errors
    /// `InvalidUsage` for an event that was recorded in a capture, over other transports: the host executes those operations,
    /// once. What the driver says.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        const OP: &str = "wait_event";
        self.check(OP)?;
        if self.transport() != Transport::CudaIpc && event.is_captured() {
            let message = "the event was recorded in a stream under capture, and the host executes the operations of this \
                           connection; only those over CudaIpc can be part of a graph";
            return Err(Error::usage(OP, message));
        }
        self.inner.backend.wait_event(event)
    }

    /// Records `event` after all operations so far, so that a stream can wait for them. If the connection fails,
    /// streams that wait for the event continue, and the next call returns the reason. Over CudaIpc the event follows
    /// the copies in a stream, which no peer can hold up.
    ///
    /// # Errors
    /// The failure of the connection, or an error of the driver.
    pub fn record_event(&self, event: &Event) -> Result<()> {
        self.check("record_event")?;
        self.inner.backend.record_event(event)
    }

    /// Counts of its operations so far.
    pub fn counters(&self) -> ConnectionCounters {
        let mut all = self.inner.counters.so_far();
        self.inner.backend.count(&mut all);
        all
    }

    /// The group whose communicator made it.
    pub(crate) fn group(&self) -> &Group {
        &self.inner.group
    }

    /// `Ok` while operations can be asked for.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        self.check_peer(op)?;
        self.inner.backend.check()
    }

    /// Where a failure of the connection itself is kept, if it can fail.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.inner.backend.failure()
    }

    /// The abort word of kernels that wait for its signals, if it has one of its own.
    pub(crate) fn kernel_abort(&self) -> Option<&Arc<KernelAbort>> {
        self.inner.backend.kernel_abort()
    }

    /// The same but for failures of the connection itself, which its operations find.
    #[inline]
    fn check_peer(&self, op: &'static str) -> Result<()> {
        self.inner.group.check(op)?;
        self.inner.group.check_peer(op, self.peer())
    }

    /// Number of signals that arrived with a wake-up, for [`await_arrival`](Self::await_arrival); 0 where waiters poll memory.
    pub(crate) fn arrivals(&self) -> u64 {
        self.inner.backend.arrivals()
    }

    /// Pauses a thread that polls for a signal of this connection. `arrivals` is the count that the thread read
    /// before its last poll.
    pub(crate) fn await_arrival(&self, arrivals: u64, backoff: &mut Backoff, deadline: Deadline) {
        self.inner.backend.await_arrival(arrivals, backoff, deadline);
    }

    /// Has the transport take an operation, and waits for room first if too many wait already.
    #[inline]
    fn post(&self, op: &'static str, operation: &Operation<'_>) -> Result<()> {
        if !self.inner.backend.post(operation)? {
            let mut wait = self.backpressure(op);
            loop {
                wait.pause()?;
                if self.inner.backend.post(operation)? {
                    break;
                }
            }
        }
        self.kick()
    }

    /// A wait of the call `op` for room.
    pub(crate) fn backpressure(&self, op: &'static str) -> Backpressure<'_> {
        Backpressure::new(&*self.inner.backend, self.peer(), self.inner.timeout, op)
    }

    fn kick(&self) -> Result<()> {
        match self.inner.batches.load(Ordering::Acquire) {
            0 => self.inner.backend.kick(),
            _ => Ok(()),
        }
    }

    /// A range of `memory`, if that is the peer's. On a connection to oneself, one's own memory is the peer's.
    #[inline]
    fn theirs<'a>(
        &self,
        op: &'static str,
        memory: &'a RegisteredMemory,
        offset: usize,
        len: usize,
    ) -> Result<Span<'a>> {
        if memory.owner_in(&self.inner.group) != Some(self.peer()) {
            return Err(self.not_of(op, "remote", self.peer(), memory));
        }
        self.check_context(op, memory)?;
        self.span(op, memory, offset, len)
    }

    /// Ranks may be threads of one process, and registered memory says of which by its context only.
    #[inline]
    fn check_context(&self, op: &'static str, memory: &RegisteredMemory) -> Result<()> {
        if !memory.is_local() || memory.context() == &self.inner.context {
            return Ok(());
        }
        let message = "the memory was registered by another rank of this process, or with another context; register it with the \
                       communicator that made the connection";
        Err(Error::usage(op, message))
    }

    #[cold]
    fn not_of(&self, op: &'static str, end: &str, rank: u32, memory: &RegisteredMemory) -> Error {
        let whose = memory.whose(&self.inner.group);
        Error::usage(op, format!("the {end} memory must be rank {rank}'s; {whose}"))
    }

    #[inline]
    fn ours<'a>(
        &self,
        op: &'static str,
        memory: &'a RegisteredMemory,
        offset: usize,
        len: usize,
    ) -> Result<Span<'a>> {
        let me = self.inner.group.rank();
        if memory.owner_in(&self.inner.group) != Some(me) {
            return Err(self.not_of(op, "local", me, memory));
        }
        self.check_context(op, memory)?;
        self.span(op, memory, offset, len)
    }

    #[inline]
    fn span<'a>(
        &self,
        op: &'static str,
        memory: &'a RegisteredMemory,
        offset: usize,
        len: usize,
    ) -> Result<Span<'a>> {
        memory.check_range(op, offset, len)?;
        memory.check_transport(op, self.inner.transport)?;
        Ok(Span { memory, offset, len })
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
