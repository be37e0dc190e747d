//! All queue pairs of a connection, and the operations waiting for them.
//!
//! Whoever has an operation posts it, and whoever waits polls for completions. The service thread helps where nobody
//! waits: with operations that are held back, streams that wait for operations, and connections that were dropped.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use super::super::ConnectionCounters;
use super::super::completion::Completion;
use super::arrivals::{Arrivals, Flow, RECEIVE};
use super::issue::{Ask, INLINE, Operation};
use super::lane::{Keep, Lane};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Event, PinnedBuffer, Stream};
use crate::group::control::Control;
use crate::net::{Interest, Next, Pollable, Registration};
use crate::rdma::{
    About, Access, AsyncEvent, Atomics, CompletionChannel, CompletionQueue, Failure, MemoryRegion,
    QpCounters, QueuePair, ReadyToSend,
};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::transport::Resources;
use crate::transport::endpoint::IbSignal;
use crate::transport::verbs::nics::{Nic, Watcher};

/// A connection's way to one peer. Holds no communicator: the service thread holds it.
pub(super) struct Road {
    peer: u32,
    /// Dropped before what its requests use.
    state: Mutex<State>,
    completions: CompletionQueue,
    channel: CompletionChannel,
    pub(super) max_message: u64,
    pub(super) max_inline: usize,
    /// Where those sleep who wait for the peer's signals, if these wake anybody.
    arrivals: Option<Arrivals>,
    done: AtomicU64,
    /// Dropped on a thread of its own.
    pub(super) device: ManuallyDrop<OnDevice>,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    /// A stream waits, or the owner has gone: the service thread goes on until everything is done.
    serviced: AtomicBool,
    closing: AtomicBool,
    registration: OnceLock<Registration>,
    control: Arc<Control>,
    nic: Arc<Nic>,
}

/// What a road has of the device, and what the driver may wait for the device to free.
pub(super) struct OnDevice {
    completion: Completion,
    /// Orders events of the user's before operations.
    stream: Stream,
    /// Where atomics put the old value, if signals are atomics.
    pub(super) landing: Option<MemoryRegion>,
}

pub(super) struct State {
    pub(super) lanes: Vec<Lane>,
    pub(super) queue: VecDeque<Operation>,
    pub(super) marks: VecDeque<Mark>,
    marked: u64,
    /// The lane of the next piece.
    pub(super) next_lane: usize,
    /// Reads were posted, whose data a later request may send.
    pub(super) unfenced: bool,
    /// If signals take receives: of the first lane.
    pub(super) flow: Option<Flow>,
    spent: Vec<Keep>,
    /// Completions of requests so far.
    completions: u64,
}

/// A position: reached when every lane has completed so many requests.
pub(super) struct Mark {
    pub(super) number: u64,
    pub(super) targets: Vec<u64>,
}

/// What a road is made of.
pub(super) struct Parts<'a> {
    pub(super) resources: &'a Resources,
    pub(super) peer: u32,
    pub(super) nic: Arc<Nic>,
    pub(super) queue_pairs: Vec<QueuePair<ReadyToSend>>,
    pub(super) completions: CompletionQueue,
    pub(super) channel: CompletionChannel,
    pub(super) max_message: u64,
    pub(super) signal: IbSignal,
}

impl Road {
    pub(super) fn open(parts: Parts<'_>) -> Result<Arc<Self>> {
        let Parts { resources, peer, nic, queue_pairs, completions, channel, max_message, signal } = parts;
        let landing = match signal {
            IbSignal::Write | IbSignal::Immediate => None,
            IbSignal::Atomic => Some(landing(&resources.context, &nic)?),
        };
        let wakes = signal == IbSignal::Immediate;
        let max_inline = queue_pairs.iter().map(|qp| qp.max_inline() as usize).min().unwrap_or(0).min(INLINE);
        let state = State {
            lanes: queue_pairs.into_iter().map(Lane::new).collect(),
            queue: VecDeque::new(),
            marks: VecDeque::new(),
            marked: 0,
            next_lane: 0,
            unfenced: false,
            flow: wakes.then(Flow::new),
            spent: Vec::new(),
            completions: 0,
        };
        let road = Arc::new(Self {
            peer,
            state: Mutex::new(state),
            completions,
            channel,
            max_message,
            max_inline,
            arrivals: wakes.then(Arrivals::default),
            done: AtomicU64::new(0),
            device: ManuallyDrop::new(OnDevice {
                completion: Completion::new(&resources.context)?,
                stream: Stream::new(&resources.context)?,
                landing,
            }),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            serviced: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            registration: OnceLock::new(),
            control: resources.group.control().clone(),
            nic,
        });
        let registration = resources.data_reactor()?.reserve();
        let watcher: Arc<dyn Watcher> = road.clone();
        road.nic.watch(Arc::downgrade(&watcher));
        registration.serve(road.clone());
        road.registration.get_or_init(|| registration);
        Ok(road)
    }

