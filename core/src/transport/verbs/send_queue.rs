//! One queue pair of a connection: what is being posted, what is outstanding, and what that keeps alive.

use std::sync::Arc;

use super::super::in_flight::InFlight;
use crate::error::Result;
use crate::memory::Remote;
use crate::rdma::{Batch, LocalRange, MemoryRegion, QueuePair, ReadyToSend, RemoteRange, Window};
use crate::volatile::VolatileSlice;

/// One request in sixteen is signalled: completions cost, and one covers all before it.
const SIGNAL_EVERY: u32 = 16;

/// The memories that a request uses.
pub(super) type Keep = (Option<MemoryRegion>, Arc<Remote>);

/// Memories that requests keep alive, and a range of the peer's, where [`cover`](SendQueue::cover) writes zero bytes.
struct Used {
    memories: Keep,
    at: Option<RemoteRange>,
}

/// A queue pair with its bookkeeping.
pub(super) struct SendQueue {
    pub(super) queue_pair: QueuePair<ReadyToSend>,
    window: Window,
    batch: Batch,
    in_flight: InFlight<Used>,
    /// Reads were added whose data a later request may send, or whose source it may overwrite.
    unfenced: bool,
    /// All reads so far are done when so many requests are.
    reads: u64,
}

/// A request to the NIC.
#[derive(Clone, Copy)]
pub(super) enum WorkRequest<'a> {
    Write(LocalRange, RemoteRange),
    Inline(&'a [u8], RemoteRange),
    /// The same of memory that others may write.
    Copied(VolatileSlice<'a>, RemoteRange),
    Read(LocalRange, RemoteRange),
    /// The range takes the old value.
    Add(LocalRange, RemoteRange, u64),
    /// Written, and the peer is told with an immediate.
    Tell(&'a [u8], RemoteRange, u32),
    /// Only the immediate. Uses no memory, and so is always signalled.
    Immediate(u32),
}

impl WorkRequest<'_> {
    /// The place of the peer's, if it has one.
    fn at(&self) -> Option<RemoteRange> {
        match self {
            Self::Write(_, at)
            | Self::Inline(_, at)
            | Self::Copied(_, at)
            | Self::Read(_, at)
            | Self::Add(_, at, _)
            | Self::Tell(_, at, _) => Some(*at),
            Self::Immediate(_) => None,
        }
    }
}

impl SendQueue {
    /// Holds at most `most` requests: a NIC may give more room than it was asked for, but the completion queue has none for theirs.
    pub(super) fn new(queue_pair: QueuePair<ReadyToSend>, most: u32) -> Self {
        let window = Window::new(queue_pair.max_send().min(most), SIGNAL_EVERY);
        Self {
            queue_pair,
            window,
            batch: Batch::with_capacity(64),
            in_flight: InFlight::new(),
            unfenced: false,
            reads: 0,
        }
    }

    /// Adds a request; false if there is no room now. With `fence` it begins only after the reads before it on this queue.
    #[inline]
    pub(super) fn push(
        &mut self,
        request: WorkRequest<'_>,
        fence: bool,
        signal: bool,
        keep: Option<(Option<&MemoryRegion>, &Arc<Remote>)>,
    ) -> Result<bool> {
        let taken =
            if signal { self.window.take_signalled().map(|id| (id, true)) } else { self.window.take() };
        let Some((id, signal)) = taken else { return Ok(false) };
        let made = match request {
            WorkRequest::Write(from, to) => self.batch.write(from, to)?,
            WorkRequest::Inline(data, to) => self.batch.write_inline(data, to)?,
            WorkRequest::Copied(from, to) => self.batch.write_inline_with(to, |bytes| from.read(0, bytes))?,
            WorkRequest::Read(into, from) => self.batch.read(into, from)?,
            WorkRequest::Add(old, at, value) => self.batch.fetch_add(old, at, value)?,
            WorkRequest::Tell(data, to, immediate) => {
                self.batch.write_inline_with_immediate(data, to, immediate)?
            }
            WorkRequest::Immediate(immediate) => self.batch.immediate(immediate),
        };
        let made = made.id(id).signalled_if(signal);
        if matches!(request, WorkRequest::Read(..)) {
            self.unfenced = true;
            self.reads = id + 1;
        } else if fence && std::mem::take(&mut self.unfenced) {
            // Holds up those behind it, too.
            made.fence();
        }
        if let Some((local, remote)) = keep {
            let same = |used: &Used| {
                let (known, peers) = &used.memories;
                Arc::ptr_eq(peers, remote) && same_region(known.as_ref(), local)
            };
            let make = || Used { memories: (local.cloned(), remote.clone()), at: request.at() };
            self.in_flight.hold(id, same, make);
        }
        Ok(true)
    }

    /// Makes sure that the latest request will be known to have completed; false if there is no room now.
    pub(super) fn cover(&mut self) -> Result<bool> {
        if self.window.is_covered() {
            return Ok(true);
        }
        // Without memory there are only requests that are signalled anyway.
        let Some(Used { memories: (local, remote), at: Some(at) }) = self.in_flight.latest() else {
            return Ok(true);
        };
        let (local, remote, at) = (local.clone(), remote.clone(), at.first(0));
        // A write of no bytes touches no memory, and completes after what was posted before it.
        self.push(WorkRequest::Inline(&[], at), false, true, Some((local.as_ref(), &remote)))
    }

    /// Rings the doorbell for what was added.
    pub(super) fn post(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        match self.queue_pair.post(&mut self.batch) {
            Ok(()) => Ok(()),
            // The window bounds what is posted: it cannot be full for long.
            Err(error) if error.full => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// WorkRequest `id` and all before it have completed.
    pub(super) fn complete(&mut self, id: u64, spent: &mut Vec<Keep>) {
        self.window.complete(id);
        while let Some(used) = self.in_flight.release(self.window.done()) {
            spent.push(used.memories);
        }
    }

    /// Requests so far.
    pub(super) fn posted(&self) -> u64 {
        self.window.posted()
    }

    /// Requests that have completed.
    pub(super) fn done(&self) -> u64 {
        self.window.done()
    }

    /// Whether memory here may still change by a read.
    pub(super) fn is_reading(&self) -> bool {
        self.window.done() < self.reads
    }

    pub(super) fn is_idle(&self) -> bool {
        self.window.outstanding() == 0
    }

    pub(super) fn has_unposted(&self) -> bool {
        !self.batch.is_empty()
    }
}

fn same_region(one: Option<&MemoryRegion>, other: Option<&MemoryRegion>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.is(other),
        (None, None) => true,
        _ => false,
    }
}
