//! Clients that do not know the secret, do not speak the protocol, or take their time.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::wire::FrameHeader;

/// Nothing that a test waits for takes so long.
const HOUR: Duration = Duration::from_secs(3600);

/// Whether the listener has closed the connection; it says nothing before. A read that ends by time is no sign of it.
fn is_closed(stranger: &mut TcpStream) -> bool {
    stranger.set_read_timeout(Some(HOUR)).unwrap();
    match stranger.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_wrong_secret_is_noticed_on_both_sides() {
    let (mut listener, address) = listen(&network());
    let stranger = Network::new(Secret::from_bytes([8; 32]));
    let (server, client) = meet(&mut listener, address, stranger, claims(1, 0));
    let client = client.unwrap_err();
    assert_eq!(client.kind(), ErrorKind::Authentication);
    assert!(
        client.to_string().contains("unique id") && client.to_string().contains(&address.to_string()),
        "{client}"
    );
    assert!(server.unwrap_err().to_string().contains("1 turned away"));
    assert_eq!(listener.rejections().count, 1);
}

#[test]
fn purpose_scope_and_rank_are_bound() {
    let (mut listener, address) = listen(&network());
    let good = claims(1, 0);
    for bad in [Claims { purpose: 8, ..good }, Claims { scope: 2, ..good }, Claims { to: 3, ..good }] {
        let (server, client) = meet(&mut listener, address, network(), bad);
        assert!(server.is_err());
        assert_eq!(client.unwrap_err().kind(), ErrorKind::Authentication, "{bad:?}");
    }
    let (server, client) = meet(&mut listener, address, network(), good);
    assert!(server.is_ok() && client.is_ok());
}

#[test]
fn a_proof_cannot_be_reflected_or_replayed() {
    let (mut listener, address) = listen(&network());
    // Records a whole good handshake and one message as the client sends them.
    let proxy = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let at = proxy.local_addr().unwrap();
    let client = std::thread::spawn(move || network().connect_tcp(&[at], claims(1, 0), soon()).unwrap());
    let recorder = std::thread::spawn(move || {
        let (mut client, mut server) = (proxy.accept().unwrap().0, TcpStream::connect(address).unwrap());
        let (mut hello, mut reply, mut proof) = ([0; 64], [0; 96], [0; 32]);
        client.read_exact(&mut hello).unwrap();
        server.write_all(&hello).unwrap();
        server.read_exact(&mut reply).unwrap();
        client.write_all(&reply).unwrap();
        client.read_exact(&mut proof).unwrap();
        server.write_all(&proof).unwrap();
        let mut taken = [0; 32];
        server.read_exact(&mut taken).unwrap();
        client.write_all(&taken).unwrap();
        (hello, reply, proof, server)
    });
    listener.accept(soon()).unwrap();
    client.join().unwrap();
    let (hello, reply, proof, _server) = recorder.join().unwrap();
    // Replayed to the listener: its nonce is another one, so the old proof is worth nothing. Reflected: the
    // server's own MAC does not pass as a client's.
    for answer in [&proof[..], &reply[64..]] {
        let mut replay = TcpStream::connect(address).unwrap();
        replay.write_all(&hello).unwrap();
        replay.write_all(answer).unwrap();
        assert_eq!(listener.accept(millis(300)).unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert_eq!(listener.rejections().count, 2);
}

/// A stranger between the two may change what tells the client that the listener has taken the connection, or has refused
/// it: neither is believed without proof.
#[test]
fn the_last_message_of_a_handshake_cannot_be_forged() {
    let forgeries: [fn(&mut [u8; 32]); 4] = [
        |taken| taken[0] ^= 1,
        |taken| taken[31] ^= 0x80,
        |taken| taken[24..].fill(0),
        |taken| *taken = [0; 32],
    ];
    for forge in forgeries {
        let (mut listener, address) = listen(&network());
        let proxy = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        let at = proxy.local_addr().unwrap();
        let client = std::thread::spawn(move || network().connect_tcp(&[at], claims(1, 0), soon()));
        let between = std::thread::spawn(move || {
            let (mut client, mut server) = (proxy.accept().unwrap().0, TcpStream::connect(address).unwrap());
            let (mut hello, mut reply, mut proof, mut taken) = ([0; 64], [0; 96], [0; 32], [0; 32]);
            client.read_exact(&mut hello).unwrap();
            server.write_all(&hello).unwrap();
            server.read_exact(&mut reply).unwrap();
            client.write_all(&reply).unwrap();
            client.read_exact(&mut proof).unwrap();
            server.write_all(&proof).unwrap();
            server.read_exact(&mut taken).unwrap();
            forge(&mut taken);
            client.write_all(&taken).unwrap();
            // Open until the client has judged it.
            (client, server)
        });
        listener.accept(soon()).unwrap();
        let error = client.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
        assert!(error.to_string().contains("could not prove the job's secret"), "{error}");
        drop(between.join().unwrap());
    }
}

/// Relays a handshake with `listener`, of whose answers it lets the first `bytes` through.
fn relay(client: &mut TcpStream, listener: SocketAddr, bytes: usize) -> std::io::Result<TcpStream> {
    let mut server = TcpStream::connect(listener)?;
    let (mut hello, mut reply, mut proof, mut taken) = ([0; 64], [0; 96], [0; 32], [0; 32]);
    client.read_exact(&mut hello)?;
    server.write_all(&hello)?;
    server.read_exact(&mut reply)?;
    client.write_all(&reply[..bytes.min(96)])?;
    if bytes < 96 {
        return Ok(server);
    }
    client.read_exact(&mut proof)?;
    server.write_all(&proof)?;
    server.read_exact(&mut taken)?;
    client.write_all(&taken[..bytes - 96])?;
    Ok(server)
}

/// A listener that is pressed for room closes connections that have not said anything, or whose proof it has not read.
#[test]
fn a_listener_that_closes_before_it_answers_is_asked_again_and_one_that_breaks_off_is_not() {
    let (reactor, _seen) = reactor::reactor();
    let (listener, address) = listen(&network());
    reactor.listen(listener);
    for (bytes, again) in [(0, true), (7, true), (8, false), (20, false), (95, false), (96, true)] {
        let between = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
        let at = between.local_addr().unwrap();
        let client = std::thread::spawn(move || network().connect_tcp(&[at], claims(1, 0), soon()));
        let (mut first, _) = between.accept().unwrap();
        drop(relay(&mut first, address, bytes).unwrap());
        between.set_nonblocking(true).unwrap();
        drop(first);
        if again {
            let mut second = loop {
                match between.accept() {
                    Ok((stream, _)) => break stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
                assert!(!client.is_finished(), "it was not asked again after {bytes} bytes");
            };
            second.set_nonblocking(false).unwrap();
            let _server = relay(&mut second, address, 128).unwrap();
            client.join().unwrap().unwrap();
        } else {
            let error = client.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Authentication, "after {bytes} bytes: {error}");
        }
    }
}

#[test]
fn a_peer_that_leaves_instead_of_proving_the_secret_is_asked_for_its_unique_id() {
    let (mut listener, address) = listen(&network());
    let mut peer = TcpStream::connect(address).unwrap();
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"AQHS\x01\x00\x00\x00");
    peer.write_all(&hello).unwrap();
    assert_eq!(listener.accept(millis(50)).unwrap_err().kind(), ErrorKind::Timeout);
    peer.read_exact(&mut [0; 96]).unwrap();
    drop(peer);
    let error = listener.accept(millis(50)).unwrap_err();
    assert!(error.to_string().contains("without proving the job's secret"), "{error}");
}

#[test]
fn who_has_said_something_is_kept_longer_than_who_has_not() {
    // No handshake ends by time meanwhile.
    let (mut listener, address) = listen(&network().with_max_pending(2).with_handshake_timeout(HOUR));
    let mut connect = |says: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(says).unwrap();
        assert_eq!(listener.accept(millis(50)).unwrap_err().kind(), ErrorKind::Timeout);
        stream
    };
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"AQHS\x01\x00\x00\x00");
    let [mut greeted, mut silent, _third] = [&hello[..], b"", b""].map(&mut connect);
    greeted.read_exact(&mut [0; 96]).unwrap();
    greeted.set_nonblocking(true).unwrap();
    assert_eq!(greeted.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(is_closed(&mut silent), "the oldest that has said nothing is closed");
}

#[test]
fn a_listener_has_room_for_what_all_ranks_need_and_not_for_all_that_each_might_open() {
    for ranks in [1, 3, 1000] {
        let most = network().with_ranks(ranks).max_connections;
        assert!(most >= 64 + 4 * ranks as usize, "{most} of {ranks} ranks");
    }
    assert!(network().with_ranks(1000).max_connections < 1000 * MAX_PER_RANK);
}

#[test]
fn garbage_is_dropped_after_eight_bytes() {
    // No handshake ends by time meanwhile.
    let (mut listener, address) = listen(&network().with_handshake_timeout(HOUR));
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(listener.accept(millis(200)).is_err());
    assert!(listener.rejections().latest.as_ref().unwrap().contains("does not speak"));
    assert!(is_closed(&mut stranger));
}

#[test]
fn another_version_is_named() {
    let (mut listener, address) = listen(&network());
    let mut hello = [0; 64];
    hello[..6].copy_from_slice(b"AQHS\x09\x00");
    let mut old = TcpStream::connect(address).unwrap();
    old.write_all(&hello).unwrap();
    assert!(listener.accept(millis(200)).is_err());
    assert!(listener.rejections().latest.as_ref().unwrap().contains("version 9"));
    let mut answer = [0; 8];
    old.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..6], b"AQHS\x01\x00");
}

