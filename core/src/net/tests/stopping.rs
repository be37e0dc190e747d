//! Links and listeners that callers give to a reactor that is about to end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::reactor::idle;
use super::trouble::{Trouble, troubled};
use super::*;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Has finished when it is told so.
struct Finishes(Arc<AtomicBool>);

impl Handler for Finishes {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &crate::Error) {}

    fn finished(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Holds the service thread from each call of `progress` until `go` says something. A reactor that stops waits for it.
struct Holds {
    socket: OwnedFd,
    held: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Pollable for Holds {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn progress(&self) -> Next {
        let _ = self.held.send(());
        let _ = lock(&self.go).recv();
        Next::Wait(Interest::default())
    }

    fn lingers(&self) -> bool {
        true
    }

    fn unserved(&self, why: &crate::Error) {
        panic!("{why}");
    }
}

/// A reactor that stops, whose thread is held in the round in which it has obeyed what `give` asked of it. None if it has ended
/// before, because this thread or that one did not run for so long.
fn stopping<T>(give: impl Fn(&Reactor) -> T) -> Option<(Reactor, T, Sender<()>)> {
    let told = Arc::new(AtomicBool::new(false));
    let reactor = Reactor::start("test", ReactorConfig::default(), Box::new(Finishes(told.clone()))).unwrap();
    let ((held, holds), (go, goes)) = (channel(), channel());
    let registration = reactor.reserve();
    registration.serve(Arc::new(Holds { socket: idle(), held, go: Mutex::new(goes) }));
    holds.recv().unwrap();
    // The thread stops at the end of this round, and obeys in the next one.
    told.store(true, Ordering::Release);
    let given = give(&reactor);
    registration.nudge();
    go.send(()).unwrap();
    holds.recv().ok().map(|()| (reactor, given, go))
}

fn until_stopping<T>(give: impl Fn(&Reactor) -> T) -> (Reactor, T, Sender<()>) {
    std::iter::repeat_with(|| stopping(&give)).flatten().next().expect("it is tried again")
}

#[test]
fn a_link_that_is_added_is_closed_in_one_direction_first() {
    let (reactor, (link, mut server, trouble), go): (_, (Link, Stream, Arc<Trouble>), _) =
        until_stopping(|reactor| {
            let (server, client, trouble) = troubled();
            let link = reactor.add(client);
            link.post(1, b"before").unwrap();
            (link, server, trouble)
        });
    assert_eq!(link.post(1, b"after").unwrap_err().kind(), ErrorKind::InvalidUsage);
    assert_eq!(server.recv(soon()).unwrap().payload, b"before");
    assert_eq!(server.recv(soon()).unwrap_err().kind(), ErrorKind::PeerLost);
    assert_eq!(*lock(&trouble.ends), [false], "the peer may still have something to send");
    go.send(()).unwrap();
    drop((go, reactor));
}

#[test]
fn a_listener_that_is_added_lets_nobody_in() {
    let (reactor, addresses, go) = until_stopping(|reactor| {
        let (first, second) = (listen(&network()), listen(&network()));
        reactor.listen(first.0);
        drop(reactor.accept(second.0, Box::new(|_| panic!("nobody is there"))));
        [first.1, second.1]
    });
    for address in addresses {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} takes connections");
    }
    go.send(()).unwrap();
    drop((go, reactor));
}
