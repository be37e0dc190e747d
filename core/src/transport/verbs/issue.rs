//! Operations of a connection, and how they become requests.

use std::sync::Arc;

use super::super::Span;
use super::credits::SIGNAL;
use super::queue_pair_set::{Mark, QueuePairSet, State};
use super::send_queue::{SendQueue, WorkRequest};
use crate::error::{Error, Result};
use crate::gpu::Event;
use crate::memory::{HostSlice, Remote};
use crate::rdma::{MemoryRegion, RemoteRange};

/// Transfers from here on are spread over all queue pairs, in pieces of this size.
const STRIPE: u64 = 256 << 10;
/// Host memory of up to this size goes into the request itself.
pub(super) const INLINE: usize = 64;

/// An operation as its caller names it: borrowed, because most become requests at once.
pub(super) enum Request<'a> {
    Transfer(Transfer<'a>),
    Update { to: RemoteRange, old: u64, value: u64, remote: &'a Arc<Remote> },
}

/// Bytes to be moved.
pub(super) struct Transfer<'a> {
    read: bool,
    local: &'a MemoryRegion,
    offset: u64,
    /// Set for small amounts of host memory, which are sent inline: where they begin.
    host: Option<(&'a HostSlice, usize)>,
    at: RemoteRange,
    remote: &'a Arc<Remote>,
}

/// An operation that waits, with what it keeps alive.
pub(super) enum Operation {
    Transfer {
        read: bool,
        local: MemoryRegion,
        offset: u64,
        host: Option<HostSlice>,
        at: RemoteRange,
        /// Bytes of it that are requests already.
        done: u64,
        remote: Arc<Remote>,
    },
    Update {
        to: RemoteRange,
        old: u64,
        value: u64,
        remote: Arc<Remote>,
    },
    After(Event),
    Mark(u64),
}

impl<'a> Request<'a> {
    /// Moves what `ours` and `theirs` name; `nic` is ours.
    #[inline]
    pub(super) fn transfer(
        op: &'static str,
        read: bool,
        nic: u8,
        ours: Span<'a>,
        theirs: Span<'a>,
        at: RemoteRange,
    ) -> Result<Self> {
        let (local, base) = ours.memory.on_nic(nic).ok_or_else(|| unregistered(op, nic))?;
        let (remote, _) = theirs.remote(op)?;
        let small = !read && ours.len <= INLINE;
        let host = ours.memory.place().host().filter(|_| small).map(|host| (host, ours.offset));
        let offset = base + ours.offset as u64;
        Ok(Self::Transfer(Transfer { read, local, offset, host, at, remote }))
    }

    /// The same, to wait: `done` bytes of it are requests already.
    pub(super) fn keep(&self, done: u64) -> Operation {
        match *self {
            Self::Transfer(Transfer { read, local, offset, host, at, remote }) => Operation::Transfer {
                read,
                local: local.clone(),
                offset,
                host: host.map(|(host, offset)| host.part(offset, at.len() as usize)),
                at,
                done,
                remote: remote.clone(),
            },
            Self::Update { to, old, value, remote } => {
                Operation::Update { to, old, value, remote: remote.clone() }
            }
        }
    }
}

impl QueuePairSet {
    /// Turns operations into requests and posts them; false if something waits for completions.
    pub(super) fn issue(&self, state: &mut State) -> Result<bool> {
        let mut all = give_back(state)?;
        while let Some(operation) = state.waiting.pop_front() {
            if let Some(unfinished) = self.issue_one(state, operation)? {
                state.waiting.push_front(unfinished);
                all = false;
                break;
            }
        }
        for queue in &mut state.queues {
            queue.post()?;
        }
        Ok(all && !state.queues.iter().any(SendQueue::has_unposted))
    }

    /// Gives the operation back if it cannot be finished now.
    fn issue_one(&self, state: &mut State, mut operation: Operation) -> Result<Option<Operation>> {
        let finished = match &mut operation {
            Operation::After(event) => event.is_done()?,
            Operation::Mark(number) => mark(state, *number)?,
            Operation::Transfer { read, local, offset, host, at, done, remote } => {
                let host = host.as_ref().map(|host| (host, 0));
                let transfer = Transfer { read: *read, local, offset: *offset, host, at: *at, remote };
                self.make(state, &Request::Transfer(transfer), done)?
            }
            Operation::Update { to, old, value, remote } => {
                self.make(state, &Request::Update { to: *to, old: *old, value: *value, remote }, &mut 0)?
            }
        };
        Ok((!finished).then_some(operation))
    }

    /// Makes requests of an operation, from byte `done` on, which moves along; false if not all of it has room now.
    pub(super) fn make(&self, state: &mut State, request: &Request<'_>, done: &mut u64) -> Result<bool> {
        match *request {
            Request::Transfer(ref transfer) => self.transfer(state, transfer, done),
            Request::Update { to, old, value, remote } => self.update(state, to, old, value, remote),
        }
    }

    #[inline]
    fn transfer(&self, state: &mut State, transfer: &Transfer<'_>, done: &mut u64) -> Result<bool> {
        let State { queues, next_queue, unfenced, .. } = state;
        let Transfer { read, local, offset, host, at, remote } = *transfer;
        let spread = queues.len() > 1 && at.len() >= 2 * STRIPE;
        let most = if spread { STRIPE } else { self.max_message };
        while *done < at.len() {
            let size = (at.len() - *done).min(most);
            let place = if spread { *next_queue % queues.len() } else { 0 };
            let queue = &mut queues[place];
            let to = at.part(*done, size)?;
            let request = match host {
                Some((host, offset)) if size as usize <= self.max_inline => {
                    let from = host.memory().slice(offset + *done as usize, size as usize)?;
                    WorkRequest::Copied(from, to)
                }
                _ if read => WorkRequest::Read(local.range(offset + *done, size)?, to),
                _ => WorkRequest::Write(local.range(offset + *done, size)?, to),
            };
            if !queue.push(request, *unfenced && !read, false, Some((Some(local), remote)))? {
                return Ok(false);
            }
            if read {
                *unfenced = true;
            } else if queues.len() == 1 {
                *unfenced = false;
            }
            *next_queue += usize::from(spread);
            *done += size;
        }
        Ok(true)
    }

    fn update(
        &self,
        state: &mut State,
        to: RemoteRange,
        old: u64,
        value: u64,
        remote: &Arc<Remote>,
    ) -> Result<bool> {
        let State { queues, unfenced, credits, .. } = state;
        let Some((first, others)) = queues.split_first_mut() else { return Ok(true) };
        for queue in others {
            if !(queue.is_idle() || queue.cover()? && queue.is_idle()) {
                return Ok(false);
            }
        }
        let bytes = value.to_le_bytes();
        // SYNC connection.signal: behind the data, on the same queue pair, into memory without relaxed ordering.
        let (request, landing) = match (&self.device.landing, &credits) {
            (None, None) => (WorkRequest::Inline(&bytes, to), None),
            (None, Some(credits)) if !credits.may_signal() => return Ok(false),
            (None, Some(_)) => (WorkRequest::Tell(&bytes, to, SIGNAL), None),
            (Some(landing), _) => {
                (WorkRequest::Add(landing.range(0, 8)?, to, value.wrapping_sub(old)), Some(landing))
            }
        };
        let taken = first.push(request, *unfenced, false, Some((landing, remote)))?;
        *unfenced &= !taken;
        if taken && let Some(credits) = credits {
            credits.signalled();
        }
        Ok(taken)
    }
}

#[cold]
fn unregistered(op: &'static str, nic: u8) -> Error {
    Error::usage(op, format!("the memory is not registered with Ib{nic}; name it when registering"))
}

/// Notes what every queue must have completed for position `number` to be reached; false if that cannot be seen yet.
fn mark(state: &mut State, number: u64) -> Result<bool> {
    for queue in &mut state.queues {
        if !queue.cover()? {
            return Ok(false);
        }
    }
    let targets = state.queues.iter().map(SendQueue::posted).collect();
    state.marks.push_back(Mark { number, targets });
    Ok(true)
}

/// Tells the peer of receives that are there again; false if there is no room now.
fn give_back(state: &mut State) -> Result<bool> {
    let State { queues, credits: Some(credits), .. } = state else { return Ok(true) };
    let (Some(count), Some(first)) = (credits.owed(), queues.first_mut()) else { return Ok(true) };
    let taken = first.push(WorkRequest::Immediate(count), false, true, None)?;
    if taken {
        credits.told();
    }
    Ok(taken)
}
