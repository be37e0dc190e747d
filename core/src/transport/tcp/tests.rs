//! The sending half with a peer that is played by the test.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::duplex::Duplex;
use super::frame::{Frame, HEADER_BYTES};
use super::outbox::Outbox;
use super::reads::Reads;
use super::staging::Staging;
use super::*;
use crate::comm::{Communicator, HostBuffer, RegisteredMemory, Transport};
use crate::memory::register_host;
use crate::net::{Pollable as _, RawStream};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::transport::tests::{resources, soon, wait_for, with_memories};

/// Where a sending and a receiving half meet.
pub(super) fn reads() -> Arc<Reads> {
    Arc::new(Reads::new(1))
}

/// A socket that takes all that is sent, and gives what the test has put there; behind that, if it is reset, an error.
#[derive(Debug)]
pub(super) struct Peer {
    sent: Bytes,
    says: Bytes,
    reset: Arc<AtomicBool>,
    fd: UnixStream,
}

impl RawStream for Peer {
    fn read(&self, into: &mut [u8], _: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut says = lock(&self.says);
        let count = says.len().min(into.len());
        into[..count].copy_from_slice(&says[..count]);
        says.drain(..count);
        match count {
            0 if self.reset.load(Ordering::Relaxed) => Err(io::ErrorKind::ConnectionReset.into()),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(count),
        }
    }

    fn write(&self, from: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        lock(&self.sent).extend_from_slice(from);
        Ok(from.len())
    }

