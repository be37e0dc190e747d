//! Real sockets, real strangers.

mod connecting;
mod fds;
mod frames;
mod heartbeat;
mod links;
mod listening;
mod other_users;
mod pollables;
mod reactor;
mod stopping;
mod strangers;
mod trouble;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::admission::MAX_PER_RANK;
use super::apart::{apart, free};
use super::*;
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result};
use crate::sync::lock;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn millis(ms: u64) -> Deadline {
    Deadline::after(Duration::from_millis(ms))
}

fn network() -> Network {
    Network::new(Secret::from_bytes([7; 32]))
}

/// Claims of rank `from` to rank `to`.
fn claims(from: u32, to: u32) -> Claims {
    Claims { purpose: 9, scope: 1, from, to }
}

fn listen(network: &Network) -> (Listener, SocketAddr) {
    listen_at(LOCALHOST, network)
}

fn listen_at(ip: IpAddr, network: &Network) -> (Listener, SocketAddr) {
    let listener = network.listen_tcp(ip, claims(0, Claims::ANY)).unwrap();
    let Address::Tcp(address) = *listener.address() else { panic!("not TCP") };
    (listener, address)
}

/// Both ends of an authenticated TCP stream; rank 0 listened.
fn pair(network: &Network) -> (Stream, Stream) {
    let (mut listener, address) = listen(network);
    let client = network.clone();
    let client = std::thread::spawn(move || client.connect_tcp(&[address], claims(1, 0), soon()).unwrap());
    let server = listener.accept(soon()).unwrap();
    (server, client.join().unwrap())
}

/// A unix listener's path, and the listener.
fn listen_unix() -> (Listener, PathBuf) {
    let listener = network().listen_unix(claims(0, Claims::ANY)).unwrap();
    let Address::Unix(path) = listener.address().clone() else { panic!("not unix") };
    (listener, path)
}

/// Connects a client to a listener with different settings; returns the listener's result and the client's.
fn meet(
    listener: &mut Listener,
    address: SocketAddr,
    client: Network,
    local: Claims,
) -> (Result<Stream>, Result<Stream>) {
    let client = std::thread::spawn(move || client.connect_tcp(&[address], local, millis(2000)));
    let server = listener.accept(millis(500));
    (server, client.join().unwrap())
}

#[test]
fn frames_travel_both_ways_and_claims_are_known() {
    let (mut server, mut client) = pair(&network());
    assert_eq!((server.peer(), client.peer().from), (claims(1, 0), 0));
    let big: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7) as u8).collect();
    let copy = big.clone();
    let sender = std::thread::spawn(move || {
        client.send(1, b"", soon()).unwrap();
        client.send(2, &copy, soon()).unwrap();
        client.recv(soon()).unwrap().payload
    });
    assert_eq!(server.recv(soon()).unwrap().kind, 1);
    assert_eq!(server.recv(soon()).unwrap().payload, big);
    server.send(3, b"back", soon()).unwrap();
    assert_eq!(sender.join().unwrap(), b"back");
    let ended = server.recv(soon()).unwrap_err();
    assert_eq!((ended.kind(), ended.peer()), (ErrorKind::PeerLost, Some(1)));
}

#[test]
fn every_wait_ends_at_its_deadline() {
    let (mut server, mut client) = pair(&network());
    let late = server.recv(millis(20)).unwrap_err();
    assert_eq!((late.kind(), late.message()), (ErrorKind::Timeout, "rank 1 did not answer in time"));
    // The peer does not read: the socket's buffers fill up.
    let chunk = vec![0; 1 << 20];
    let error = (0..64).find_map(|_| client.send(1, &chunk, millis(50)).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let (mut listener, _) = listen(&network());
    assert_eq!(listener.accept(millis(20)).unwrap_err().kind(), ErrorKind::Timeout);
    // A listener that never answers.
    let silent = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let error = network().connect_tcp(&[silent.local_addr().unwrap()], claims(1, 0), millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[test]
fn a_port_where_nobody_listens_is_an_error_with_its_address() {
    let address = free();
    let error = network().connect_tcp(&[address], claims(1, 0), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    // A good address after a bad one is found.
    let (mut listener, good) = listen(&network());
    let client =
        std::thread::spawn(move || network().connect_tcp(&[address, good], claims(1, 0), soon()).unwrap());
    listener.accept(soon()).unwrap();
    client.join().unwrap();
}

#[test]
fn a_layer_sees_the_bytes_of_authenticated_streams() {
    use std::os::fd::{BorrowedFd, OwnedFd};

    /// Cuts the stream after 20 bytes written.
    #[derive(Debug)]
    struct Cut(Box<dyn RawStream>, crate::sync::AtomicU32);
    impl RawStream for Cut {
        fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
            self.0.read(into, fds)
        }
        fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
            let left = 20 - self.1.load(crate::sync::Ordering::Relaxed);
            if left == 0 {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            let count = self.0.write(&from[..from.len().min(left as usize)], fds)?;
            self.1.fetch_add(count as u32, crate::sync::Ordering::Relaxed);
            Ok(count)
        }
        fn shutdown(&self, both: bool) -> std::io::Result<()> {
            self.0.shutdown(both)
        }
        fn fd(&self) -> BorrowedFd<'_> {
            self.0.fd()
        }
    }
    #[derive(Debug)]
    struct Cutter;
    impl Layer for Cutter {
        fn wrap(&self, local: Claims, _: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
            if local.from == 1 { Box::new(Cut(raw, crate::sync::AtomicU32::new(0))) } else { raw }
        }
    }

    let (mut server, mut client) = pair(&network().with_layer(Arc::new(Cutter)));
    let error = client.send(5, b"more than four bytes", soon()).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(0)));
    drop(client);
    // 16 bytes of header and 4 of payload arrived: the stream ends inside a message.
    let error = server.recv(soon()).unwrap_err().to_string();
    assert!(error.contains("inside a message"), "{error}");
}

