//! How operations of a connection become requests of its queue pairs.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::idle::IdleTimer;
use super::credits::{ReceiveCredits, SIGNAL};
use super::order::{self, Footprint, Outstanding, STRIPE};
use super::request::{INLINE, Operation, Request, Transfer};
use super::send_queue::{Keep, SendQueue, WorkRequest};
use crate::error::Result;
use crate::memory::Remote;
use crate::rdma::{Cause, MemoryRegion, QueuePair, ReadyToSend, RemoteRange};

/// A position: reached when every queue has completed so many requests.
pub(super) struct Mark {
    pub(super) number: u64,
    pub(super) targets: Vec<u64>,
}

/// The queue pairs of a connection and what they are given; behind the lock of the connection.
pub(super) struct State {
    pub(super) queues: Vec<SendQueue>,
    /// Operations that wait for room, an event or completions, in order.
    pub(super) waiting: VecDeque<Operation>,
    pub(super) marks: VecDeque<Mark>,
    pub(super) marked: u64,
    /// What transfers may have to wait for, if there are several queues.
    outstanding: Outstanding,
    /// If signals take receives: of the first queue.
    pub(super) credits: Option<ReceiveCredits>,
    pub(super) spent: Vec<Keep>,
    /// Completions of requests so far.
    pub(super) completions: u64,
    /// Why requests failed. The thread that finds it known tells the connection without the lock; by then other threads may have taken
    /// completions of requests that were flushed behind it.
    pub(super) failed: Cause,
    pub(super) idle: IdleTimer,
    /// The connection became idle with requests outstanding: the service thread goes on until they have completed.
    pub(super) settling: bool,
    /// The most that one request moves.
    max_message: u64,
    /// The most that a request may carry inline.
    max_inline: usize,
    /// Where atomics put the old value, if signals are atomics.
    landing: Option<MemoryRegion>,
}

impl State {
    /// For `queue_pairs`, each of which holds at most `most` requests. Signals are atomics if there is a `landing`, and take
    /// receives of the peer if there are `credits`.
    pub(super) fn new(
        queue_pairs: Vec<QueuePair<ReadyToSend>>,
        most: u32,
        max_message: u64,
        landing: Option<MemoryRegion>,
        credits: Option<ReceiveCredits>,
    ) -> Self {
        let max_inline = queue_pairs.iter().map(|qp| qp.max_inline() as usize).min().unwrap_or(0).min(INLINE);
        Self {
            queues: queue_pairs.into_iter().map(|queue_pair| SendQueue::new(queue_pair, most)).collect(),
            waiting: VecDeque::new(),
            marks: VecDeque::new(),
            marked: 0,
            outstanding: Outstanding::default(),
            credits,
            spent: Vec::new(),
            completions: 0,
            failed: Cause::default(),
            idle: IdleTimer::default(),
            settling: false,
            max_message,
            max_inline,
            landing,
        }
    }

    /// Gives everything out, to be dropped where waiting is allowed: queue pairs and operations, and device memory. Drop the
    /// queue pairs first, because until then the NIC uses what the requests name.
    pub(super) fn dismantle(&mut self) -> (impl Send + 'static, Option<MemoryRegion>) {
        let Self { queues, waiting, spent, landing, .. } = self;
        ((std::mem::take(queues), std::mem::take(waiting), std::mem::take(spent)), landing.take())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.queues.iter().all(SendQueue::is_idle)
    }

    /// Requests so far.
    pub(super) fn posted(&self) -> u64 {
        self.queues.iter().map(SendQueue::posted).sum()
    }

    /// Makes sure that the latest request of every queue will be known to have completed; false if a queue has no room for the request
    /// that would say so. A full queue may end in requests that nothing covers.
    pub(super) fn cover(&mut self) -> Result<bool> {
        let mut all = true;
        for queue in &mut self.queues {
            all &= queue.cover()?;
            queue.post()?;
        }
        Ok(all)
    }

    /// Turns operations into requests and posts them; false if something waits for completions.
    pub(super) fn issue(&mut self) -> Result<bool> {
        let mut all = self.give_back()?;
        while let Some(operation) = self.waiting.pop_front() {
            if let Some(unfinished) = self.issue_one(operation)? {
                self.waiting.push_front(unfinished);
                all = false;
                break;
            }
        }
        for queue in &mut self.queues {
            queue.post()?;
        }
        Ok(all && !self.queues.iter().any(SendQueue::has_unposted))
    }

    /// Posts what can be posted, unless a request has failed. Whether anything is left.
    pub(super) fn waits(&mut self) -> Result<bool> {
        Ok(self.failed.has_failed() || !self.issue()?)
    }

