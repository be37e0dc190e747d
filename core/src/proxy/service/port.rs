//! What callers, kernels and proxies share about each semaphore: words, counters, and why it failed.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::{AbortHandle, Fifo};

use super::ProxyService;
use super::registry::SemaphoreId;
use crate::comm::{AbortReport, Host2DeviceSemaphore, RegisteredMemory};
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice, KeepAlive};
use crate::proxy::words::Words;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// What was done for the channels of a semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Puts.
    pub puts: u64,
    /// Bytes of all puts.
    pub bytes: u64,
    /// Signals.
    pub signals: u64,
    /// Flushes that were asked for.
    pub flushes: u64,
}

/// Every semaphore's state, by its number.
pub(super) struct Ports {
    words: Arc<Words>,
    states: Vec<State>,
    deferred: AtomicU64,
    dropped: AtomicU64,
    /// Numbers that nothing under way speaks of any more.
    retired: Mutex<Vec<u16>>,
}

#[derive(Default)]
struct State {
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    puts: AtomicU64,
    bytes: AtomicU64,
    signals: AtomicU64,
    flushes: AtomicU64,
}

impl Ports {
    pub(super) fn new(context: &Context, rank: u32, count: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            words: Words::new(context, rank, count)?,
            states: (0..count).map(|_| State::default()).collect(),
            deferred: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            retired: Mutex::new(Vec::new()),
        }))
    }

    /// Whether there may be a semaphore of this number.
    pub(super) fn exists(&self, id: SemaphoreId) -> bool {
        usize::from(id.0) < self.words.slots()
    }

    /// A semaphore is new.
    pub(super) fn open(&self, id: SemaphoreId) {
        let State { failed, failure, puts, bytes, signals, flushes } = self.state(id);
        *lock(failure) = None;
        failed.store(false, Ordering::Release);
        [puts, bytes, signals, flushes].into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        self.words.reset(usize::from(id.0));
    }

    /// Tells everybody who waits for it to leave: the reason first, then the kernels.
    pub(super) fn fail(&self, id: SemaphoreId, error: &Error) {
        let state = self.state(id);
        lock(&state.failure).get_or_insert_with(|| error.clone());
        state.failed.store(true, Ordering::Release);
        self.words.raise(usize::from(id.0));
    }

    pub(super) fn check(&self, id: SemaphoreId) -> Result<()> {
        let state = self.state(id);
        if !state.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(lock(&state.failure)
            .as_ref()
            .map_or_else(|| super::registry::unknown_semaphore(id), Error::clone))
    }

    /// Nothing under way speaks of this number any more.
    pub(super) fn retire(&self, id: SemaphoreId) {
        lock(&self.retired).push(id.0);
    }

    pub(super) fn take_retired(&self) -> Vec<u16> {
        std::mem::take(&mut lock(&self.retired))
    }

    pub(super) fn set_flushed(&self, id: SemaphoreId, position: u64) {
        self.words.set_flushed(usize::from(id.0), position);
    }

    pub(super) fn flushed_slice(&self, id: SemaphoreId) -> Result<DeviceSlice> {
        self.words.flushed_slice(usize::from(id.0))
    }

    pub(super) fn count_put(&self, id: SemaphoreId, bytes: u64) {
        let state = self.state(id);
        add(&state.puts, 1);
        add(&state.bytes, bytes);
    }

    pub(super) fn count_signal(&self, id: SemaphoreId) {
        add(&self.state(id).signals, 1);
    }

    pub(super) fn count_flush(&self, id: SemaphoreId) {
        add(&self.state(id).flushes, 1);
    }

    pub(super) fn count_deferred(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn deferred(&self) -> u64 {
        self.deferred.load(Ordering::Relaxed)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn counters(&self, id: SemaphoreId) -> PortCounters {
        let State { puts, bytes, signals, flushes, .. } = self.state(id);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PortCounters { puts: load(puts), bytes: load(bytes), signals: load(signals), flushes: load(flushes) }
    }

    pub(super) fn abort_report(&self) -> Option<AbortReport> {
        self.words.record().map(AbortReport::from)
    }

    /// Where kernels that wait for it learn that they must leave.
    pub(super) fn abort_handle(&self, id: SemaphoreId) -> AbortHandle {
        self.words.handle(usize::from(id.0))
    }

    /// Where kernels read how far its flushes have come.
    pub(super) fn flushed_ptr(&self, id: SemaphoreId) -> u64 {
        self.words.flushed_ptr(usize::from(id.0))
    }

    /// What keeps both there.
    pub(super) fn keep_alive(&self) -> KeepAlive {
        self.words.keep_alive()
    }

    fn state(&self, id: SemaphoreId) -> &State {
        &self.states[usize::from(id.0)]
    }
}

/// A semaphore has one proxy, which alone counts.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ports").field("words", &self.words).finish_non_exhaustive()
    }
}

/// What a port channel needs of a service. Keeps all of it alive.
#[derive(Debug)]
pub(crate) struct Port {
    pub(super) service: ProxyService,
    pub(super) id: SemaphoreId,
    pub(crate) semaphore: Host2DeviceSemaphore,
    pub(crate) dst: RegisteredMemory,
    pub(crate) src: RegisteredMemory,
    pub(crate) fifo: Fifo,
    pub(crate) abort: AbortHandle,
    pub(crate) flushed: u64,
    pub(super) _keep: [KeepAlive; 3],
}

impl Port {
    pub(crate) fn service(&self) -> &ProxyService {
        &self.service
    }

    pub(crate) fn id(&self) -> SemaphoreId {
        self.id
    }

    /// `Ok` while what is pushed for it is served.
    pub(crate) fn check(&self) -> Result<()> {
        self.service.check(self.id)
    }
}
