//! The threads behind the connections of a communicator, and what keeps them running.
//!
//! `aqueduct-data` moves data that callers have left to it. It must not block: a kernel may be waiting for the data that it
//! brings. So it leaves memory to the next call of the user, because freeing makes the driver wait for the device; and holds on
//! peers' memory, the last of which ends the membership in the group, to `aqueduct-drop`. Both threads go on without an owner
//! until every accepted operation is acknowledged or has failed. No drop waits for them.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Weak};

use crate::deadline::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::group::control::Control;
use crate::group::subscriber::Deferred;
use crate::net::{Frame, Handler, Link, Reactor, ReactorConfig, Registration};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The data thread of a communicator. Connections hold it.
pub(crate) struct DataService {
    /// Taken by drop.
    reactor: Option<Reactor>,
    disposer: Disposer,
    outstanding: Arc<Outstanding>,
}

impl DataService {
    pub(crate) fn start(outstanding: Arc<Outstanding>, control: Arc<Control>) -> Result<Arc<Self>> {
        let disposer = Disposer::start(control)?;
        let handler = Box::new(UntilDelivered(outstanding.clone()));
        let reactor = Reactor::start("aqueduct-data", ReactorConfig::default(), handler)?;
        outstanding.served.store(true, Ordering::Release);
        Ok(Arc::new(Self { reactor: Some(reactor), disposer, outstanding }))
    }

    pub(super) fn reactor(&self) -> &Reactor {
        self.reactor.as_ref().expect("taken by drop only")
    }

    /// A place on the data thread.
    pub(super) fn reserve(&self) -> Registration {
        self.reactor().reserve()
    }

    pub(super) fn disposer(&self) -> &Disposer {
        &self.disposer
    }

    pub(super) fn outstanding(&self) -> &Arc<Outstanding> {
        &self.outstanding
    }
}

impl Drop for DataService {
    fn drop(&mut self) {
        let Some(reactor) = self.reactor.take() else { return };
        self.outstanding.served.store(false, Ordering::Release);
        let wake = reactor.reserve();
        reactor.detach();
        // The thread looks whether it has finished after every round.
        wake.nudge();
    }
}

impl fmt::Debug for DataService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataService").field(&self.outstanding).finish()
    }
}

/// Ends the data thread once it has no owner and nothing left to deliver.
struct UntilDelivered(Arc<Outstanding>);

impl Handler for UntilDelivered {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, "data", "a frame on the thread for data"))
    }

    fn closed(&mut self, _: &Link, _: &Error) {}

    fn finished(&self) -> bool {
        !self.0.served.load(Ordering::Acquire) && !self.0.any_undelivered()
    }
}

/// Drops values whose drop may block, for threads that must not. Its thread ends when the last clone and everything given to it
/// is gone.
#[derive(Clone)]
pub(super) struct Disposer {
    thread: Sender<Box<dyn Any + Send>>,
    control: Arc<Control>,
}

impl Disposer {
    fn start(control: Arc<Control>) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<Box<dyn Any + Send>>();
        let run = move || receiver.into_iter().for_each(drop);
        std::thread::Builder::new()
            .name("aqueduct-drop".into())
            .stack_size(512 << 10)
            .spawn(run)
            .map_err(|error| Error::system("connect", "cannot start a service thread", error))?;
        Ok(Self { thread: sender, control })
    }

    /// Has memory freed by the next call of the user. Never by a thread that runs beside the user's: freeing would wait for what
    /// the user has just launched, and the driver may let nobody else in meanwhile. What is given must not hold the group, which
    /// holds the list.
    pub(super) fn free(&self, memory: Deferred) {
        self.control.drop_later(memory);
    }

    /// Has `what`, which may hold the group, dropped soon. In a forked child, which does not have the thread, it leaks.
    pub(super) fn dispose(&self, what: impl Any + Send) {
        if let Err(unsent) = self.thread.send(Box::new(what)) {
            // The thread has panicked in a drop: leaking is all that is left which cannot block.
            std::mem::forget(unsent);
        }
    }
}

/// A connection as far as its accepted operations go.
pub(super) trait Delivery: Send + Sync {
    fn peer(&self) -> u32;

    /// Whether no operation accepted so far is still on its way; asks for acknowledgements if one is.
    fn is_delivered(&self) -> bool;

    /// The failure by which accepted operations were lost, if no caller was ever told of it.
    fn lost(&self) -> Option<Error>;

    /// Whether the data thread has to go on for it, although its owner is gone.
    fn is_undelivered(&self) -> bool;
}

/// The connections of a communicator that may have operations to deliver.
#[derive(Default)]
pub(crate) struct Outstanding {
    deliveries: Mutex<Vec<Entry>>,
    /// The first failure by which accepted operations were lost, and of which no caller has been told.
    failure: Mutex<Option<Error>>,
    /// The data thread has an owner.
    served: AtomicBool,
}

enum Entry {
    Connection(Weak<dyn Delivery>),
    /// Undelivered operations of a dropped connection that has no thread.
    Remainder(Arc<dyn Delivery>),
}

impl Entry {
    fn get(&self) -> Option<Arc<dyn Delivery>> {
        match self {
            Self::Connection(connection) => connection.upgrade(),
            Self::Remainder(remainder) => Some(remainder.clone()),
        }
    }
}

impl Outstanding {
    pub(super) fn add(&self, connection: Weak<dyn Delivery>) {
        self.insert(Entry::Connection(connection));
    }

    /// Remembers what a dropped connection has still to deliver.
    pub(super) fn add_remainder(&self, remainder: Arc<dyn Delivery>) {
        self.insert(Entry::Remainder(remainder));
    }

    fn insert(&self, entry: Entry) {
        self.free_delivered();
        lock(&self.deliveries).push(entry);
    }

