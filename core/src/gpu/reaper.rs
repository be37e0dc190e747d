//! Deferred cleanup: streams dropped with unfinished work, and what such work may still use.
//!
//! A `Drop` that would have to wait leaves its item behind, and a later call cleans it up: one that makes a stream or buffer, loads a
//! module or synchronises a stream. Such a call looks after all contexts of its driver value, and after those of other values where
//! something waits for work in these: whoever dropped the last handle of such a context calls no more. Items hold their context, so it outlives them; [`Context::new`] finds it again.

use std::ptr;
use std::sync::Arc;

use super::context::Context;
use super::keep::KeepAlive;
use super::waiting::waiting_for;
use crate::sync::{Mutex, lock};

/// Items of one context that graphs held. The driver may add one on a thread of its own: never call the driver under this lock.
#[derive(Default)]
struct ReleasedItems(Mutex<Vec<Released>>);

/// An item that a graph held, and the context it belongs to, which therefore outlives it.
pub(super) struct Released {
    context: Context,
    #[expect(dead_code, reason = "held, not read: until the graph and its launches are gone")]
    what: KeepAlive,
}

impl Released {
    pub(super) fn new(context: &Context, what: KeepAlive) -> Self {
        Self { context: context.clone(), what }
    }

    /// Queues the item for the next [`Context::reap`]. Neither calls the driver nor drops anything that does: another thread
    /// may drop the item and its context as soon as it is queued, so only the queue is held meanwhile.
    pub(super) fn defer(self) {
        let queue = self.context.slot::<Arc<ReleasedItems>>().clone();
        self.context.begin_waiting();
        lock(&queue.0).push(self);
        #[cfg(all(test, not(loom)))]
        tests::queued();
    }
}

/// Something of a layer above that keeps values for the next call of the user's. Drops them; false once it is gone
/// for good.
type Keeper = Arc<dyn Fn() -> bool + Send + Sync>;

/// Keepers that [`Context::reap`] asks besides its own list.
#[derive(Default)]
struct Keepers(Mutex<Vec<Keeper>>);

impl Context {
    /// Drops what idle streams retain and what peers have given back to the communicators of this context, and runs
    /// the cleanup that earlier `Drop`s deferred in any context of this driver value, as far as that needs no waiting.
    /// Never fails and never waits. Calls that allocate or load do this first.
    pub fn reap(&self) {
        // Called outside the lock: they drop values, which may reap as well.
        let keepers = lock(&self.slot::<Keepers>().0).clone();
        for gone in keepers.iter().filter(|keeper| !keeper()) {
            let same = |keeper: &Keeper| ptr::addr_eq(Arc::as_ptr(keeper), Arc::as_ptr(gone));
            lock(&self.slot::<Keepers>().0).retain(|keeper| !same(keeper));
        }
        if let Ok(_entered) = self.enter() {
            self.sweep_streams();
        }
        self.reap_waiting();
    }

    /// Has [`Context::reap`] call `keeper` as well, until that returns false. It must not hold the context.
    pub(crate) fn reap_also(&self, keeper: impl Fn() -> bool + Send + Sync + 'static) {
        lock(&self.slot::<Keepers>().0).push(Arc::new(keeper));
    }

    /// Runs deferred cleanup: the second half of [`Context::reap`]. Costs one load if there is none.
    pub(crate) fn reap_waiting(&self) {
        let mut contexts = waiting_for(self.driver());
        contexts.retain(|context| !context.driver().forked());
        for context in &contexts {
            context.drop_released();
            if !context.is_lost() {
                context.release_retired();
            }
        }
        // Only now: work that was still under way when the first contexts were asked may have been done for the last ones.
        contexts.iter().for_each(Self::run_disposals);
    }

    fn drop_released(&self) {
        let released = std::mem::take(&mut *lock(&self.slot::<Arc<ReleasedItems>>().0));
        let count = released.len();
        drop(released);
        self.end_waiting(count);
    }

    /// Cleans up until nothing waits: a test that ended earlier would leak it.
    #[cfg(test)]
    pub(crate) fn settle(&self) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.unreaped() != 0 {
            assert!(std::time::Instant::now() < end, "{} items still wait for work", self.unreaped());
            self.reap();
            std::thread::yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::thread::{self, ThreadId};

    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::gpu::{Device, Driver, Hooks};
    use crate::sync::{AtomicUsize, Ordering};

    thread_local! {
        static QUEUED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Runs what a test wants to happen when an item has been queued, before its callback returns.
    pub(super) fn queued() {
        if let Some(then) = QUEUED.take() {
            then();
        }
    }

    /// The threads that called the driver to release a context.
    #[derive(Default)]
    struct Releases(Mutex<Vec<ThreadId>>);

    impl Hooks for Releases {
        fn before(&self, function: &'static str) -> Option<CUresult> {
            if function == "cuDevicePrimaryCtxRelease_v2" {
                lock(&self.0).push(thread::current().id());
            }
            None
        }
    }

    #[test]
    fn a_callback_whose_item_is_dropped_at_once_does_not_release_the_context() {
        let releases = Arc::new(Releases::default());
        let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(releases.clone());
        let device = Device::new(&driver, 0).unwrap();
        let context = Context::new(&device).unwrap();
        let released = Released::new(&context, Arc::new(()));
        drop(context);
        let reaping = device.clone();
        QUEUED.set(Some(Box::new(move || {
            let reap = move || {
                let context = Context::existing(&reaping).expect("the item holds it");
                context.reap();
                let reaper = thread::current().id();
                drop(context);
                reaper
            };
            thread::spawn(reap).join().unwrap();
        })));
        released.defer();
        let releases = lock(&releases.0);
        assert!(releases.len() == 1 && releases[0] != thread::current().id(), "{releases:?}");
        assert!(Context::existing(&device).is_none());
    }

    /// It drops values of the user's, whose own drops may reap.
    #[test]
    fn a_keeper_may_reap_and_is_forgotten_once_it_is_gone() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let context = Context::new(&device).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        context.reap_also(move || {
            let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            if first {
                Context::existing(&device).expect("it is being reaped").reap();
            }
            first
        });
        let (done, reaped) = std::sync::mpsc::channel();
        thread::spawn(move || {
            (0..3).for_each(|_| context.reap());
            done.send(()).unwrap();
        });
        let reaped = reaped.recv_timeout(std::time::Duration::from_secs(20));
        assert!(reaped.is_ok(), "it waits for a lock of the thread that it runs on");
        assert_eq!(calls.load(Ordering::Relaxed), 2, "the second call said that it is gone");
    }

    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// They are its parent's.
    #[test]
    fn a_forked_child_drops_none_of_the_items_that_wait() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        Released::new(&context, Arc::new(Dropped(dropped.clone()))).defer();
        // SAFETY: the child takes only locks that no other thread knows, allocates (glibc allows it after fork), and leaves with
        // _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            context.reap();
            let code = 7 + i32::try_from(dropped.load(Ordering::Relaxed)).unwrap_or(1);
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours and `status` is a live output.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7, "the child dropped what its parent keeps");
        context.reap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
