//! State that the threads of one messenger share: peers with work, sleeping threads, and buffers to use again.

use std::sync::{Arc, Weak};

use super::alarm::Alarm;
use super::config::Limits;
use super::departures::Departures;
use super::exposed::Exposures;
use super::lives::Lives;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::fork::Creator;
use crate::sync::{AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, lock};

/// Buffers of messages that are kept for the next ones.
const MAX_SPARE: usize = 256;

/// Shared state, over the type `P` of a peer.
pub(super) struct Hub<P> {
    pub(super) limits: Limits,
    /// For threads that sleep until there is something to do.
    pub(super) alarm: Alarm,
    /// Peers with something that the next progress has to do: to send, to read on.
    dirty: Mutex<Vec<Arc<P>>>,
    /// Whether there are dirty peers, so that idle rounds take no lock. Written with the list locked.
    has_dirty: AtomicBool,
    /// Peers with something to dispatch.
    ready: Mutex<std::collections::VecDeque<Arc<P>>>,
    /// As `has_dirty`.
    has_ready: AtomicBool,
    /// Peers whose end waits to be dispatched.
    pub(super) departures: Departures<P>,
    /// Messages that were added to queues so far. Written by the thread whose turn it is.
    queued: AtomicU64,
    /// How often there was room for a send that had been refused.
    rooms: AtomicU64,
    spare: Mutex<Vec<Vec<u8>>>,
    /// Peers with operations that have a deadline.
    timed: Mutex<Vec<Arc<P>>>,
    pub(super) exposures: Arc<Exposures>,
    engine: OnceLock<Weak<dyn Progress<P>>>,
    pub(super) lives: Lives,
    generation: u64,
    /// The messenger is being closed: nobody waits for room any more.
    closing: AtomicBool,
    /// The messenger was closed: no message is dispatched any more.
    closed: AtomicBool,
    creator: Creator,
}

/// The engine as the handles of peers see it.
pub(super) trait Progress<P>: Send + Sync {
    /// Moves bytes; returns how much has happened.
    fn progress(&self) -> Result<usize>;

    /// Says goodbye to `peer` after what was sent, and ends it.
    fn close(&self, peer: &Arc<P>, deadline: Deadline) -> Result<()>;

    /// Ends `peer` if sending to it has failed. The caller holds no lock of it.
    fn end_if_broken(&self, peer: &Arc<P>);
}

impl<P> Hub<P> {
    pub(super) fn new(limits: Limits, generation: u64) -> Result<Self> {
        Ok(Self {
            limits,
            alarm: Alarm::new()?,
            dirty: Mutex::default(),
            has_dirty: AtomicBool::new(false),
            ready: Mutex::default(),
            has_ready: AtomicBool::new(false),
            departures: Departures::default(),
            queued: AtomicU64::new(0),
            rooms: AtomicU64::new(0),
            spare: Mutex::default(),
            timed: Mutex::default(),
            exposures: Arc::new(Exposures::new(generation)),
            engine: OnceLock::default(),
            lives: Lives::default(),
            generation,
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            creator: Creator::current(),
        })
    }

    pub(super) fn set_engine(&self, engine: Weak<dyn Progress<P>>) {
        let _ = self.engine.set(engine);
    }

    pub(super) fn engine(&self) -> Option<Arc<dyn Progress<P>>> {
        self.engine.get()?.upgrade()
    }

    /// Notes that the messenger is being closed.
    pub(super) fn begin_close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Notes that the messenger was closed.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// An error in a forked child, which would speak in its parent's name.
    #[inline]
    pub(super) fn check_process(&self, op: &'static str) -> Result<()> {
        if self.creator.forked() {
            return Err(Error::usage(
                op,
                "a messenger does not survive fork; make one after the fork, or exec",
            ));
        }
        Ok(())
    }

    pub(super) fn forked(&self) -> bool {
        self.creator.forked()
    }

    /// Has the next progress look after `peer`; wakes whoever sleeps.
    pub(super) fn add_dirty(&self, peer: Arc<P>) {
        let mut dirty = lock(&self.dirty);
        // Nobody would take it from the list, and it holds this hub.
        if self.is_closed() {
            return;
        }
        dirty.push(peer);
        self.has_dirty.store(true, Ordering::Release);
        drop(dirty);
        self.alarm.wake();
    }

    /// Whether there are dirty peers. A peer that was added before the caller fell asleep shows.
    #[inline]
    pub(super) fn has_dirty(&self) -> bool {
        self.has_dirty.load(Ordering::Acquire)
    }

    /// Moves the dirty peers to `into`.
    pub(super) fn take_dirty(&self, into: &mut Vec<Arc<P>>) {
        if self.has_dirty() {
            let mut dirty = lock(&self.dirty);
            self.has_dirty.store(false, Ordering::Relaxed);
            into.append(&mut dirty);
        }
    }

    /// Has `peer` dispatched; wakes whoever sleeps.
    pub(super) fn add_ready(&self, peer: Arc<P>) {
        let mut ready = lock(&self.ready);
        ready.push_back(peer);
        self.has_ready.store(true, Ordering::Release);
        drop(ready);
        self.alarm.wake();
    }

    pub(super) fn take_ready(&self) -> Option<Arc<P>> {
        if !self.has_ready() {
            return None;
        }
        let mut ready = lock(&self.ready);
        let first = ready.pop_front();
        self.has_ready.store(!ready.is_empty(), Ordering::Relaxed);
        first
    }

    /// Whether a peer has something to dispatch. A peer that was added before the caller fell asleep shows.
    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        self.has_ready.load(Ordering::Acquire)
    }

    /// Notes that a message was added to a queue; wakes whoever sleeps. Called by the thread whose turn it is.
    pub(super) fn note_queued(&self) {
        self.queued.store(self.queued.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.alarm.wake();
    }

    /// Notes that there is room for a send that was refused; wakes whoever sleeps. Any thread may call it.
    #[cold]
    pub(super) fn note_room(&self) {
        self.rooms.fetch_add(1, Ordering::AcqRel);
        self.alarm.wake();
    }

    /// The messenger, and a number that changes with each message that is added to its queues and each room that is found. What was
    /// noted before the caller fell asleep shows.
    pub(super) fn news(&self) -> (u64, u64) {
        let news = self.queued.load(Ordering::Acquire).wrapping_add(self.rooms.load(Ordering::Acquire));
        (self.generation, news)
    }

    /// Has progress look at the deadlines of `peer`; wakes whoever sleeps longer than that.
    pub(super) fn add_timed(&self, peer: Arc<P>) {
        let mut timed = lock(&self.timed);
        // As in the list of dirty peers.
        if self.is_closed() {
            return;
        }
        timed.push(peer);
        drop(timed);
        self.alarm.wake();
    }

    /// Moves the peers with deadlines to `into`.
    pub(super) fn take_timed(&self, into: &mut Vec<Arc<P>>) {
        into.append(&mut lock(&self.timed));
    }

    /// A copy of `bytes` in a buffer that is used again.
    pub(super) fn copy(&self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = lock(&self.spare).pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        if (1..=super::config::MAX_EAGER).contains(&buffer.capacity()) {
            let mut spare = lock(&self.spare);
            if spare.len() < MAX_SPARE {
                spare.push(buffer);
            }
        }
    }

    /// Forgets who has something to send or to wait for: nobody will do it.
    pub(super) fn clear(&self) {
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        let timed = std::mem::take(&mut *lock(&self.timed));
        drop((dirty, timed));
    }
}

impl<P> std::fmt::Debug for Hub<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("limits", &self.limits).finish_non_exhaustive()
    }
}
