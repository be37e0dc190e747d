//! Where listeners can be, and what they tell.

use std::time::Instant;

use super::reactor::{Seen, next, reactor, settle};
use super::*;

/// The side of a connection that closes first keeps its port for a minute.
#[test]
fn a_port_can_be_listened_on_again_while_its_connections_are_being_closed() {
    let address = free();
    let listen = || network().listen_tcp_at(address, claims(0, Claims::ANY));
    let mut listener = listen().unwrap();
    let client = std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), soon()).unwrap());
    drop(listener.accept(soon()).unwrap());
    drop(client.join().unwrap());
    assert_eq!(listen().unwrap_err().code(), libc::EADDRINUSE, "somebody listens there");
    drop(listener);
    listen().unwrap();
}

/// Any thread may start a program, and the child holds copies of all sockets until it calls exec.
#[test]
fn a_listener_ends_with_its_owner_whatever_forked_children_do_with_their_copies() {
    let address = free();
    let listen = || network().listen_tcp_at(address, claims(0, Claims::ANY)).unwrap();
    let listener = listen();
    // SAFETY: the child only waits until it is killed.
    let keeps = unsafe { libc::fork() };
    if keeps == 0 {
        loop {
            // SAFETY: pause(2) is async-signal-safe.
            unsafe { libc::pause() };
        }
    }
    drop(listener);
    let again = std::panic::catch_unwind(listen);
    // SAFETY: `keeps` is a child of this process that nobody else waits for.
    unsafe {
        libc::kill(keeps, libc::SIGKILL);
        libc::waitpid(keeps, std::ptr::null_mut(), 0);
    }
    let mut listener = again.unwrap();

    // SAFETY: the child closes what it got and leaves; the C library keeps its allocator usable across fork(2).
    let drops = unsafe { libc::fork() };
    if drops == 0 {
        drop(listener);
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: as above.
    unsafe { libc::waitpid(drops, std::ptr::null_mut(), 0) };
    let client =
        std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), soon()).map(drop));
    listener.accept(soon()).unwrap();
    client.join().unwrap().unwrap();
}

/// A listener rests only when the process is out of descriptors: then it would not notice who comes meanwhile.
#[test]
fn a_listener_that_has_taken_all_who_came_does_not_rest() {
    const PROOF: Duration = Duration::from_secs(3600);
    let (mut listener, address) = listen(&network().with_handshake_timeout(PROOF));
    let _stranger = std::net::TcpStream::connect(address).unwrap();
    let late = soon();
    while listener.next_expiry().is_none() && !late.expired() {
        listener.progress().unwrap();
    }
    assert!(
        listener.next_expiry().unwrap() > Instant::now() + PROOF / 2,
        "it waits for the stranger's proof only"
    );
}

#[test]
fn listeners_of_other_hosts_can_be_closed_without_those_of_this_one() {
    let (reactor, seen) = reactor();
    let ((tcp, address), (unix, path)) = (listen_at(apart(), &network()), listen_unix());
    reactor.listen(tcp);
    reactor.listen(unix);
    reactor.stop_listening_tcp();
    settle(&reactor);
    assert!(std::net::TcpStream::connect(address).is_err());
    let _client = network().connect_unix(&path, claims(1, 0), soon()).unwrap();
    assert!(matches!(next(&seen), Seen::Accepted(_)));
    reactor.stop_listening();
    settle(&reactor);
    assert!(!path.exists());
}

#[test]
fn an_acceptor_takes_connections_until_it_has_enough_or_is_forgotten() {
    let (reactor, _seen) = reactor();
    settle(&reactor);
    for forget in [false, true] {
        let (listener, address) = listen_at(apart(), &network());
        let (take, taken) = std::sync::mpsc::channel();
        let registration = reactor.accept(
            listener,
            Box::new(move |stream| {
                take.send(stream).unwrap();
                forget
            }),
        );
        let _client = network().connect_tcp(&[address], claims(1, 0), soon()).unwrap();
        let _server = taken.recv_timeout(Duration::from_secs(20)).expect("nobody took the connection");
        settle(&reactor);
        if forget {
            drop(std::net::TcpStream::connect(address).expect("it wants more"));
            registration.forget();
            settle(&reactor);
        }
        assert!(std::net::TcpStream::connect(address).is_err(), "it has enough");
    }
}
