//! Deferred cleanup: streams dropped with unfinished work, and memory that such work may still use.
//!
//! Freeing, unmapping and unloading make the driver wait for the device. So that no `Drop` waits, they run only while the context
//! is *quiet*: every stream that this library knows in it is idle. For memory that other devices may use, too, the driver waits
//! for those as well, so it is freed only while their contexts are quiet: with ranks as threads of one process, a kernel of one
//! rank may be waiting for the very thread that drops the memory. Otherwise the cleanup is queued here and runs in a later call:
//! when a stream or buffer is made, a module loaded or a stream synchronised. Queued entries hold the context, so it outlives
//! them; [`Context::new`] finds it again.

use std::ptr;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CUevent, CUstream};

use super::context::{Context, RelaxedCapture};
use super::device::Device;
use super::driver::{Driver, call};
use super::gate::Gate;
use super::keep::KeepAlive;
use super::query::{is_idle, is_reached};
use crate::error::Result;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// The unfinished business of one context. Shared with [`Released::defer`]; each entry holds the context, so a reaper that
/// outlives its context is empty.
#[derive(Default)]
struct Reaper {
    state: Mutex<State>,
    /// Items that graphs held. The driver may add one on a thread of its own: never call the driver under this lock.
    released: Mutex<Vec<Released>>,
    /// Number of entries in `retired`, `disposals` and `released`: looking for work costs one load.
    waiting: AtomicUsize,
}

/// One lock for all lists, so that a stream that may have work is always seen in one of them. Only queries are made
/// under it; nothing is dropped.
#[derive(Default)]
struct State {
    streams: Vec<Watched>,
    retired: Vec<Retired>,
    disposals: Vec<Disposal>,
}

/// The owner of a stream.
pub(super) trait Sweep: Send + Sync {
    /// Drops what the stream retains, if it is idle. The context is current.
    fn sweep(&self);
}

/// A stream in use.
struct Watched {
    raw: CUstream,
    stream: Weak<dyn Sweep>,
}

// SAFETY: `raw` is an opaque handle that the driver accepts on any thread; the rest is Send.
unsafe impl Send for Watched {}

/// A dropped stream whose work was not done.
#[expect(dead_code, reason = "context and kept are held, not read: until the work is done")]
pub(super) struct Retired {
    pub(super) context: Context,
    /// Destroyed when its work is done, if `owned`.
    pub(super) stream: CUstream,
    pub(super) owned: bool,
    /// Queried instead of a stream that is not ours, which its owner may destroy.
    pub(super) event: Option<CUevent>,
    pub(super) kept: Vec<KeepAlive>,
}

// SAFETY: stream and event are opaque handles that the driver accepts on any thread; everything else is Send.
unsafe impl Send for Retired {}

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
    /// may drop the item and its context as soon as it is queued, so only the reaper is held meanwhile.
    pub(super) fn defer(self) {
        let reaper = self.context.slot::<Arc<Reaper>>().clone();
        reaper.waiting.fetch_add(1, Ordering::Relaxed);
        lock(&reaper.released).push(self);
        #[cfg(all(test, not(loom)))]
        tests::queued();
    }
}

struct Disposal {
    #[expect(dead_code, reason = "held, not read: until it has run")]
    context: Context,
    users: Users,
    action: Action,
    then: Option<Box<dyn FnOnce() + Send>>,
}

/// The devices, besides its own, that may be using what is to be freed: their contexts must be quiet, too.
#[derive(Debug)]
pub(super) enum Users {
    /// These devices, each in the context of its driver value. It may name its own device.
    Devices(Vec<Device>),
    /// Every device of the driver value.
    All,
}

impl Users {
    pub(super) const OWN: Self = Self::Devices(Vec::new());
}

/// Something of a layer above that keeps values for the next call of the user's. Drops them; false once it is gone
/// for good.
type Keeper = Arc<dyn Fn() -> bool + Send + Sync>;

/// Keepers that [`Context::reap`] asks besides its own list.
#[derive(Default)]
struct Keepers(Mutex<Vec<Keeper>>);

/// Frees something. Runs once, with the context current, or never.
pub(super) type Action = Box<dyn FnOnce(&Driver) -> Result<()> + Send>;

impl Context {
    /// Drops what idle streams retain and what peers have given back to the communicators of this context, and runs
    /// the cleanup that earlier `Drop`s deferred, as far as that needs no waiting. Never fails and never waits. Calls
    /// that allocate or load do this first.
    pub fn reap(&self) {
        // Called outside the lock: they drop values, which may reap as well.
        let keepers = lock(&self.slot::<Keepers>().0).clone();
        for gone in keepers.iter().filter(|keeper| !keeper()) {
            let same = |keeper: &Keeper| ptr::addr_eq(Arc::as_ptr(keeper), Arc::as_ptr(gone));
            lock(&self.slot::<Keepers>().0).retain(|keeper| !same(keeper));
        }
        if let Ok(_entered) = self.enter() {
            // Sweeping and dropping may take the lock, so they happen outside it.
            let state = lock(&self.slot::<Arc<Reaper>>().state);
            let streams: Vec<_> =
                state.streams.iter().filter_map(|watched| watched.stream.upgrade()).collect();
            drop(state);
            streams.iter().for_each(|stream| stream.sweep());
        }
        self.reap_waiting();
    }