/// Tries again only what may come to be, and ends at the deadline then; otherwise at once, with the reason.
#[test]
fn what_may_come_to_be_is_tried_again() {
    let (_listener, socket) = listen_unix();
    let folder = socket.parent().unwrap();
    let nothing = folder.join("nothing");
    let nowhere = socket.join("a socket is no folder");
    // So full that the kernel takes no more connections.
    let full = folder.join("full");
    let crowded = std::os::unix::net::UnixListener::bind(&full).unwrap();
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { libc::listen(crowded.as_raw_fd(), 0) }, 0);
    let _first = std::os::unix::net::UnixStream::connect(&full).unwrap();
    let (none, long) = (Some(Duration::ZERO), Some(Duration::from_secs(60)));
    for (path, patience, again) in [
        (&nothing, None, true),
        (&nothing, none, false),
        (&nowhere, None, false),
        (&nowhere, none, false),
        (&nowhere, long, true),
        (&full, none, true),
    ] {
        let network = patience.map_or(network(), |patience| network().with_patience(patience));
        let error = network.connect_unix(path, claims(1, 0), millis(0)).unwrap_err();
        let expected = if again { ErrorKind::Timeout } else { ErrorKind::System };
        assert_eq!(error.kind(), expected, "{} with patience {patience:?}: {error}", path.display());
    }
    drop(std::fs::remove_file(&full));
}

#[test]
fn the_last_address_has_all_the_time_that_is_left() {
    let nobody = free();
    let silent = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let addresses = [nobody, silent.local_addr().unwrap()];
    let error = network().connect_tcp(&addresses, claims(1, 0), millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    silent.set_nonblocking(true).unwrap();
    assert_eq!(silent.incoming().take_while(|stream| stream.is_ok()).count(), 1);
}

#[test]
fn sockets_send_at_once_and_are_not_inherited() {
    let (server, client) = pair(&network());
    assert_eq!((server.local_ip(), client.local_ip()), (Some(LOCALHOST), Some(LOCALHOST)));
    for stream in [&server, &client] {
        let fd = stream.raw.fd().as_raw_fd();
        let (mut value, mut size) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: `value` and `size` live across the call and describe each other.
        let (flags, status, got) = unsafe {
            (
                libc::fcntl(fd, libc::F_GETFD),
                libc::fcntl(fd, libc::F_GETFL),
                libc::getsockopt(
                    fd,
                    libc::IPPROTO_TCP,
                    libc::TCP_NODELAY,
                    (&raw mut value).cast(),
                    &mut size,
                ),
            )
        };
        assert_eq!(
            (flags & libc::FD_CLOEXEC, status & libc::O_NONBLOCK),
            (libc::FD_CLOEXEC, libc::O_NONBLOCK)
        );
        assert_eq!((got, value), (0, 1));
    }
}

#[test]
fn calls_that_lack_descriptors_are_made_again_until_the_deadline() {
    let (mut server, mut client, trouble) = trouble::troubled();
    *lock(&trouble.write) = (libc::ETOOMANYREFS, 2);
    client.send(1, b"late", soon()).unwrap();
    assert_eq!(server.recv(soon()).unwrap().payload, b"late");
    *lock(&trouble.read) = (libc::EMFILE, 2);
    server.send(1, b"later", soon()).unwrap();
    assert_eq!(client.recv(soon()).unwrap().payload, b"later");
    *lock(&trouble.read) = (libc::EMFILE, u32::MAX);
    let error = client.recv(millis(0)).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Exhausted, libc::EMFILE));
    assert!(error.message().contains("what rank 0 has sent waits"), "{error}");
}

#[test]
fn peers_without_a_rank_are_spoken_of_as_such() {
    let (mut listener, address) = listen(&network());
    let anybody = claims(Claims::ANY, 0);
    let client = std::thread::spawn(move || network().connect_tcp(&[address], anybody, soon()).unwrap());
    let mut server = listener.accept(soon()).unwrap();
    let _client = client.join().unwrap();
    assert_eq!(server.recv(millis(0)).unwrap_err().message(), "the peer did not answer in time");
}

/// A program may have undone what Rust's runtime does about SIGPIPE, or have no such runtime.
#[test]
fn a_peer_that_is_gone_does_not_kill_by_a_signal() {
    let (server, client) = pair(&network());
    drop(server);
    let ended = sys::wait(client.raw.fd(), sys::READ, soon()).unwrap();
    assert!(ended && client.raw.read(&mut [0], &mut Vec::new()).is_ok_and(|count| count == 0));
    // SAFETY: the child makes only async-signal-safe calls, and leaves with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointers are passed.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        // The first byte makes the peer's host say that nobody reads there.
        let broken = (0..1000).any(|_| client.raw.write(b"x", &[]).is_err());
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(if broken { 7 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `child` is ours and `status` is a live output.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status}");
}
