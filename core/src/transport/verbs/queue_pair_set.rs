//! All queue pairs of a connection, and the operations waiting for them.
//!
//! The caller of an operation posts it, and a caller that waits polls for completions. The service thread helps where nobody
//! waits: with operations that are held back, streams that wait for operations, connections that are idle with requests whose
//! completion nobody has asked for, and connections that were dropped.

mod ending;
mod turn;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::super::backend::ConnectionCounters;
use super::super::completion::{Completion, KernelAbort};
use super::super::resources::Resources;
use super::super::service::{DataService, Delivery, Disposer, Outstanding};
use super::credits::{RECEIVE, ReceiveCredits, SignalWaiters};
use super::issue::State;
use super::request::{Operation, Request};
use crate::abort::{Abort, AbortListener};
use crate::error::{Error, ErrorKind, Result};
use crate::failure::Failure;
use crate::gpu::{Context, Event, PinnedBuffer};
use crate::net::Registration;
use crate::rdma::{
    self, Access, Atomics, CompletionChannel, CompletionQueue, MemoryRegion, QpCounters, QueuePair,
    ReadyToSend,
};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::transport::endpoint::IbSignal;
use crate::transport::verbs::nics::{Nic, Watcher};

/// The queue pairs of one connection. Holds the group only through the operations in flight: a connection that has delivered
/// everything keeps no rank from leaving.
pub(super) struct QueuePairSet {
    peer: u32,
    /// Dropped before what its requests use.
    state: Mutex<State>,
    completions: CompletionQueue,
    channel: CompletionChannel,
    /// Threads that wait for the peer's signals, if signals wake them.
    arrivals: Option<SignalWaiters>,
    done: AtomicU64,
    /// Dropped by the disposer: freeing its memory may wait for the device.
    completion: ManuallyDrop<Completion>,
    failure: Failure,
    /// It failed with requests that had not completed.
    lost: AtomicBool,
    /// A stream waits, or the owner has gone: the service thread goes on until everything is done.
    serviced: AtomicBool,
    closing: AtomicBool,
    registration: Registration,
    abort: Abort,
    disposer: Disposer,
    outstanding: Arc<Outstanding>,
    nic: Arc<Nic>,
}

/// Arguments of [`QueuePairSet::open`].
pub(super) struct Parts<'a> {
    pub(super) resources: &'a Resources,
    pub(super) service: &'a DataService,
    pub(super) peer: u32,
    pub(super) nic: Arc<Nic>,
    pub(super) queue_pairs: Vec<QueuePair<ReadyToSend>>,
    /// Requests of each queue pair for whose completions there is room.
    pub(super) most: u32,
    pub(super) completions: CompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) max_message: u64,
    pub(super) signal: IbSignal,
}