    /// Has [`Context::reap`] call `keeper` as well, until that returns false. It must not hold the context.
    pub(crate) fn reap_also(&self, keeper: impl Fn() -> bool + Send + Sync + 'static) {
        lock(&self.slot::<Keepers>().0).push(Arc::new(keeper));
    }

    /// Runs deferred cleanup: the second half of [`Context::reap`]. Costs one load if there is none.
    pub(super) fn reap_waiting(&self) {
        let reaper = self.slot::<Arc<Reaper>>();
        if reaper.waiting.load(Ordering::Relaxed) == 0 || self.driver().forked() {
            return;
        }
        let released = std::mem::take(&mut *lock(&reaper.released));
        reaper.waiting.fetch_sub(released.len(), Ordering::Relaxed);
        drop(released);
        if self.is_lost() {
            return;
        }
        let Ok(_entered) = self.enter() else { return };
        let done = lock(&reaper.state).take_done(self);
        reaper.waiting.fetch_sub(done.len(), Ordering::Relaxed);
        // Dropping what was kept may dispose of memory, which takes the lock.
        for retired in done {
            retired.release(self.driver());
        }
        // The other contexts have locks of their own, so they are asked outside this one.
        let disposals = lock(&reaper.state).take_disposals(self);
        let early: Vec<_> = disposals
            .into_iter()
            .filter_map(|disposal| {
                let early = self.run_if_quiet(disposal);
                if early.is_none() {
                    reaper.waiting.fetch_sub(1, Ordering::Relaxed);
                }
                early
            })
            .collect();
        lock(&reaper.state).disposals.extend(early);
    }

    /// Number of items whose cleanup waits for work to finish.
    #[doc(hidden)]
    pub fn unreaped(&self) -> usize {
        self.slot::<Arc<Reaper>>().waiting.load(Ordering::Relaxed)
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

    /// Runs `action` now if the context and those of `users` are quiet, otherwise later. For `Drop`: never waits, never
    /// fails.
    pub(super) fn dispose(&self, users: Users, action: Action) {
        self.dispose_of(Disposal { context: self.clone(), users, action, then: None });
    }

    /// Calls `then` once nothing that this library knows of runs on any device: now, or in a later call. For `Drop`: never waits,
    /// never fails.
    pub(crate) fn once_quiet(&self, then: impl FnOnce() + Send + 'static) {
        let action = move |_: &Driver| {
            then();
            Ok(())
        };
        self.dispose(Users::All, Box::new(action));
    }

    /// As [`Context::dispose`], and runs `then` after `action` has succeeded.
    pub(super) fn dispose_then(&self, users: Users, action: Action, then: Box<dyn FnOnce() + Send>) {
        self.dispose_of(Disposal { context: self.clone(), users, action, then: Some(then) });
    }

    fn dispose_of(&self, disposal: Disposal) {
        if self.driver().forked() {
            // The parent process owns it; the handle means nothing in the child.
            std::mem::forget(disposal);
            return;
        }
        if self.is_lost() {
            log::warn!("device {}: leaking memory of a lost context", self.device().ordinal());
            std::mem::forget(disposal.action);
            return;
        }
        if let Some(early) = self.run_if_quiet(disposal) {
            let reaper = self.slot::<Arc<Reaper>>();
            reaper.waiting.fetch_add(1, Ordering::Relaxed);
            lock(&reaper.state).disposals.push(early);
        }
    }

    /// Runs the disposal if this context and those of its users are quiet, and keeps others from enqueuing anything there
    /// until it has run; otherwise returns it.
    fn run_if_quiet(&self, disposal: Disposal) -> Option<Disposal> {
        let Ok(_entered) = self.enter() else { return Some(disposal) };
        let mut contexts: Vec<Self> = match &disposal.users {
            Users::Devices(devices) => devices.iter().filter_map(Self::existing).collect(),
            Users::All => Self::all(self.driver()),
        };
        contexts.retain(|context| context != self);
        contexts.push(self.clone());
        let gates: Option<Vec<_>> =
            contexts.iter().map(|context| context.slot::<Gate>().try_free()).collect();
        if gates.is_none() || !contexts.iter().all(Self::is_quiet) {
            return Some(disposal);
        }
        self.run(disposal.action, disposal.then);
        None
    }

    /// Whether nothing this library knows of runs in the context.
    fn is_quiet(&self) -> bool {
        let Ok(_entered) = self.enter() else { return false };
        self.is_lost() || lock(&self.slot::<Arc<Reaper>>().state).is_quiet(self)
    }

    /// Counts the work of `stream` when judging whether the context is quiet.
    pub(super) fn watch(&self, raw: CUstream, stream: Weak<dyn Sweep>) {
        lock(&self.slot::<Arc<Reaper>>().state).streams.push(Watched { raw, stream });
    }

    /// Ends [`Context::watch`]. `retired` is the same stream, if it still has work: it is cleaned up later.
    pub(super) fn unwatch(&self, stream: &dyn Sweep, retired: Option<Retired>) {
        let reaper = self.slot::<Arc<Reaper>>();
        let mut state = lock(&reaper.state);
        let known = |watched: &Watched| ptr::addr_eq(watched.stream.as_ptr(), stream);
        if let Some(at) = state.streams.iter().position(known) {
            state.streams.swap_remove(at);
        }
        if let Some(retired) = retired {
            reaper.waiting.fetch_add(1, Ordering::Relaxed);
            state.retired.push(retired);
        }
    }

    /// Queues a stream that was never watched for cleanup.
    pub(super) fn retire(&self, retired: Retired) {
        let reaper = self.slot::<Arc<Reaper>>();
        reaper.waiting.fetch_add(1, Ordering::Relaxed);
        lock(&reaper.state).retired.push(retired);
    }

    /// Calls `f` for each dropped stream whose work was not done at the last look: with its handle, if it is ours, or an event behind its
    /// work. Both are valid during the call only.
    pub(super) fn each_retired(
        &self,
        mut f: impl FnMut(CUstream, Option<CUevent>) -> Result<()>,
    ) -> Result<()> {
        let _entered = self.enter()?;
        // Locked throughout: nobody destroys an event or a stream of the list meanwhile.
        let state = lock(&self.slot::<Arc<Reaper>>().state);
        state.retired.iter().try_for_each(|retired| f(retired.stream, retired.event))
    }

    fn run(&self, action: Action, then: Option<Box<dyn FnOnce() + Send>>) {
        let driver = self.driver();
        let relaxed = RelaxedCapture::new(driver);
        let result = self.noted(action(driver));
        drop(relaxed);
        if let (Ok(()), Some(then)) = (&result, then) {
            then();
        }
        driver.note_drop(result);
    }
}

impl State {
    /// Whether nothing this library knows of runs in the context, which is current.
    fn is_quiet(&mut self, context: &Context) -> bool {
        self.retired.is_empty()
            && self.streams.iter().all(|stream| is_idle(context.driver(), stream.raw).unwrap_or(false))
    }