    fn shutdown(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) type Bytes = Arc<Mutex<Vec<u8>>>;

pub(super) fn peer() -> (Peer, Bytes, Bytes) {
    let (sent, says) = (Arc::default(), Arc::default());
    let fd = UnixStream::pair().unwrap().0;
    let peer = Peer { sent: Arc::clone(&sent), says: Arc::clone(&says), reset: Arc::default(), fd };
    (peer, sent, says)
}

#[test]
fn a_peer_cannot_acknowledge_what_the_socket_has_not_taken() {
    with_memories(|comm, [memory, _]| {
        let (socket, ..) = peer();
        let mut outbox = Outbox::new(Staging::alone(comm.context(), 4), 1, reads());
        let remote = memory.remote().unwrap().0;
        (0..2).for_each(|value| outbox.update(remote, remote.region().unwrap(), 0, value));
        assert_eq!(outbox.acknowledge(1).unwrap_err().peer(), Some(1), "nothing was sent");
        assert!(!outbox.is_settled());
        outbox.progress(&socket).unwrap();
        assert_eq!(outbox.acknowledge(3).unwrap_err().peer(), Some(1));
        outbox.acknowledge(2).unwrap();
        assert!(outbox.is_settled());
    });
}

#[test]
fn memory_is_held_until_what_was_sent_to_it_is_acknowledged() {
    with_memories(|comm, memories| {
        let (socket, ..) = peer();
        let mut outbox = Outbox::new(Staging::alone(comm.context(), 4), 1, reads());
        for memory in &memories {
            let remote = memory.remote().unwrap().0;
            outbox.update(remote, remote.region().unwrap(), 0, 7);
        }
        outbox.progress(&socket).unwrap();
        let mut released = |count| {
            outbox.acknowledge(count).unwrap();
            outbox.take_spent().remotes.len()
        };
        assert_eq!(released(1), 1, "the second is on its way");
        assert_eq!(released(2), 1);
    });
}

/// The process may end right after that, and with it the thread that would answer a question.
#[test]
fn a_connection_that_is_dropped_tells_at_once_what_has_landed() {
    with_memories(|comm, _| {
        let resources = resources(comm, None);
        let duplex = Duplex::new(&resources, &resources.service().unwrap(), 1).unwrap();
        let buffer = Arc::new(HostBuffer::new(comm.context(), 64).unwrap());
        let memory = register_host(&buffer, 0, 64, Transport::Ethernet.into()).unwrap();
        let grant = resources.regions.grant(1, memory.place().clone(), memory.len(), memory.rights());
        let (socket, sent, says) = peer();
        let update = |value| Frame::Update { region: grant.number(), offset: 0, value }.encode();
        lock(&says).extend([1, 2, 3].map(update).concat());
        duplex.attach(Box::new(socket));
        duplex.close();
        assert!(lock(&sent).starts_with(&Frame::Ack { count: 3 }.encode()), "{:?}", lock(&sent));
        let _ = duplex.progress();
        let bye = lock(&sent).ends_with(&Frame::Bye.encode());
        assert!(bye && lock(&sent).len() == 2 * HEADER_BYTES, "it is told once");
    });
}

/// Its last words acknowledge the operations, but not the question behind them.
#[test]
fn a_peer_that_has_gone_after_it_has_acknowledged_everything_loses_nothing() {
    for (acknowledged, lost) in [(2, false), (1, true)] {
        with_memories(|comm, [memory, _]| {
            let resources = resources(comm, None);
            let duplex = Duplex::new(&resources, &resources.service().unwrap(), 1).unwrap();
            let (socket, _, says) = peer();
            let reset = socket.reset.clone();
            duplex.attach(Box::new(socket));
            let remote = memory.remote().unwrap().0;
            for value in [7, 8] {
                duplex.outbox(|outbox| outbox.update(remote, remote.region().unwrap(), 0, value));
            }
            duplex.outbox(Outbox::ask);
            duplex.kick().unwrap();
            let last = [Frame::Ack { count: acknowledged }, Frame::Bye].map(Frame::encode).concat();
            {
                let mut says = lock(&says);
                says.extend(last);
                reset.store(true, Ordering::Relaxed);
            }
            let deadline = soon();
            while duplex.check().is_ok() && !deadline.expired() {
                let _ = duplex.progress();
            }
            assert!(duplex.check().is_err());
            // The service thread may be the one that ends it, and not have come to that yet.
            while lost && !duplex.has_lost() && !deadline.expired() {
                std::thread::yield_now();
            }
            assert_eq!(duplex.has_lost(), lost, "{acknowledged} of 2 were acknowledged");
        });
    }
}

/// A peer that has heard the BYE, and has said its own, closes the socket: the signal may still wait for a device there.
#[test]
fn a_connection_says_bye_only_once_everything_is_acknowledged() {
    with_memories(|comm, [memory, _]| {
        let resources = resources(comm, None);
        let service = resources.service().unwrap();
        let duplex = Duplex::new(&resources, &service, 1).unwrap();
        let (socket, sent, says) = peer();
        duplex.attach(Box::new(socket));
        let remote = memory.remote().unwrap().0;
        duplex.outbox(|outbox| outbox.update(remote, remote.region().unwrap(), 0, 7));
        duplex.close();
        let has_said = |frame: Frame| {
            lock(&sent).as_chunks::<HEADER_BYTES>().0.iter().any(|header| *header == frame.encode())
        };
        for _ in 0..4 {
            let _ = duplex.progress();
        }
        assert!(has_said(Frame::Ask) && !has_said(Frame::Bye));
        lock(&says).extend([Frame::Ack { count: 2 }, Frame::Bye].map(Frame::encode).concat());
        let deadline = soon();
        while !has_said(Frame::Bye) && !deadline.expired() {
            let _ = duplex.progress();
        }
        assert!(has_said(Frame::Bye));
    });
}

/// The socket has taken everything at once. What it holds makes a flush wait, so it counts.
#[test]
fn what_the_socket_has_taken_stays_outstanding_until_it_is_acknowledged() {
    with_memories(|comm, [memory, _]| {
        let (socket, sent, _) = peer();
        let mut outbox = Outbox::new(Staging::alone(comm.context(), 4), 1, reads());
        let remote = memory.remote().unwrap().0;
        for value in 0..3 {
            assert!(outbox.has_room(3));
            outbox.update(remote, remote.region().unwrap(), 0, value);
        }
        outbox.progress(&socket).unwrap();
        assert!(!outbox.has_room(3));
        // A sender without room asks for an acknowledgement; by itself the peer would send none before operation
        // 1024.
        outbox.progress(&socket).unwrap();
        assert!(lock(&sent).ends_with(&Frame::Ask.encode()));
        outbox.acknowledge(1).unwrap();
        assert!(outbox.has_room(3) && !outbox.has_room(2));
        outbox.acknowledge(4).unwrap();
        assert!(outbox.has_room(1));
    });
}

/// A connection over a socket that is played. No thread serves it.
fn ethernet(comm: &Communicator, socket: Peer) -> Ethernet {
    let resources = resources(comm, None);
    let service = resources.service().unwrap();
    let duplex = Duplex::new(&resources, &service, 1).unwrap();
    duplex.attach_unserved(Box::new(socket));
    Ethernet { duplex, config: EndpointConfig::new(Transport::Ethernet), listening: None, service }
}

fn signal(backend: &dyn Backend, memory: &RegisteredMemory, value: u64) {
    let dst = Span { memory, offset: 0, len: 8 };
    assert!(backend.post(&Operation::Update { dst, old: value - 1, value }).unwrap());
}

#[test]
fn a_batch_is_held_back_until_it_is_large() {
    with_memories(|comm, [memory, _]| {
        let (socket, sent, _) = peer();
        let ethernet = ethernet(comm, socket);
        (1..=BATCH as u64).for_each(|value| signal(&ethernet, &memory, value));
        assert!(lock(&sent).is_empty());
        signal(&ethernet, &memory, 1 + BATCH as u64);
        assert_eq!(lock(&sent).len(), (1 + BATCH) * HEADER_BYTES);
    });
}

#[test]
fn a_flush_of_what_has_landed_succeeds_though_the_peer_has_gone() {
    for landed in [false, true] {
        with_memories(|comm, [memory, _]| {
            let (socket, _, says) = peer();
            let (ethernet, event) = (ethernet(comm, socket), Event::new(comm.context()).unwrap());
            signal(&ethernet, &memory, 1);
            let mark = ethernet.mark().unwrap();
            ethernet.record_event(&event).unwrap();
            assert!(!event.is_done().unwrap());
            if landed {
                lock(&says).extend(Frame::Ack { count: mark }.encode());
                wait_for("it is not acknowledged", || {
                    let _ = ethernet.duplex.progress();
                    ethernet.is_done(mark).unwrap()
                });
            }
            ethernet.duplex.fail(&Error::new(ErrorKind::Remote, "x", "gone"), false);
            event.synchronize(soon()).unwrap();
            assert_eq!(ethernet.mark().is_ok(), landed);
        });
    }
}

/// The peer may connect later, and then gets what was asked for. Nobody waits for one that would get nothing.
#[test]
fn a_dropped_connection_listens_only_with_operations() {
    with_memories(|comm, [memory, _]| {
        let resources = resources(comm, None);
        let listening = |operations, tag| {
            let config = EndpointConfig::new(Transport::Ethernet)
                .with_local_address(std::net::Ipv4Addr::LOCALHOST.into());
            let key = Key::user(crate::setup::key::Kind::Connection, 1, tag);
            let draft = Sockets.offer(&resources, key, &config).unwrap();
            let address = decode(&draft.describe()).unwrap()[0];
            let theirs = EndpointWire { transport: Transport::Ethernet, detail: Vec::new() };
            let backend = draft.accept(&resources, &theirs, soon()).unwrap();
            (0..operations).for_each(|value| signal(&*backend, &memory, value + 1));
            drop(backend);
            address
        };
        let (with, without) = (listening(1, 0), listening(0, 1));
        wait_for("it goes on listening", || std::net::TcpStream::connect(without).is_err());
        // The connection with an operation was dropped first, and still listens.
        std::net::TcpStream::connect(with).unwrap();
    });
}