    /// Gives the operation back if it cannot be finished now.
    fn issue_one(&mut self, mut operation: Operation) -> Result<Option<Operation>> {
        let finished = match &mut operation {
            Operation::After(awaited) => awaited.is_over()?,
            Operation::Mark(number) => self.note(*number)?,
            Operation::Transfer { read, local, offset, host, at, done, remote } => {
                let host = host.as_ref().map(|host| (host, 0));
                let transfer = Transfer { read: *read, local, offset: *offset, host, at: *at, remote };
                self.make(&Request::Transfer(transfer), done)?
            }
            Operation::Update { to, old, value, remote } => {
                self.make(&Request::Update { to: *to, old: *old, value: *value, remote }, &mut 0)?
            }
        };
        Ok((!finished).then_some(operation))
    }

    /// Makes requests of an operation, from byte `done` on, which moves along; false if not all of it has room now.
    pub(super) fn make(&mut self, request: &Request<'_>, done: &mut u64) -> Result<bool> {
        match *request {
            Request::Transfer(ref transfer) => self.transfer(transfer, done),
            Request::Update { to, old, value, remote } => self.update(to, old, value, remote),
        }
    }

    #[inline]
    fn transfer(&mut self, transfer: &Transfer<'_>, done: &mut u64) -> Result<bool> {
        let Self { queues, outstanding, max_message, max_inline, .. } = self;
        let Transfer { read, local, offset, host, at, remote } = *transfer;
        let several = queues.len() > 1;
        let spread = several && at.len() >= 2 * STRIPE;
        let footprint =
            || local.range(offset, at.len()).map(|here| Footprint::transfer(read, spread, here, at));
        if several && *done == 0 && outstanding.holds_up(&footprint()?, queues) {
            for queue in queues {
                queue.cover()?;
            }
            return Ok(false);
        }
        let destination = if read { local.address() + offset } else { at.address() };
        while *done < at.len() {
            let (place, most) =
                if spread { order::queue_of(destination + *done, queues.len()) } else { (0, at.len()) };
            let size = (at.len() - *done).min(most).min(*max_message);
            let to = at.part(*done, size)?;
            let queue = &mut queues[place];
            let request = match host {
                // What an earlier read brings is not there to be copied.
                Some((host, offset)) if size as usize <= *max_inline && !queue.is_reading() => {
                    // All of it: no NIC cuts so little.
                    let from = host.memory().slice(offset, size as usize)?;
                    WorkRequest::Copied(from, to)
                }
                _ if read => WorkRequest::Read(local.range(offset + *done, size)?, to),
                _ => WorkRequest::Write(local.range(offset + *done, size)?, to),
            };
            if !queue.push(request, !read, false, Some((Some(local), remote)))? {
                return Ok(false);
            }
            *done += size;
        }
        if several {
            outstanding.add(footprint()?, queues);
        }
        Ok(true)
    }

    fn update(&mut self, to: RemoteRange, old: u64, value: u64, remote: &Arc<Remote>) -> Result<bool> {
        let Self { queues, outstanding, credits, landing, .. } = self;
        let Some((first, others)) = queues.split_first_mut() else { return Ok(true) };
        for queue in &mut *others {
            if !(queue.is_idle() || queue.cover()? && queue.is_idle()) {
                return Ok(false);
            }
        }
        let several = !others.is_empty();
        let bytes = value.to_le_bytes();
        // SYNC connection.signal: behind the data, on the same queue pair, into memory without relaxed ordering.
        let (request, landing) = match (&*landing, &credits) {
            (None, None) => (WorkRequest::Inline(&bytes, to), None),
            (None, Some(credits)) if !credits.may_signal() => return Ok(false),
            (None, Some(_)) => (WorkRequest::Tell(&bytes, to, SIGNAL), None),
            (Some(landing), _) => {
                (WorkRequest::Add(landing.range(0, 8)?, to, value.wrapping_sub(old)), Some(landing))
            }
        };
        let taken = first.push(request, true, false, Some((landing, remote)))?;
        if taken && let Some(credits) = credits {
            credits.signalled();
        }
        if taken && several {
            outstanding.add(Footprint::word(to), queues);
        }
        Ok(taken)
    }

    /// Notes what every queue must have completed for position `number` to be reached; false if that cannot be seen yet.
    fn note(&mut self, number: u64) -> Result<bool> {
        for queue in &mut self.queues {
            if !queue.cover()? {
                return Ok(false);
            }
        }
        let targets = self.queues.iter().map(SendQueue::posted).collect();
        self.marks.push_back(Mark { number, targets });
        Ok(true)
    }

    /// Tells the peer of receives that are there again; false if there is no room now.
    fn give_back(&mut self) -> Result<bool> {
        let Self { queues, credits: Some(credits), .. } = self else { return Ok(true) };
        let (Some(count), Some(first)) = (credits.owed(), queues.first_mut()) else { return Ok(true) };
        let taken = first.push(WorkRequest::Immediate(count), false, true, None)?;
        if taken {
            credits.told();
        }
        Ok(taken)
    }
}