#[test]
fn silent_and_slow_strangers_do_not_delay_a_peer() {
    // No handshake ends by time meanwhile.
    let patient = network().with_handshake_timeout(HOUR);
    let (mut listener, address) = listen(&patient.with_max_pending(16));
    let strangers: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut stranger = TcpStream::connect(address).unwrap();
            if i % 2 == 0 {
                stranger.write_all(b"AQHS\x01\x00\x00\x00 and then nothing").unwrap();
            }
            stranger
        })
        .collect();
    let client = std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), soon()).unwrap());
    listener.accept(soon()).unwrap();
    client.join().unwrap();
    assert!(listener.rejections().count >= 180);
    drop(strangers);
}

#[test]
fn a_handshake_has_its_own_time_limit() {
    let (mut listener, address) = listen(&network().with_handshake_timeout(Duration::from_millis(50)));
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(b"AQHS").unwrap();
    assert!(listener.accept(millis(300)).is_err());
    assert!(listener.rejections().latest.as_ref().unwrap().contains("in time"));
    assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn an_authenticated_peer_cannot_announce_a_gigabyte_or_send_garbage() {
    let huge = FrameHeader { kind: 1, length: 1 << 30, fds: 0 }.encode();
    for bytes in [huge, [0xff; 16]] {
        let (mut server, client) = pair(&network());
        client.raw.write(&bytes, &[]).unwrap();
        assert_eq!(server.recv(soon()).unwrap_err().kind(), ErrorKind::Remote);
    }
}

/// A peer that knows the secret can open connections, but only a limited number.
#[test]
fn connections_of_one_rank_and_of_all_ranks_are_capped() {
    let (sender, accepted) = std::sync::mpsc::channel();
    let reactor = Reactor::start("test", ReactorConfig::default(), Box::new(Taker(sender))).unwrap();
    let (listener, address) = listen(&network().with_ranks(3));
    reactor.listen(listener);
    let connect = |from| network().connect_tcp(&[address], claims(from, 0), soon());
    let mut open: Vec<Stream> = (0..MAX_PER_RANK).map(|_| connect(1).unwrap()).collect();
    let refused = connect(1).unwrap_err();
    assert!(refused.to_string().contains("rank 1 has 8 connections"), "{refused}");
    assert_ne!(refused.kind(), ErrorKind::PeerLost, "the listener is there");
    // The others are not held up by it, and a place becomes free with the connection that took it.
    open.push(connect(2).unwrap());
    assert_eq!(accepted.iter().take(MAX_PER_RANK + 1).filter(|from| *from == 1).count(), MAX_PER_RANK);
    drop(open.swap_remove(0));
    let again = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        connect(1).ok()
    });
    assert!(again.is_some(), "the place of a closed connection was not given back");
    // Ranks that nobody can be are refused at the door.
    let refused = connect(3).unwrap_err();
    assert!(refused.to_string().contains("there are 3 ranks"), "{refused}");
}

/// Tells who was accepted.
struct Taker(std::sync::mpsc::Sender<u32>);

impl Handler for Taker {
    fn accepted(&mut self, link: &Link) {
        self.0.send(link.peer().from).unwrap();
    }

    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &crate::Error) {}
}
