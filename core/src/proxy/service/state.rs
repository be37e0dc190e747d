//! State of each semaphore of a service, shared by callers, kernels and proxies: words, counters, and the failure.

use std::fmt;
use std::sync::{Arc, Weak};

use aqueduct_ptx::abi::AbortHandle;

use super::ids::SemaphoreId;
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
    context: Context,
    words: Arc<Words>,
    /// Numbers of removed semaphores that are free. Dropped before the states, whose numbers are then of no use.
    retired: Arc<Mutex<Vec<u16>>>,
    states: Vec<State>,
    deferred: AtomicU64,
    dropped: AtomicU64,
}

/// A number in use: by its semaphore, by requests under way, and by channels, which streams and graphs keep as long as kernels
/// of theirs may run. Once all of them have gone and nothing runs on any device, the number is free: no kernel can take the words
/// and requests of its next user for those of its own channel.
#[derive(Debug)]
pub(super) struct Number {
    id: SemaphoreId,
    context: Context,
    retired: Weak<Mutex<Vec<u16>>>,
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(retired) = self.retired.upgrade() {
            let id = self.id;
            self.context.once_quiet(move || lock(&retired).push(id.0));
        }
    }
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
            context: context.clone(),
            words: Words::new(context, rank, count)?,
            retired: Arc::default(),
            states: (0..count).map(|_| State::default()).collect(),
            deferred: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }))
    }

    /// Whether there may be a semaphore of this number.
    pub(super) fn exists(&self, id: SemaphoreId) -> bool {
        usize::from(id.0) < self.words.slots()
    }

    /// Clears the state for a new semaphore.
    pub(super) fn open(&self, id: SemaphoreId) {
        let State { failure, number, puts, bytes, signals, flushes } = self.state(id);
        *lock(failure) = Arc::default();
        let (context, retired) = (self.context.clone(), Arc::downgrade(&self.retired));
        *lock(number) = Some(Arc::new(Number { id, context, retired }));
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

    /// Frees the numbers of removed semaphores whose kernels have ended meanwhile.
    pub(super) fn reap(&self) {
        self.context.reap();
    }

    /// Takes the numbers that are free.
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
    use std::time::Duration;

    use super::*;
    use crate::deadline::Deadline;
    use crate::gpu::{Device, Driver, PinnedBuffer, Stream};

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
        ports.open(first);
        assert_eq!(ports.counters(first), PortCounters::default(), "its next user begins anew");
        (0..2).for_each(|_| ports.count_deferred());
        ports.count_dropped(3);
        assert_eq!((ports.deferred(), ports.dropped()), (2, 3));
    }

    /// A kernel of a stream that is busy may still look at the words.
    #[test]
    fn a_number_is_free_only_once_the_device_is_quiet() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let ports = Ports::new(&context, 0, 2).unwrap();
        let (stream, gate) =
            (Stream::new(&context).unwrap(), Arc::new(PinnedBuffer::new(&context, 8).unwrap()));
        stream.wait_value64(&gate.slice(..).unwrap(), 1).unwrap();
        let id = SemaphoreId(1);
        ports.open(id);
        let channel = ports.number(id).unwrap();
        ports.retire(id);
        assert!(ports.number(id).is_none());
        drop(channel);
        context.reap();
        let early = ports.take_retired();
        gate.memory().word64(0).unwrap().store(1, Ordering::Release);
        stream.synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
        assert!(early.is_empty(), "a kernel may look at its words");
        context.settle();
        assert_eq!(ports.take_retired(), [id.0]);
        ports.open(id);
        let channel = ports.number(id).unwrap();
        ports.retire(id);
        context.settle();
        assert_eq!(ports.take_retired(), [0; 0], "a channel has it");
        drop(channel);
        context.settle();
        assert_eq!(ports.take_retired(), [id.0]);
    }
}
