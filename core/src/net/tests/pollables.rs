//! When a service thread comes to a pollable, and when no more.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::reactor::{idle, reactor, settle, told};
use super::*;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

#[test]
fn a_pollable_that_is_forgotten_is_polled_no_more() {
    let (reactor, _seen) = reactor();
    let (thing, polls, _whys) = told(false);
    assert!(!thing.lingers(), "it has nothing to send");
    let registration = reactor.reserve();
    registration.serve(thing);
    next_of(&polls);
    registration.nudge();
    next_of(&polls);
    registration.forget();
    registration.nudge();
    let (fence, fences, _whys) = told(false);
    reactor.reserve().serve(fence);
    next_of(&fences);
    assert!(polls.try_recv().is_err());
}

fn next_of<T>(what: &Receiver<T>) -> T {
    what.recv_timeout(Duration::from_secs(20)).expect("the service thread did not come")
}

/// Wants to be polled again after a while, once; tells when it is polled, and when it wants that.
struct Timed(OwnedFd, Mutex<Option<Duration>>, Sender<(Instant, Option<Instant>)>);

impl Pollable for Timed {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn progress(&self) -> Next {
        let now = Instant::now();
        let at = lock(&self.1).take().map(|pause| now + pause);
        let _ = self.2.send((now, at));
        Next::Told(at)
    }

    fn unserved(&self, why: &crate::Error) {
        panic!("{why}");
    }
}

#[test]
fn a_pollable_is_polled_when_it_wants_to_be_whatever_others_want() {
    let (reactor, _seen) = reactor();
    let serve = |pause| {
        let socket = idle();
        let (polled, polls) = channel();
        reactor.reserve().serve(Arc::new(Timed(socket, Mutex::new(pause), polled)));
        polls
    };
    let waits = serve(Some(Duration::from_millis(200)));
    let (_, at) = next_of(&waits);
    let other = serve(None);
    next_of(&other);
    let (again, _) = next_of(&waits);
    assert!(again >= at.unwrap());
}

#[test]
fn others_may_say_what_a_pollable_waits_for() {
    let (reactor, _seen) = reactor();
    let (polled, polls) = channel();
    let thing = Arc::new(Timed(idle(), Mutex::new(None), polled));
    let registration = reactor.reserve();
    registration.serve(thing.clone());
    next_of(&polls);
    // There is room to write all the time.
    registration.watch(thing.fd(), Interest { read: false, write: true });
    for _ in 0..2 {
        next_of(&polls);
    }
}

/// Has something to send when it is asked for the first time.
struct Lingers(OwnedFd, AtomicU32);

impl Pollable for Lingers {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn progress(&self) -> Next {
        Next::Again
    }

    fn lingers(&self) -> bool {
        self.1.fetch_add(1, Ordering::AcqRel) == 0
    }

    fn unserved(&self, why: &crate::Error) {
        panic!("{why}");
    }
}

#[test]
fn a_reactor_that_stops_waits_for_pollables_that_have_something_to_send() {
    let (reactor, _seen) = reactor();
    let socket = idle();
    let thing = Arc::new(Lingers(socket, AtomicU32::new(0)));
    reactor.reserve().serve(thing.clone());
    drop(reactor);
    assert_eq!(thing.1.load(Ordering::Acquire), 2);
}

/// Waits for these events, the last first, and then for none; tells when it is polled.
struct Waits(UnixStream, Mutex<Vec<Interest>>, Sender<()>);

impl Pollable for Waits {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn progress(&self) -> Next {
        let _ = self.2.send(());
        Next::Wait(lock(&self.1).pop().unwrap_or_default())
    }

    fn unserved(&self, why: &crate::Error) {
        panic!("{why}");
    }
}

#[test]
fn a_pollable_is_polled_at_the_events_that_it_waits_for_and_at_no_others() {
    let (reactor, _seen) = reactor();
    let none_comes = |polls: &Receiver<()>| {
        settle(&reactor);
        assert!(polls.try_recv().is_err(), "it did not wait for that");
    };
    let serve = |wants: &[Interest]| {
        let (socket, peer) = UnixStream::pair().unwrap();
        let (polled, polls) = channel();
        reactor.reserve().serve(Arc::new(Waits(socket, Mutex::new(wants.to_vec()), polled)));
        next_of(&polls);
        (peer, polls)
    };
    // There is room to write at once.
    let (_peer, polls) = serve(&[Interest { read: false, write: true }]);
    next_of(&polls);
    none_comes(&polls);
    let (mut peer, polls) = serve(&[Interest { read: true, write: false }]);
    none_comes(&polls);
    peer.write_all(b"x").unwrap();
    next_of(&polls);
    none_comes(&polls);
}

/// Always has work of which no descriptor tells; its socket is watched, and may be readable.
struct Busy(UnixStream, Arc<AtomicU32>);

impl Pollable for Busy {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn progress(&self) -> Next {
        if self.1.fetch_add(1, Ordering::AcqRel) == 0 {
            return Next::Wait(Interest { read: true, write: false });
        }
        Next::Again
    }

    fn unserved(&self, _: &crate::Error) {}
}

#[test]
fn of_two_busy_pollables_neither_starves_whatever_events_and_nudges_the_other_gets() {
    const NUDGES: u32 = 200;
    for (readable, nudges) in [(true, false), (false, true)] {
        let (reactor, _seen) = reactor();
        let counts = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let serve = |count: &Arc<AtomicU32>| {
            let (socket, peer) = UnixStream::pair().unwrap();
            let registration = reactor.reserve();
            registration.serve(Arc::new(Busy(socket, count.clone())));
            registration.nudge();
            (registration, peer)
        };
        let [(first, mut peer), (_second, _peer)] = [serve(&counts[0]), serve(&counts[1])];
        if readable {
            peer.write_all(b"x").unwrap();
        }
        for _ in 0..NUDGES {
            if nudges {
                first.nudge();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let [one, two] = counts.map(|count| count.load(Ordering::Acquire));
        // On a busy machine there are few polls but those that were asked for.
        let asked = if nudges { NUDGES } else { 0 };
        assert!(
            two > 0 && one.saturating_sub(asked) / 4 <= two,
            "{one} polls of one and {two} of the other; readable {readable}"
        );
    }
}
