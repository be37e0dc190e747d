//! Freeing without waiting.
//!
//! Freeing, unmapping and unloading make the driver wait for the device. So that no `Drop` waits, they run only while the context
//! is *quiet*: every stream that this library knows in it is idle. For memory that other devices may use, too, the driver waits
//! for those as well, so it is freed only while their contexts are quiet: with ranks as threads of one process, a kernel of one
//! rank may be waiting for the very thread that drops the memory. Otherwise it is queued here, for [`Context::reap`].

use std::sync::Arc;

use super::context::{Context, ThreadCaptureMode};
use super::device::Device;
use super::driver::Driver;
use super::gate::{Freeing, Gate};
use crate::error::Result;
use crate::sync::{Mutex, lock};

/// Of one context. Under this lock it is decided whether an item can be freed, and one that cannot is added: so a thread that has
/// waited for the work in its way, and then takes the lock, finds it. Only queries are made under it; nothing is dropped.
#[derive(Default)]
struct Disposals(Mutex<Vec<Disposal>>);

struct Disposal {
    context: Context,
    users: Users,
    action: Action,
    then: Then,
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

/// Frees something, by calls of the driver only. Runs once, with the context current, or never.
pub(super) type Action = Box<dyn FnOnce(&Driver) -> Result<()> + Send>;

/// Called when that has succeeded.
type Then = Box<dyn FnOnce() + Send>;

/// What shows that contexts are quiet. As long as it lives, launches there wait.
struct Quiet {
    #[expect(dead_code, reason = "held, not read: dropping them lets launches go on")]
    gates: Vec<Freeing>,
}

impl Context {
    /// Runs `action` now if the context and those of `users` are quiet, otherwise later. For `Drop`: never waits, never
    /// fails.
    pub(super) fn dispose(&self, users: Users, action: Action) {
        self.dispose_then(users, action, Box::new(|| ()));
    }

    /// Calls `then` once nothing that this library knows of runs on any device: now, or in a later call. For `Drop`: never waits,
    /// never fails.
    pub(crate) fn once_quiet(&self, then: impl FnOnce() + Send + 'static) {
        self.dispose_then(Users::All, Box::new(|_| Ok(())), Box::new(then));
    }

    /// As [`Context::dispose`], and calls `then` after `action` has succeeded.
    pub(super) fn dispose_then(&self, users: Users, action: Action, then: Then) {
        let disposal = Disposal { context: self.clone(), users, action, then };
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
        self.begin_waiting();
        let mut asked = Vec::new();
        let mut waiting = lock(&self.slot::<Disposals>().0);
        let mut quiet = disposal.quiet(&mut asked);
        if quiet.is_none() && self.wait_for_others(&asked) {
            quiet = disposal.quiet(&mut asked);
        }
        let Some(quiet) = quiet else { return waiting.push(disposal) };
        drop(waiting);
        disposal.run(quiet);
        self.end_waiting(1);
    }

    /// Has cleanup in those of `contexts` that belong to other driver values look here, too. False if there is none.
    fn wait_for_others(&self, contexts: &[Self]) -> bool {
        let mut any = false;
        for driver in contexts.iter().map(Self::driver).filter(|driver| !driver.is_same(self.driver())) {
            self.wait_for(driver);
            any = true;
        }
        any
    }

    /// Frees what has waited here for contexts to become quiet, if they are.
    pub(super) fn run_disposals(&self) {
        if self.is_lost() {
            return;
        }
        {
            let Some(_own) = self.slot::<Arc<Gate>>().try_free() else { return };
            if !self.is_quiet() {
                return;
            }
        }
        let (mut asked, mut ready) = (Vec::new(), Vec::new());
        {
            let mut waiting = lock(&self.slot::<Disposals>().0);
            let mut at = 0;
            while let Some(disposal) = waiting.get(at) {
                match disposal.quiet(&mut asked) {
                    Some(quiet) => ready.push((waiting.swap_remove(at), quiet)),
                    None => at += 1,
                }
            }
        }
        for (disposal, quiet) in ready {
            disposal.run(quiet);
            self.end_waiting(1);
        }
    }
}

impl Disposal {
    /// Keeps others from enqueuing anything in this context and those of its users, if these are quiet. The contexts asked are
    /// added to `asked`, which may come to hold the last handle of one: drop it where dropping is allowed.
    fn quiet(&self, asked: &mut Vec<Context>) -> Option<Quiet> {
        let first = asked.len();
        match &self.users {
            Users::Devices(devices) => asked.extend(devices.iter().filter_map(Context::existing)),
            Users::All => asked.extend(Context::all(self.context.driver())),
        }
        asked.push(self.context.clone());
        let contexts = &asked[first..];
        let gates =
            contexts.iter().map(|context| context.slot::<Arc<Gate>>().try_free()).collect::<Option<_>>()?;
        contexts.iter().all(Context::is_quiet).then_some(Quiet { gates })
    }

    fn run(self, quiet: Quiet) {
        let context = &self.context;
        let driver = context.driver();
        let result = context.enter().and_then(|_entered| {
            let _relaxed = ThreadCaptureMode::relaxed(driver);
            context.noted((self.action)(driver))
        });
        // What follows may be the user's code, which may launch.
        drop(quiet);
        if result.is_ok() {
            (self.then)();
        }
        driver.note_drop(result);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::Deadline;
    use crate::error::Error;
    use crate::gpu::{PinnedBuffer, Stream};
    use crate::sync::{AtomicUsize, Ordering};

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

    /// Whoever waits until nothing is left finds it freed, and what follows done.
    #[test]
    fn an_item_counts_until_it_was_freed_and_what_follows_has_run() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let word = Arc::new(PinnedBuffer::new(&context, 8).unwrap());
        for busy in [0, 1] {
            let look = || {
                let (context, seen) = (context.clone(), seen.clone());
                move || lock(&seen).push(context.unreaped())
            };
            let (action, then) = (look(), look());
            let stream = Stream::new(&context).unwrap();
            if busy == 1 {
                stream.wait_value64(&word.slice(..).unwrap(), 1).unwrap();
            }
            let action: Action = Box::new(move |_| {
                action();
                Ok(())
            });
            context.dispose_then(Users::OWN, action, Box::new(then));
            let early = lock(&seen).len();
            word.memory().word64(0).unwrap().store(busy, Ordering::Release);
            stream.synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
            assert_eq!((early, context.unreaped()), (if busy == 1 { 0 } else { 2 }, 0));
            assert_eq!(std::mem::take(&mut *lock(&seen)), [1, 1]);
        }
    }
}
