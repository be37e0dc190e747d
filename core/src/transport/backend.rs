//! What every transport does for a connection.

use std::sync::Arc;

use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, Result};
use crate::gpu::{DeviceSlice, Event};
use crate::memory::{Place, RegisteredMemory, Remote};

/// What a connection has done so far.
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

    /// What its owner said about it, and where in that it begins.
    pub(crate) fn remote(&self, op: &'static str) -> Result<(&'a Arc<Remote>, u64)> {
        let own = || Error::usage(op, "the remote memory is this rank's own");
        self.memory.remote().map(|(remote, base)| (remote, base + self.offset as u64)).ok_or_else(own)
    }
}

/// What a transport does. Ranges, rights and registration have been checked; no operation has zero bytes.
pub(crate) trait Backend: Send + Sync {
    /// Takes an operation, or says why it has failed; [`kick`](Self::kick) puts it on its way.
    fn write(&self, dst: Span<'_>, src: Span<'_>) -> Result<()>;
    fn read(&self, dst: Span<'_>, src: Span<'_>) -> Result<()>;
    /// The value before was `old`.
    fn update(&self, dst: Span<'_>, old: u64, value: u64) -> Result<()>;
    /// Puts on its way what was taken.
    fn kick(&self) -> Result<()> {
        Ok(())
    }
    /// Whether an operation would be taken without waiting for earlier ones; moves those along.
    fn has_room(&self) -> Result<bool> {
        Ok(true)
    }
    /// Has `value` written to `word` when everything so far is done; false if the transport cannot.
    fn report(&self, _word: &DeviceSlice, _value: u64) -> Result<bool> {
        Ok(false)
    }
    /// A position behind everything so far.
    fn mark(&self) -> Result<u64>;
    /// Whether everything before a position is done; asked again and again by [`Connection::flush`](crate::comm::Connection::flush).
    fn is_done(&self, mark: u64) -> Result<bool>;
    /// What somebody who waits for this connection does between two looks.
    fn pause(&self, backoff: &mut Backoff, deadline: Deadline) {
        backoff.pause(deadline);
    }
    /// How many signals have come of which somebody was told.
    fn arrivals(&self) -> u64 {
        0
    }
    /// [`pause`](Self::pause) of somebody who waits for a signal, with what `arrivals` were before the last look.
    fn await_arrival(&self, _arrivals: u64, backoff: &mut Backoff, deadline: Deadline) {
        self.pause(backoff, deadline);
    }
    /// Why it has failed.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    fn wait_event(&self, event: &Event) -> Result<()>;
    fn record_event(&self, event: &Event) -> Result<()>;
    /// Fills in what only the transport counts.
    fn count(&self, _counters: &mut ConnectionCounters) {}
}
