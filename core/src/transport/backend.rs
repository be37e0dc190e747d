//! Interface that every transport implements for a connection.

use std::sync::Arc;

use super::completion::KernelAbort;
use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::gpu::{DeviceSlice, Event};
use crate::memory::{Place, RegisteredMemory, Remote, Rights};

/// Counts of a connection's operations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Calls of [`Connection::write`](crate::comm::Connection::write) that were accepted.
    pub writes: u64,
    /// Calls of [`Connection::read`](crate::comm::Connection::read) that were accepted.
    pub reads: u64,
    /// Calls of [`Connection::update_and_sync`](crate::comm::Connection::update_and_sync) that were accepted.
    pub signals: u64,
    /// Calls of [`Connection::flush`](crate::comm::Connection::flush) that succeeded.
    pub flushes: u64,
    /// Bytes of all writes.
    pub bytes_written: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Over `Ib`: requests that the NIC was given.
    pub requests: u64,
    /// Over `Ib`: how often it was given some.
    pub doorbells: u64,
    /// Over `Ib`: completions of requests that it made.
    pub completions: u64,
}

/// `offset .. offset + len` of a memory; checked.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) memory: &'a RegisteredMemory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl<'a> Span<'a> {
    /// As devices of this process see it.
    pub(crate) fn device(&self) -> Result<DeviceSlice> {
        self.memory.slice()?.slice(self.offset..self.offset + self.len)
    }

    /// As this process sees it.
    pub(crate) fn place(&self) -> Result<Place> {
        self.memory.place().part(self.offset, self.len)
    }

    /// The peer's memory that it lies in, and its offset in that.
    pub(crate) fn remote(&self, op: &'static str) -> Result<(&'a Arc<Remote>, u64)> {
        let own = || Error::usage(op, "the remote memory is this rank's own");
        self.memory.remote().map(|(remote, base)| (remote, base + self.offset as u64)).ok_or_else(own)
    }
}

/// An operation that a connection passes to its transport. Ranges, rights and registration have been checked; no
/// operation has zero bytes.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'a> {
    Write {
        dst: Span<'a>,
        src: Span<'a>,
    },
    Read {
        dst: Span<'a>,
        src: Span<'a>,
    },
    /// A value for the 8 bytes at `dst`, whose previous value was `old`.
    Update {
        dst: Span<'a>,
        old: u64,
        value: u64,
    },
}

/// One end of a connection, as its transport made it.
///
/// An operation that was taken holds the memory at both its ends until it is acknowledged, whatever its caller drops. Dropping
/// the backend never waits: the transport goes on until everything it took is acknowledged, or has failed.
pub(crate) trait Backend: Send + Sync {
    /// Takes an operation; [`kick`](Self::kick) sends it. False if too many wait already. Never waits.
    fn post(&self, operation: &Operation<'_>) -> Result<bool>;
    /// Sends what was taken.
    fn kick(&self) -> Result<()> {
        Ok(())
    }
    /// Whether an operation would be taken now; moves earlier ones along.
    fn has_room(&self) -> Result<bool> {
        Ok(true)
    }
    /// What peers must be allowed to do with the memory that a signal goes to.
    fn signal_rights(&self) -> Rights {
        Rights::REMOTE_WRITE
    }
    /// Has `value` written to `word` when everything so far is done; false if the transport cannot.
    fn report(&self, _word: &DeviceSlice, _value: u64) -> Result<bool> {
        Ok(false)
    }
    /// A position behind everything so far.
    fn mark(&self) -> Result<u64>;
    /// Whether everything before a position is acknowledged; polled by [`Connection::flush`](crate::comm::Connection::flush).
    fn is_done(&self, mark: u64) -> Result<bool>;
    /// Waits a little between two polls of this connection.
    fn pause(&self, backoff: &mut Backoff, deadline: Deadline) {
        backoff.pause(deadline);
    }
    /// Number of signals that arrived with a wake-up; 0 where waiters poll memory.
    fn arrivals(&self) -> u64 {
        0
    }
    /// [`pause`](Self::pause) of a thread that waits for a signal; `arrivals` is the number before its last poll.
    fn await_arrival(&self, _arrivals: u64, backoff: &mut Backoff, deadline: Deadline) {
        self.pause(backoff, deadline);
    }
    /// Where a failure of the connection is kept; none if only its peer or the communicator can fail.
    fn failure(&self) -> Option<&Failure> {
        None
    }
    /// Returns the failure of the connection, if it has failed.
    fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Failure::check)
    }
    /// The abort word of kernels that wait for signals of this connection, which the transport raises when the connection has failed
    /// or the communicator aborts; none if signals come from the device itself.
    fn kernel_abort(&self) -> Option<&Arc<KernelAbort>> {
        None
    }
    /// Lets later operations begin only after the work before `event`.
    fn wait_event(&self, event: &Event) -> Result<()>;
    /// Puts `event` behind everything so far.
    fn record_event(&self, event: &Event) -> Result<()>;
    /// Fills in the counters that only the transport has.
    fn count(&self, _counters: &mut ConnectionCounters) {}
}