impl QueuePairSet {
    pub(super) fn open(parts: Parts<'_>) -> Result<Arc<Self>> {
        let Parts {
            resources,
            service,
            peer,
            nic,
            queue_pairs,
            most,
            completions,
            channel,
            max_message,
            signal,
        } = parts;
        let landing = match signal {
            IbSignal::Write | IbSignal::Immediate => None,
            IbSignal::Atomic => Some(landing(&resources.context, &nic)?),
        };
        let wakes = signal == IbSignal::Immediate;
        let credits = wakes.then(ReceiveCredits::new);
        let set = Arc::new(Self {
            peer,
            state: Mutex::new(State::new(queue_pairs, most, max_message, landing, credits)),
            completions,
            channel,
            arrivals: wakes.then(SignalWaiters::default),
            done: AtomicU64::new(0),
            completion: ManuallyDrop::new(Completion::new(&resources.words, &resources.wait_streams)?),
            failure: Failure::default(),
            lost: AtomicBool::new(false),
            serviced: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            registration: service.reserve(),
            abort: resources.group.abort().clone(),
            disposer: service.disposer().clone(),
            outstanding: service.outstanding().clone(),
            nic,
        });
        let watcher: Arc<dyn Watcher> = set.clone();
        set.nic.watch(Arc::downgrade(&watcher));
        let delivery: Arc<dyn Delivery> = set.clone();
        set.outstanding.add(Arc::downgrade(&delivery));
        let listener: Arc<dyn AbortListener> = set.clone();
        set.abort.listen(&listener);
        set.registration.serve(set.clone());
        Ok(set)
    }

    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Why it has failed, if it has.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.failure.check()
    }

    /// The abort word of kernels that wait for its signals.
    pub(super) fn kernel_abort(&self) -> &Arc<KernelAbort> {
        self.completion.kernels()
    }

    /// Takes an operation: makes requests of it, if none waits before it and there is room, for the next doorbell; else, if
    /// fewer than `most` wait, lets it wait as well. False if it was not taken.
    #[inline]
    pub(super) fn give(&self, request: &Request<'_>, most: usize) -> Result<bool> {
        let mut state = lock(&self.state);
        let mut done = 0;
        match self.give_now(&mut state, request, &mut done) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => {
                drop(state);
                return self.fail(&error).map(|()| true);
            }
        }
        // One of which a part is done waits alone.
        let taken = state.waiting.len() < most;
        if taken {
            state.waiting.push_back(request.keep(done));
        }
        Ok(taken)
    }

    /// Makes requests of an operation, if none waits before it; false if not all of it has room.
    #[inline]
    fn give_now(&self, state: &mut State, request: &Request<'_>, done: &mut u64) -> Result<bool> {
        if !state.waiting.is_empty() {
            return Ok(false);
        }
        if state.make(request, done)? {
            return Ok(true);
        }
        // Requests that have completed make room.
        self.look(state, true)?;
        state.make(request, done)
    }

    /// Whether an operation more would be taken.
    pub(super) fn has_room(&self, most: usize) -> bool {
        lock(&self.state).waiting.len() < most
    }

    /// A position behind everything so far.
    pub(super) fn mark(&self) -> u64 {
        let mut state = lock(&self.state);
        state.marked += 1;
        let number = state.marked;
        state.waiting.push_back(Operation::Mark(number));
        number
    }

    /// Lets what comes later begin only once the work before `event` is done.
    pub(super) fn after(&self, event: &Event) -> Result<()> {
        let awaited = self.completion.behind(event)?;
        lock(&self.state).waiting.push_back(Operation::After(awaited));
        Ok(())
    }

    /// Puts `event` behind the position `mark`.
    pub(super) fn record(&self, event: &Event, mark: u64) -> Result<()> {
        self.completion.record(event, mark)?;
        self.completion.reach(self.done.load(Ordering::Acquire));
        if self.failure.has_failed() {
            self.completion.release();
        }
        self.serviced.store(true, Ordering::Release);
        self.registration.nudge();
        Ok(())
    }

    /// Whether everything before `mark` has completed.
    pub(super) fn is_done(&self, mark: u64) -> Result<bool> {
        if self.done.load(Ordering::Acquire) < mark {
            self.poll()?;
        }
        if self.done.load(Ordering::Acquire) >= mark {
            return Ok(true);
        }
        self.check().map(|()| false)
    }

    /// Posts what can be posted, and leaves what cannot to the service thread.
    pub(super) fn drive(&self) -> Result<()> {
        match self.look_and_drop(false) {
            Ok(waits) => {
                if waits {
                    self.registration.nudge();
                }
                Ok(())
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Threads that wait for the peer's signals, if signals wake threads.
    pub(super) fn arrivals(&self) -> Option<&SignalWaiters> {
        self.arrivals.as_ref()
    }

    /// Adds the requests and completions of the NIC to `counters`.
    pub(super) fn count(&self, counters: &mut ConnectionCounters) {
        let state = lock(&self.state);
        for queue in &state.queues {
            let QpCounters { requests, doorbells } = queue.queue_pair.counters();
            counters.requests += requests;
            counters.doorbells += doorbells;
        }
        counters.completions += state.completions;
    }

    fn poll(&self) -> Result<()> {
        self.look_and_drop(true).map(drop).or_else(|error| self.fail(&error))
    }

    /// Takes completions, if asked to or if there is no room without, and posts. Whether operations still wait, or what follows a failure
    /// whose cause may still come.
    fn look(&self, state: &mut State, poll: bool) -> Result<bool> {
        self.failure.look()?;
        if poll {
            self.take_completions(state)?;
        }
        let mut waits = state.waits()?;
        if waits && !poll {
            self.take_completions(state)?;
            waits = state.waits()?;
        }
        Ok(waits)
    }

    /// [`look`](Self::look) of a user thread, which drops what is no longer used, outside the lock. True if operations wait, with
    /// which the service thread has to go on. Tells that thread itself when it must begin to look for idleness.
    fn look_and_drop(&self, poll: bool) -> Result<bool> {
        let mut state = lock(&self.state);
        let outcome = self.look(&mut state, poll);
        let watch = !state.is_idle() && state.idle.arm();
        let spent = std::mem::take(&mut state.spent);
        drop(state);
        drop(spent);
        if watch {
            self.registration.nudge();
        }
        outcome
    }

    fn take_completions(&self, state: &mut State) -> Result<()> {
        let mut signals = false;
        let mut outcome = Ok(());
        let State { queues, spent, credits, completions, failed, .. } = state;
        let each = |completion: rdma::Completion| {
            let Some(queue) = queues.iter_mut().find(|l| l.queue_pair.number() == completion.qp_number)
            else {
                return;
            };
            match (completion.result, &mut *credits) {
                (Ok(done), Some(credits)) if completion.id == RECEIVE => {
                    if outcome.is_ok() {
                        // Posted again first: the peer may be told of it next.
                        let posted = queue.queue_pair.post_receive(RECEIVE, None);
                        outcome =
                            posted.and_then(|()| credits.arrived(done.immediate)).map(|more| signals |= more);
                    }
                }
                (Ok(_), _) => {
                    *completions += 1;
                    queue.complete(completion.id, spent);
                }
                (Err(why), _) => failed.add(why),
            }
        };
        // All that are there: what is left would wake nobody.
        self.completions.poll(usize::MAX, each)?;
        if let Some(arrivals) = self.arrivals.as_ref().filter(|_| signals) {
            arrivals.notify();
        }
        if let Some(why) = state.failed.known() {
            return Err(why.to_error("connection"));
        }
        outcome?;
        while let Some(mark) = state.marks.front() {
            if !mark.targets.iter().zip(&state.queues).all(|(target, queue)| queue.done() >= *target) {
                break;
            }
            self.done.store(mark.number, Ordering::Release);
            self.completion.reach(mark.number);
            state.marks.pop_front();
        }
        Ok(())
    }

    /// Ends it: everything outstanding is given up, and every waiting call gets the reason.
    pub(super) fn fail(&self, why: &Error) -> Result<()> {
        self.give_up(why);
        self.check()
    }

    /// [`fail`](Self::fail) for a thread that is not a caller: the failure counts as told once a caller has it.
    fn give_up(&self, why: &Error) {
        let message = format!("the verbs connection to rank {} has failed", self.peer);
        let set = self.failure.set(
            Error::new(why.kind(), "connection", message)
                .with_peer(self.peer)
                .with_code(why.code())
                .with_source(why.clone()),
        );
        if set {
            let state = lock(&self.state);
            let settled = state.is_idle();
            for queue in &state.queues {
                if let Err(error) = queue.queue_pair.abort() {
                    log::debug!("a queue pair to rank {} cannot be stopped: {error}", self.peer);
                }
            }
            drop(state);
            self.completion.release();
            if let Some(arrivals) = &self.arrivals {
                arrivals.notify();
            }
            if settled {
                log::debug!("the verbs connection to rank {} ends: {why}", self.peer);
            } else {
                log::warn!("operations to rank {} were accepted and are lost: {why}", self.peer);
                self.lost.store(true, Ordering::Release);
            }
            if self.closing.load(Ordering::Acquire)
                && let Some(lost) = self.lost()
            {
                self.outstanding.report(lost);
            }
        }
    }
}

impl fmt::Debug for QueuePairSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairSet").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Eight bytes that the NIC writes and nobody reads.
fn landing(context: &Context, nic: &Nic) -> Result<MemoryRegion> {
    if nic.context.attributes().atomics == Atomics::None {
        let message = format!("{} has no atomics; use IbSignal::Write", nic.context.device().name());
        return Err(Error::new(ErrorKind::Unsupported, "connect", message));
    }
    let word = Arc::new(PinnedBuffer::new(context, size_of::<u64>())?);
    let at = word.host_ptr().as_ptr();
    // SAFETY: the region keeps the buffer.
    unsafe { nic.domain.register(at, size_of::<u64>(), Access::FLAGS, word) }
}

#[cfg(all(test, not(loom)))]
mod tests;