    /// Why it has failed, if it has.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.failure).as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Takes an operation: makes requests of it, if none waits before it and there is room, for the next doorbell; else, if
    /// fewer than `most` wait, lets it wait as well. False if it was not taken.
    #[inline]
    pub(super) fn give(&self, ask: &Ask<'_>, most: usize) -> Result<bool> {
        let mut state = lock(&self.state);
        let mut done = 0;
        match self.give_now(&mut state, ask, &mut done) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => {
                drop(state);
                return self.fail(&error).map(|()| true);
            }
        }
        let taken = done > 0 || state.queue.len() < most;
        if taken {
            state.queue.push_back(ask.keep(done));
        }
        Ok(taken)
    }

    /// Makes requests of an operation, if none waits before it; false if not all of it has room.
    #[inline]
    fn give_now(&self, state: &mut State, ask: &Ask<'_>, done: &mut u64) -> Result<bool> {
        if !state.queue.is_empty() {
            return Ok(false);
        }
        if self.ask(state, ask, done)? {
            return Ok(true);
        }
        // What has completed makes room.
        self.look(state, true)?;
        self.ask(state, ask, done)
    }

    /// Whether an operation more would be taken.
    pub(super) fn has_room(&self, most: usize) -> bool {
        lock(&self.state).queue.len() < most
    }

    /// A position behind everything so far.
    pub(super) fn mark(&self) -> u64 {
        let mut state = lock(&self.state);
        state.marked += 1;
        let number = state.marked;
        state.queue.push_back(Operation::Mark(number));
        number
    }

    /// Lets what comes later begin only once the work before `event` is done.
    pub(super) fn after(&self, event: &Event) -> Result<()> {
        self.device.stream.wait_event(event)?;
        let reached = Event::new(self.device.stream.context())?;
        reached.record(&self.device.stream)?;
        lock(&self.state).queue.push_back(Operation::After(reached));
        Ok(())
    }

    /// Puts `event` behind the position `mark`.
    pub(super) fn record(&self, event: &Event, mark: u64) -> Result<()> {
        self.device.completion.record(event, mark)?;
        self.device.completion.reach(self.done.load(Ordering::Acquire));
        if self.failed.load(Ordering::Acquire) {
            self.device.completion.release();
        }
        self.serviced.store(true, Ordering::Release);
        self.nudge();
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
                    self.nudge();
                }
                Ok(())
            }
            Err(error) => self.fail(&error),
        }
    }

    /// The owner has gone: the service thread goes on until what was taken is done.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.nudge();
    }

    /// Those who wait for the peer's signals, if these wake anybody.
    pub(super) fn arrivals(&self) -> Option<&Arrivals> {
        self.arrivals.as_ref()
    }

    /// What the NIC was asked and has said.
    pub(super) fn count(&self, counters: &mut ConnectionCounters) {
        let state = lock(&self.state);
        for lane in &state.lanes {
            let QpCounters { requests, doorbells } = lane.queue_pair.counters();
            counters.requests += requests;
            counters.doorbells += doorbells;
        }
        counters.completions += state.completions;
    }

    fn poll(&self) -> Result<()> {
        self.look_and_drop(true).map(drop).or_else(|error| self.fail(&error))
    }

    fn nudge(&self) {
        if let Some(registration) = self.registration.get() {
            registration.nudge();
        }
    }

    /// Takes completions, if asked to or if there is no room without, and posts. Whether operations still wait.
    fn look(&self, state: &mut State, poll: bool) -> Result<bool> {
        self.check()?;
        if poll {
            self.take_completions(state)?;
        }
        if !self.issue(state)? && !poll {
            self.take_completions(state)?;
            self.issue(state)?;
        }
        Ok(!state.queue.is_empty() || state.lanes.iter().any(Lane::has_unposted))
    }

    /// [`look`](Self::look) for a caller of the user's, who drops what is no longer used, outside the lock. The service
    /// thread leaves it: dropping memory may wait for the device, and the last of it ends the communicator.
    fn look_and_drop(&self, poll: bool) -> Result<bool> {
        let mut state = lock(&self.state);
        let outcome = self.look(&mut state, poll);
        let spent = std::mem::take(&mut state.spent);
        drop(state);
        drop(spent);
        outcome
    }

    fn take_completions(&self, state: &mut State) -> Result<()> {
        let (mut failure, mut signals) = (None, false);
        let mut outcome = Ok(());
        let State { lanes, spent, flow, completions, .. } = state;
        let each = |completion: crate::rdma::Completion| {
            let Some(lane) = lanes.iter_mut().find(|l| l.queue_pair.number() == completion.qp_number) else {
                return;
            };
            match (completion.result, &mut *flow) {
                (Ok(done), Some(flow)) if completion.id == RECEIVE => {
                    if outcome.is_ok() {
                        // Posted again first: the peer may be told of it next.
                        let posted = lane.queue_pair.post_receive(RECEIVE, None);
                        outcome =
                            posted.and_then(|()| flow.arrived(done.immediate)).map(|more| signals |= more);
                    }
                }
                (Ok(_), _) => {
                    *completions += 1;
                    lane.complete(completion.id, spent);
                }
                // The first says what happened; others were flushed, receives perhaps before it.
                (Err(why), _) if failure.is_none_or(|known: Failure| known.is_flushed()) => {
                    failure = Some(why)
                }
                (Err(_), _) => {}
            }
        };
        // All that are there: what is left would wake nobody.
        self.completions.poll(usize::MAX, each)?;
        if let Some(arrivals) = self.arrivals.as_ref().filter(|_| signals) {
            arrivals.notify();
        }
        if let Some(why) = failure {
            return Err(why.to_error("connection"));
        }
        outcome?;
        while let Some(mark) = state.marks.front() {
            if !mark.targets.iter().zip(&state.lanes).all(|(target, lane)| lane.done() >= *target) {
                break;
            }
            self.done.store(mark.number, Ordering::Release);
            self.device.completion.reach(mark.number);
            state.marks.pop_front();
        }
        Ok(())
    }

    /// Ends it: everything outstanding is given up, and everybody who waits learns why.
    fn fail(&self, why: &Error) -> Result<()> {
        {
            let mut failure = lock(&self.failure);
            if failure.is_none() {
                let message = format!("the verbs connection to rank {} has failed", self.peer);
                let error = Error::new(why.kind(), "connection", message);
                *failure = Some(error.with_peer(self.peer).with_code(why.code()).with_source(why.clone()));
            }
        }
        if !self.failed.swap(true, Ordering::AcqRel) {
            for lane in &lock(&self.state).lanes {
                if let Err(error) = lane.queue_pair.abort() {
                    log::debug!("a queue pair to rank {} cannot be stopped: {error}", self.peer);
                }
            }
            self.device.completion.release();
            if let Some(arrivals) = &self.arrivals {
                arrivals.notify();
            }
        }
        self.check()
    }
}