    /// Lets go of dropped connections whose operations have all been delivered.
    pub(crate) fn free_delivered(&self) {
        let done = |entry: &mut Entry| match entry {
            Entry::Connection(connection) => connection.strong_count() == 0,
            Entry::Remainder(remainder) => remainder.is_delivered(),
        };
        let done: Vec<_> = lock(&self.deliveries).extract_if(.., done).collect();
        // Frees pinned memory, for which the driver may wait: the list is unlocked.
        drop(done);
    }

    /// Remembers a failure that lost accepted operations, for [`wait`](Self::wait).
    pub(super) fn report(&self, why: Error) {
        lock(&self.failure).get_or_insert(why);
    }

    /// Whether the data thread has to go on for some connection.
    pub(super) fn any_undelivered(&self) -> bool {
        let all: Vec<_> = lock(&self.deliveries).iter().filter_map(Entry::get).collect();
        all.iter().any(|delivery| delivery.is_undelivered())
    }

    /// Waits until every accepted operation is acknowledged.
    ///
    /// # Errors
    /// `Timeout`, naming a peer; the failure by which accepted operations were lost, once.
    pub(crate) fn wait(&self, check: impl Fn() -> Result<()>, deadline: Deadline) -> Result<()> {
        const OP: &str = "close";
        let mut wait = Backoff::new();
        loop {
            if let Some(why) = lock(&self.failure).take() {
                return Err(why);
            }
            let all: Vec<_> = lock(&self.deliveries).iter().filter_map(Entry::get).collect();
            let Some(late) = all.iter().find(|delivery| !delivery.is_delivered()) else {
                let lost = all.iter().find_map(|delivery| delivery.lost());
                return lock(&self.failure).take().or(lost).map_or(Ok(()), Err);
            };
            check()?;
            if deadline.expired() {
                let peer = late.peer();
                let message = format!(
                    "rank {peer} has not acknowledged all operations of this rank in time; close again, or abort"
                );
                return Err(Error::timeout(OP, message).with_peer(peer));
            }
            wait.pause(deadline);
        }
    }
}

impl fmt::Debug for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outstanding")
            .field("connections", &lock(&self.deliveries).len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Tells, when it is dropped, whether the list is locked.
    struct Looks(Weak<Outstanding>, Sender<bool>);

    impl Delivery for Looks {
        fn peer(&self) -> u32 {
            0
        }

        fn is_delivered(&self) -> bool {
            true
        }

        fn lost(&self) -> Option<Error> {
            None
        }

        fn is_undelivered(&self) -> bool {
            false
        }
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            let locked = self.0.upgrade().map(|outstanding| outstanding.deliveries.try_lock().is_err());
            let _ = self.1.send(locked.unwrap_or_default());
        }
    }

    #[test]
    fn remainders_are_dropped_with_the_list_unlocked() {
        let outstanding = Arc::new(Outstanding::default());
        let (tell, told) = mpsc::channel();
        for _ in 0..3 {
            outstanding.add_remainder(Arc::new(Looks(Arc::downgrade(&outstanding), tell.clone())));
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [false, false]);
    }

    /// Operations that will never be delivered.
    struct Late;

    impl Delivery for Late {
        fn peer(&self) -> u32 {
            3
        }

        fn is_delivered(&self) -> bool {
            false
        }

        fn lost(&self) -> Option<Error> {
            None
        }

        fn is_undelivered(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_data_thread_goes_on_while_it_has_an_owner_or_something_to_deliver() {
        let outstanding = Arc::new(Outstanding::default());
        let thread = UntilDelivered(outstanding.clone());
        assert!(thread.finished());
        outstanding.served.store(true, Ordering::Release);
        assert!(!thread.finished());
        outstanding.served.store(false, Ordering::Release);
        let late: Arc<dyn Delivery> = Arc::new(Late);
        outstanding.add(Arc::downgrade(&late));
        assert!(!thread.finished());
        drop(late);
        assert!(thread.finished());
    }

    #[test]
    fn whoever_waits_hears_of_what_is_late_or_lost_once() {
        let outstanding = Outstanding::default();
        let wait = || outstanding.wait(|| Ok(()), Deadline::after(std::time::Duration::ZERO));
        let late: Arc<dyn Delivery> = Arc::new(Late);
        outstanding.add(Arc::downgrade(&late));
        outstanding.free_delivered();
        let error = wait().unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Timeout, Some(3)), "{error}");
        drop(late);
        outstanding.free_delivered();
        assert!(lock(&outstanding.deliveries).is_empty());
        for words in ["first", "second"] {
            outstanding.report(Error::new(ErrorKind::Remote, "x", words));
        }
        assert_eq!(wait().unwrap_err().message(), "first");
        wait().unwrap();
    }

    /// Operations that were lost, of which no caller was told.
    struct Lost;

    impl Delivery for Lost {
        fn peer(&self) -> u32 {
            3
        }

        fn is_delivered(&self) -> bool {
            true
        }

        fn lost(&self) -> Option<Error> {
            Some(Error::peer_lost("x", 3, "it was killed"))
        }

        fn is_undelivered(&self) -> bool {
            false
        }
    }

    #[test]
    fn whoever_waits_hears_what_a_connection_has_lost_that_is_still_there() {
        let outstanding = Outstanding::default();
        let wait = || outstanding.wait(|| Ok(()), Deadline::after(std::time::Duration::ZERO));
        let lost: Arc<dyn Delivery> = Arc::new(Lost);
        outstanding.add(Arc::downgrade(&lost));
        assert_eq!(wait().unwrap_err().kind(), ErrorKind::PeerLost);
        drop(lost);
        wait().unwrap();
    }
}