    fn take_done(&mut self, context: &Context) -> Vec<Retired> {
        let mut done = Vec::new();
        let mut at = 0;
        while let Some(retired) = self.retired.get(at) {
            match retired.is_done(context.driver()) {
                Ok(false) => at += 1,
                Ok(true) => done.push(self.retired.swap_remove(at)),
                Err(error) => {
                    log::error!("leaking what unfinished work used: {}", context.note(error));
                    std::mem::forget(self.retired.swap_remove(at));
                    context.slot::<Arc<Reaper>>().waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        done
    }

    /// Takes what can be freed as far as this context is concerned.
    fn take_disposals(&mut self, context: &Context) -> Vec<Disposal> {
        if self.is_quiet(context) { std::mem::take(&mut self.disposals) } else { Vec::new() }
    }
}

impl Retired {
    fn is_done(&self, driver: &Driver) -> Result<bool> {
        match self.event {
            None => is_idle(driver, self.stream),
            Some(event) => is_reached(driver, event),
        }
    }

    fn release(self, driver: &Driver) {
        if let Some(event) = self.event {
            // SAFETY: made when the stream was dropped, destroyed here once.
            driver.note_drop(unsafe { call!(driver, cuEventDestroy_v2(event)) });
        }
        if self.owned {
            // SAFETY: the stream's owner is gone and gave it to us; it is idle; destroyed here once.
            driver.note_drop(unsafe { call!(driver, cuStreamDestroy_v2(self.stream)) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::thread::{self, ThreadId};

    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::error::Error;
    use crate::gpu::Hooks;

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

    /// Memory that could not be closed is still there for whoever waits until it is not.
    #[test]
    fn nothing_follows_an_action_that_fails() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let followed = Arc::new(AtomicUsize::new(0));
        let dispose = |outcome: Result<()>| {
            let count = followed.clone();
            let then = move || _ = count.fetch_add(1, Ordering::Relaxed);
            context.dispose_then(Users::OWN, Box::new(move |_| outcome), Box::new(then));
            context.settle();
            followed.load(Ordering::Relaxed)
        };
        assert_eq!(dispose(Err(Error::usage("test", "on purpose"))), 0);
        assert_eq!(dispose(Ok(())), 1);
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
}