impl Pollable for Road {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn progress(&self) -> Next {
        const IDLE: Next = Next::Wait(Interest { read: false, write: false });
        if self.failed.load(Ordering::Acquire) {
            return if self.closing.load(Ordering::Acquire) { Next::Done } else { IDLE };
        }
        // Asked for before looking: what completes after the look makes the channel readable.
        let armed = self.channel.clear().and_then(|_| self.completions.request_event());
        let mut state = lock(&self.state);
        let waits = match armed.and_then(|()| self.look(&mut state, true)) {
            Ok(waits) => waits,
            Err(error) => {
                drop(state);
                // Told to whoever calls next.
                let _ = self.fail(&error);
                return self.progress();
            }
        };
        let idle = state.lanes.iter().all(Lane::is_idle) && !waits;
        let stuck = matches!(state.queue.front(), Some(Operation::After(_)))
            || state.lanes.iter().any(Lane::has_unposted);
        let marked = !state.marks.is_empty();
        drop(state);
        let closing = self.closing.load(Ordering::Acquire);
        if closing && idle {
            return Next::Done;
        }
        // Requests that nobody asked about are not signalled: the last of a connection that ends must be.
        if closing && !waits && !marked {
            self.mark();
            return Next::Again;
        }
        if stuck {
            return Next::Again;
        }
        let served = marked && self.serviced.load(Ordering::Acquire);
        let read = waits || closing || served || self.arrivals.is_some();
        Next::Wait(Interest { read, write: false })
    }

    fn unserved(&self, why: &Error) {
        let _ = self.fail(why);
    }
}

impl Watcher for Road {
    fn heard(&self, event: &AsyncEvent) {
        let concerned = match event.about {
            About::QueuePair(number) => {
                lock(&self.state).lanes.iter().any(|l| l.queue_pair.number() == number)
            }
            About::CompletionQueue(number) => self.completions.number() == number,
            About::Device | About::Port(_) => true,
            About::Other => false,
        };
        if let Some(error) = event.error().filter(|_| concerned) {
            let _ = self.fail(&error);
        }
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        // The queue pairs go first: until then the NIC uses what the requests name.
        let rest = {
            let state = &mut *lock(&self.state);
            let (lanes, queue) = (std::mem::take(&mut state.lanes), std::mem::take(&mut state.queue));
            (lanes, queue, std::mem::take(&mut state.spent))
        };
        // SAFETY: taken once, here, and not used after.
        let device = unsafe { ManuallyDrop::take(&mut self.device) };
        // This is the service thread, most likely. What is dropped may wait for the device, and may be the last that keeps
        // the communicator, which waits for this thread; and there may be no later call that could drop it.
        let rest = Arc::new(Mutex::new(Some((rest, device))));
        let there = rest.clone();
        let clean = move || drop(lock(&there).take());
        if let Err(error) = std::thread::Builder::new().name("aqueduct-drop".into()).spawn(clean) {
            log::warn!(
                "what a connection to rank {} used is kept: no thread can be started: {error}",
                self.peer
            );
            self.control.drop_elsewhere(rest);
        }
    }
}

impl fmt::Debug for Road {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Road").field("peer", &self.peer).finish_non_exhaustive()
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
