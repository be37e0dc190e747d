//! Real sockets, real strangers.

mod fds;
mod other_users;
mod reactor;
mod strangers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::admission::MAX_PER_RANK;
use super::*;
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result};

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
    let listener = network.listen_tcp(LOCALHOST, claims(0, Claims::ANY)).unwrap();
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
    assert_eq!(server.recv(millis(20)).unwrap_err().kind(), ErrorKind::Timeout);
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
    let address = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap().local_addr().unwrap();
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
