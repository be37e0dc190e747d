//! One queue pair of a connection: what is being posted, what is outstanding, and what that keeps alive.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::comm::memory::Remote;
use crate::error::Result;
use crate::rdma::{Batch, LocalRange, MemoryRegion, QueuePair, ReadyToSend, RemoteRange, Window};

/// One request in sixteen is signalled: completions cost, and one covers all before it.
const SIGNAL_EVERY: u32 = 16;

/// How many of the memories in use are looked through before one is kept once more: data and signals take turns.
const RECENT: usize = 4;

/// The memories that a request uses.
pub(super) type Keep = (Option<MemoryRegion>, Arc<Remote>);

/// A queue pair with its bookkeeping.
pub(super) struct Lane {
    pub(super) queue_pair: QueuePair<ReadyToSend>,
    window: Window,
    batch: Batch,
    /// What is kept for the requests up to a number, in the order of these. Memory that is used again moves to the end:
    /// counting its owners would cost more than the request.
    kept: VecDeque<(u64, Keep)>,
    /// A place at the peer that was written before, for a request that only completes those before it.
    known: Option<RemoteRange>,
}

/// What a request does.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    Write(LocalRange, RemoteRange),
    Inline(&'a [u8], RemoteRange),
    Read(LocalRange, RemoteRange),
    /// The range takes the old value.
    Add(LocalRange, RemoteRange, u64),
    /// Written, and the peer is told with an immediate.
    Tell(&'a [u8], RemoteRange, u32),
    /// Only the immediate. Uses no memory, and so is always signalled.
    Immediate(u32),
}

impl Lane {
    pub(super) fn new(queue_pair: QueuePair<ReadyToSend>) -> Self {
        let window = Window::new(queue_pair.max_send(), SIGNAL_EVERY);
        Self { queue_pair, window, batch: Batch::with_capacity(64), kept: VecDeque::new(), known: None }
    }

    /// Adds a request; false if there is no room now.
    #[inline]
    pub(super) fn push(
        &mut self,
        request: Request<'_>,
        fence: bool,
        signal: bool,
        keep: Option<(Option<&MemoryRegion>, &Arc<Remote>)>,
    ) -> Result<bool> {
        let taken =
            if signal { self.window.take_signalled().map(|id| (id, true)) } else { self.window.take() };
        let Some((id, signal)) = taken else { return Ok(false) };
        let made = match request {
            Request::Write(from, to) => self.batch.write(from, to)?,
            Request::Inline(data, to) => self.batch.write_inline(data, to)?,
            Request::Read(into, from) => self.batch.read(into, from)?,
            Request::Add(old, at, value) => self.batch.fetch_add(old, at, value)?,
            Request::Tell(data, to, immediate) => {
                self.batch.write_inline_with_immediate(data, to, immediate)?
            }
            Request::Immediate(immediate) => self.batch.immediate(immediate),
        };
        let made = made.id(id).signalled_if(signal);
        if fence {
            made.fence();
        }
        if let Request::Write(_, to) | Request::Inline(_, to) | Request::Tell(_, to, _) = request {
            self.known = Some(to);
        }
        if let Some((local, remote)) = keep {
            self.keep(id, local, remote);
        }
        Ok(true)
    }

    /// Keeps memories until request `id` has completed.
    #[inline]
    fn keep(&mut self, id: u64, local: Option<&MemoryRegion>, remote: &Arc<Remote>) {
        let same = |(l, r): &Keep| Arc::ptr_eq(r, remote) && same_region(l.as_ref(), local);
        match self.kept.back_mut() {
            Some((last, keep)) if same(keep) => *last = id,
            _ => {
                let known = self.kept.iter().rev().take(RECENT).position(|(_, keep)| same(keep));
                let moved = known.and_then(|back| self.kept.remove(self.kept.len() - 1 - back));
                let (_, keep) = moved.unwrap_or_else(|| (0, (local.cloned(), remote.clone())));
                self.kept.push_back((id, keep));
            }
        }
    }

    /// Makes sure that the latest request will be known to have completed; false if there is no room now.
    pub(super) fn cover(&mut self) -> Result<bool> {
        if self.window.is_covered() {
            return Ok(true);
        }
        let (Some((_, keep)), Some(known)) = (self.kept.back(), self.known) else { return Ok(true) };
        let (local, remote) = keep.clone();
        // A write of no bytes touches no memory, and completes after what was posted before it.
        self.push(Request::Inline(&[], known.first(0)), false, true, Some((local.as_ref(), &remote)))
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

    /// Request `id` and all before it have completed.
    pub(super) fn complete(&mut self, id: u64, spent: &mut Vec<Keep>) {
        self.window.complete(id);
        while self.kept.front().is_some_and(|(kept, _)| *kept < self.window.done()) {
            spent.extend(self.kept.pop_front().map(|(_, keep)| keep));
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
