//! State of each semaphore of a service, shared by callers, kernels and proxies: words, counters, and the failure.

use std::fmt;
use std::sync::Arc;

use aqueduct_ptx::abi::AbortHandle;

use super::ids::SemaphoreId;
use super::numbers::Number;
use crate::comm::AbortReport;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::gpu::{Context, DeviceSlice, KeepAlive};
use crate::proxy::words::Words;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Counts of the work for one semaphore.
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
}

#[derive(Default)]
struct State {
    /// Of the semaphore that has the number now; streams that wait for kernels of an earlier one keep the earlier one's.
    failure: Mutex<Arc<Failure>>,
    number: Mutex<Option<Arc<Number>>>,
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
        }))
    }

    /// Whether there may be a semaphore of this number.
    pub(super) fn exists(&self, id: SemaphoreId) -> bool {
        usize::from(id.0) < self.words.slots()
    }

    /// Clears the state for a new semaphore, and keeps its number until [`retire`](Self::retire).
    pub(super) fn open(&self, id: SemaphoreId, number: Arc<Number>) {
        let State { failure, number: kept, puts, bytes, signals, flushes } = self.state(id);
        *lock(failure) = Arc::default();
        *lock(kept) = Some(number);
        [puts, bytes, signals, flushes].into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        self.words.reset(usize::from(id.0));
    }

    /// Tells waiting kernels to leave, after the reason has been stored for their callers.
    pub(super) fn fail(&self, id: SemaphoreId, error: &Error) {
        self.failure(id).set(error.clone());
        self.words.raise(usize::from(id.0));
    }

    pub(super) fn check(&self, id: SemaphoreId) -> Result<()> {
        self.failure(id).check()
    }

    /// The failure of the semaphore that has the number now.
    pub(super) fn failure(&self, id: SemaphoreId) -> Arc<Failure> {
        lock(&self.state(id).failure).clone()
    }

    /// The number, for a channel of the semaphore that has it now.
    pub(super) fn number(&self, id: SemaphoreId) -> Option<Arc<Number>> {
        lock(&self.state(id).number).clone()
    }

    /// Gives up the number of a removed semaphore: no request under way refers to it any more.
    pub(super) fn retire(&self, id: SemaphoreId) {
        let number = lock(&self.state(id).number).take();
        // Outside the lock: it may be the last to hold it.
        drop(number);
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

    /// The abort handle of kernels that wait for it.
    pub(super) fn abort_handle(&self, id: SemaphoreId) -> AbortHandle {
        self.words.handle(usize::from(id.0))
    }

    /// Address of its flushed position, for kernels.
    pub(super) fn flushed_ptr(&self, id: SemaphoreId) -> u64 {
        self.words.flushed_ptr(usize::from(id.0))
    }

    /// Keeps both alive.
    pub(super) fn keep_alive(&self) -> KeepAlive {
        self.words.keep_alive()
    }

    fn state(&self, id: SemaphoreId) -> &State {
        &self.states[usize::from(id.0)]
    }
}

/// Adds to a counter that only one thread, the semaphore's proxy, writes.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ports").field("words", &self.words).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::gpu::{Device, Driver};
    use crate::proxy::service::numbers::Numbers;
    use crate::proxy::words::tests::once_raised;

    #[test]
    fn each_semaphore_has_counters_of_its_own_and_a_number_below_the_limit() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let ports = Ports::new(&context, 0, 2).unwrap();
        let [first, second, beyond] = [0, 1, 2].map(SemaphoreId);
        assert!(ports.exists(first) && ports.exists(second) && !ports.exists(beyond));
        [8, 24].into_iter().for_each(|bytes| ports.count_put(first, bytes));
        (0..3).for_each(|_| ports.count_signal(first));
        (0..4).for_each(|_| ports.count_flush(first));
        let counted = PortCounters { puts: 2, bytes: 32, signals: 3, flushes: 4 };
        assert_eq!((ports.counters(first), ports.counters(second)), (counted, PortCounters::default()));
        ports.open(first, Numbers::new(&context, 1).take(0..0).unwrap());
        assert_eq!(ports.counters(first), PortCounters::default(), "its next user begins anew");
        (0..2).for_each(|_| ports.count_deferred());
        ports.count_dropped(3);
        assert_eq!((ports.deferred(), ports.dropped()), (2, 3));
    }

    #[test]
    fn the_reason_is_there_when_kernels_are_told() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let (ports, id) = (Ports::new(&context, 0, 1).unwrap(), SemaphoreId(0));
        let ((tell, told), asked) = (std::sync::mpsc::channel(), ports.clone());
        once_raised(move || {
            let _ = tell.send(asked.check(id));
        });
        ports.fail(id, &Error::usage("x", "on purpose"));
        let reason = told.try_recv().expect("kernels are told").unwrap_err();
        assert_eq!(reason.message(), "on purpose");
    }
}
