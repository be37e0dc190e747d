//! Many links on one service thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::trouble::{narrow, serve, troubled};
use super::*;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::wire::FrameHeader;

/// One call of the handler.
#[derive(Debug)]
pub(super) enum Seen {
    Accepted(Link),
    Frame(u64, u16, Vec<u8>),
    Closed(u64, ErrorKind),
    Tick,
}

struct Teller(Sender<Seen>);

impl Handler for Teller {
    fn accepted(&mut self, link: &Link) {
        self.0.send(Seen::Accepted(link.clone())).unwrap();
    }

    fn frame(&mut self, link: &Link, frame: Frame) -> Result<()> {
        assert_ne!(frame.kind, 666, "the handler was asked to panic");
        if frame.kind == 667 {
            return Err(crate::Error::new(ErrorKind::Remote, "test", "the handler was asked to refuse"));
        }
        self.0.send(Seen::Frame(link.id(), frame.kind, frame.payload)).unwrap();
        Ok(())
    }

    fn closed(&mut self, link: &Link, why: &crate::Error) {
        self.0.send(Seen::Closed(link.id(), why.kind())).unwrap();
    }

    fn tick(&mut self) {
        let _ = self.0.send(Seen::Tick);
    }
}

pub(super) fn reactor() -> (Reactor, Receiver<Seen>) {
    let (sender, seen) = channel();
    (Reactor::start("test", ReactorConfig::default(), Box::new(Teller(sender))).unwrap(), seen)
}

pub(super) fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(Duration::from_secs(20)).expect("the service thread said nothing")
}

#[test]
fn accepts_delivers_in_order_and_tells_of_the_end() {
    let (reactor, seen) = reactor();
    let (listener, address) = listen(&network());
    reactor.listen(listener);
    let mut client = network().connect_tcp(&[address], claims(4, 0), soon()).unwrap();
    let Seen::Accepted(link) = next(&seen) else { panic!("not accepted") };
    assert_eq!(link.peer().from, 4);
    for i in 0..100_u16 {
        client.send(i, &i.to_le_bytes(), soon()).unwrap();
    }
    for i in 0..100_u16 {
        let Seen::Frame(id, kind, payload) = next(&seen) else { panic!("no frame") };
        assert_eq!((id, kind, payload), (link.id(), i, i.to_le_bytes().to_vec()));
    }
    link.post(7, b"answer").unwrap();
    assert_eq!(client.recv(soon()).unwrap().payload, b"answer");
    drop(client);
    assert!(matches!(next(&seen), Seen::Closed(id, ErrorKind::PeerLost) if id == link.id()));
    assert_eq!(link.post(7, b"").unwrap_err().kind(), ErrorKind::PeerLost);
    // Everything posted before the end has been sent.
    link.flush(soon()).unwrap();
}

#[test]
fn a_full_socket_queues_and_flush_waits_for_it() {
    let (reactor, _seen) = reactor();
    let (mut server, client) = pair(&network());
    let link = reactor.add(client);
    let chunk = |i: u8| vec![i; 1 << 20];
    (0..40).for_each(|i| link.post(1, &chunk(i)).unwrap());
    assert_eq!(link.flush(millis(30)).unwrap_err().kind(), ErrorKind::Timeout);
    let refused = (40..255).find_map(|i| link.post(1, &chunk(i)).err()).expect("the queue has a bound");
    assert_eq!(refused.kind(), ErrorKind::Remote);
    let reader = std::thread::spawn(move || {
        let firsts: Vec<u8> = (0..40).map(|_| server.recv(soon()).unwrap().payload[17]).collect();
        (firsts, server)
    });
    let (firsts, mut server) = reader.join().unwrap();
    assert_eq!(firsts, (0..40).collect::<Vec<u8>>());
    let drain = std::thread::spawn(move || while server.recv(soon()).is_ok() {});
    link.flush(soon()).unwrap();
    // Nothing that was sent waits any more.
    for _ in 0..70 {
        link.post(1, &chunk(0)).unwrap();
        link.flush(soon()).unwrap();
    }
    drop(reactor);
    drain.join().unwrap();
}

#[test]
fn flush_fails_if_the_peer_goes_before_all_is_sent() {
    let (reactor, _seen) = reactor();
    let (server, client) = pair(&network());
    let link = reactor.add(client);
    (0..40).for_each(|_| link.post(1, &[0; 1 << 20]).unwrap());
    drop(server);
    assert_eq!(link.flush(soon()).unwrap_err().kind(), ErrorKind::PeerLost);
}

#[test]
fn posts_of_many_threads_stay_whole() {
    let (reactor, seen) = reactor();
    let (server, client) = pair(&network());
    let (a, _b) = (reactor.add(client), reactor.add(server));
    std::thread::scope(|s| {
        for thread in 0..4_u16 {
            let a = &a;
            s.spawn(move || (0..200_u16).for_each(|i| a.post(thread, &[i as u8; 5000]).unwrap()));
        }
    });
    let mut counts = [0_u8; 4];
    for _ in 0..800 {
        let Seen::Frame(_, thread, payload) = next(&seen) else { panic!("no frame") };
        assert!(payload.iter().all(|byte| *byte == counts[thread as usize]));
        counts[thread as usize] += 1;
    }
}

#[test]
fn what_was_posted_before_the_end_arrives() {
    for close in [true, false] {
        let both = troubled();
        if close {
            narrow(&both.1, &both.0);
        }
        let (reactor, _seen, link, mut server, trouble) = serve(both);
        (0..20).for_each(|_| link.post(1, &[3; 10_000]).unwrap());
        let mut reader = move || std::iter::from_fn(|| server.recv(soon()).ok()).count();
        if close {
            link.close();
            assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::InvalidUsage);
            assert_eq!(reader(), 20);
            assert!(!lock(&trouble.ends)[0], "it was ended before all was sent");
        } else {
            let reader = std::thread::spawn(reader);
            drop(reactor);
            assert_eq!(reader.join().unwrap(), 20);
        }
    }
}

/// The peer neither reads nor closes, whether nothing is on its way to it or more than the socket takes.
#[test]
fn dropping_does_not_wait_for_a_peer_that_does_nothing() {
    for frames in [0, 40] {
        let (reactor, _seen) = reactor();
        let (server, client) = pair(&network());
        let link = reactor.add(client);
        (0..frames).for_each(|_| link.post(1, &[0; 1 << 20]).unwrap());
        let (end, ended) = channel();
        let dropping = std::thread::spawn(move || {
            drop(reactor);
            end.send(()).unwrap();
        });
        // Only a drop that waits for the peer needs so long.
        ended.recv_timeout(Duration::from_secs(60)).expect("the drop waits for the peer");
        dropping.join().unwrap();
        assert!(link.post(1, b"").is_err());
        drop(server);
    }
}

#[test]
fn bad_frames_and_panicking_handlers_end_links_not_the_process() {
    let (reactor, seen) = reactor();
    let (mut bad, first) = pair(&network());
    let (mut good, second) = pair(&network());
    let (_waits, third) = pair(&network());
    let (first, second, third) = (reactor.add(first), reactor.add(second), reactor.add(third));
    third.close();
    bad.raw.write(&[0xff; 16], &[]).unwrap();
    assert!(matches!(next(&seen), Seen::Closed(id, ErrorKind::Remote) if id == first.id()));
    assert!(bad.recv(soon()).is_err());
    good.send(1, b"fine", soon()).unwrap();
    assert!(matches!(next(&seen), Seen::Frame(id, 1, _) if id == second.id()));
    good.send(666, b"", soon()).unwrap();
    assert_eq!(good.recv(soon()).unwrap_err().kind(), ErrorKind::PeerLost);
    assert_eq!(second.post(1, b"").unwrap_err().kind(), ErrorKind::Internal);
    // Or nobody would know that nothing comes any more.
    assert!(matches!(next(&seen), Seen::Closed(id, ErrorKind::Internal) if id == second.id()));
    drop(reactor);
    let told: Vec<Seen> = seen.try_iter().collect();
    assert!(told.is_empty(), "of a link that was closed here: {told:?}");
}

#[test]
fn ticks_come_without_traffic_and_strangers_are_timed_out() {
    let (sender, seen) = channel();
    let config = ReactorConfig { tick: Some(Duration::from_millis(5)) };
    let reactor = Reactor::start("test", config, Box::new(Teller(sender))).unwrap();
    let (listener, address) = listen(&network().with_handshake_timeout(Duration::from_millis(50)));
    reactor.listen(listener);
    let mut stranger = std::net::TcpStream::connect(address).unwrap();
    assert!(matches!(std::io::Read::read(&mut stranger, &mut [0; 1]), Ok(0) | Err(_)));
    assert!((0..3).all(|_| matches!(next(&seen), Seen::Tick)));
    reactor.stop_listening();
    std::thread::sleep(Duration::from_millis(20));
    assert!(network().connect_tcp(&[address], claims(1, 0), millis(100)).is_err());
}

#[test]
fn ticks_come_no_more_often_than_they_should() {
    let (sender, seen) = channel();
    let (tick, start) = (Duration::from_millis(30), Instant::now());
    let _reactor =
        Reactor::start("test", ReactorConfig { tick: Some(tick) }, Box::new(Teller(sender))).unwrap();
    assert!((0..4).all(|_| matches!(next(&seen), Seen::Tick)));
    assert!(start.elapsed() >= 4 * tick);
}

#[test]
fn what_was_posted_before_a_link_is_served_is_sent() {
    let (reactor, _seen) = reactor();
    let (mut server, client) = pair(&network());
    narrow(&client, &server);
    let (held, go) = hold(&reactor);
    held.recv().unwrap();
    let link = reactor.add(client);
    (0..20).for_each(|_| link.post(1, &[3; 10_000]).unwrap());
    go.send(()).unwrap();
    (0..20).for_each(|_| assert_eq!(server.recv(soon()).unwrap().payload.len(), 10_000));
}

#[test]
fn frames_that_were_read_before_come_first_and_may_be_refused() {
    let (reactor, seen) = reactor();
    let (mut server, client) = pair(&network());
    let frame = |kind| FrameHeader { kind, length: 0, fds: 0 }.encode();
    let bytes = [frame(1), frame(2), frame(667)].concat();
    assert_eq!(client.raw.write(&bytes, &[]).unwrap(), bytes.len());
    assert_eq!(server.recv(soon()).unwrap().kind, 1);
    let link = reactor.add(server);
    assert!(matches!(next(&seen), Seen::Frame(id, 2, _) if id == link.id()));
    assert!(matches!(next(&seen), Seen::Closed(id, ErrorKind::Remote) if id == link.id()));
    assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::Remote);
}

/// Counts the rounds of its service thread.
struct Rounds(Arc<AtomicU32>);

impl Handler for Rounds {
    fn frame(&mut self, _: &Link, _: Frame) -> Result<()> {
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &crate::Error) {}

    fn finished(&self) -> bool {
        self.0.fetch_add(1, Ordering::AcqRel);
        false
    }
}

#[test]
fn a_service_thread_without_work_sleeps() {
    let rounds = Arc::new(AtomicU32::new(0));
    let reactor = Reactor::start("test", ReactorConfig::default(), Box::new(Rounds(rounds.clone()))).unwrap();
    let (mut server, client) = pair(&network());
    let link = reactor.add(client);
    let (listener, _) = listen(&network());
    reactor.listen(listener);
    link.post(1, b"").unwrap();
    server.recv(soon()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let before = rounds.load(Ordering::Acquire);
    std::thread::sleep(Duration::from_millis(300));
    let more = rounds.load(Ordering::Acquire) - before;
    assert!(before > 0 && more < 10, "{more} rounds");
}

/// Tells why it is not served any more. Panics when it is polled, if it is `bad`.
pub(super) struct Told {
    socket: OwnedFd,
    bad: bool,
    polled: Sender<()>,
    why: Sender<ErrorKind>,
}

impl Pollable for Told {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn progress(&self) -> Next {
        let _ = self.polled.send(());
        assert!(!self.bad, "the pollable was asked to panic");
        Next::Wait(Interest::default())
    }

    fn unserved(&self, why: &crate::Error) {
        let _ = self.why.send(why.kind());
        assert!(!self.bad, "the pollable was asked to panic again");
    }
}

/// A socket on which nothing ever happens.
pub(super) fn idle() -> OwnedFd {
    std::net::UdpSocket::bind((LOCALHOST, 0)).unwrap().into()
}

/// A pollable, and what it hears: that it was polled, and why it is not served.
pub(super) fn told(bad: bool) -> (Arc<Told>, Receiver<()>, Receiver<ErrorKind>) {
    let socket = idle();
    let ((polled, polls), (why, whys)) = (channel(), channel());
    (Arc::new(Told { socket, bad, polled, why }), polls, whys)
}

/// Returns when the service thread has obeyed what was asked of it, and has served what was there.
pub(super) fn settle(reactor: &Reactor) {
    for _ in 0..2 {
        let (fence, polls, _whys) = told(false);
        reactor.reserve().serve(fence);
        polls.recv_timeout(Duration::from_secs(20)).expect("the service thread did not come");
    }
}

/// Holds the service thread until `go` says something.
struct Holds(OwnedFd, Sender<()>, Mutex<Receiver<()>>);

impl Pollable for Holds {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn progress(&self) -> Next {
        let _ = self.1.send(());
        let _ = self.2.lock().unwrap().recv();
        Next::Done
    }

    fn unserved(&self, why: &crate::Error) {
        panic!("{why}");
    }
}

/// Holds the service thread from the first message until the second.
fn hold(reactor: &Reactor) -> (Receiver<()>, Sender<()>) {
    let socket = idle();
    let ((held, holds), (go, goes)) = (channel(), channel());
    reactor.reserve().serve(Arc::new(Holds(socket, held, Mutex::new(goes))));
    (holds, go)
}

#[test]
fn when_the_thread_dies_every_pollable_is_told_also_those_that_come_too_late() {
    const SOON: Duration = Duration::from_secs(20);
    let (reactor, _seen) = reactor();
    let served = told(false);
    reactor.reserve().serve(served.0);
    served.1.recv_timeout(SOON).unwrap();
    // While the thread is held, queues the one that panics, and a link and another one behind it.
    let (holds, go) = hold(&reactor);
    holds.recv_timeout(SOON).unwrap();
    let (bad, queued) = (told(true), told(false));
    reactor.reserve().serve(bad.0);
    let (_server, client) = pair(&network());
    let link = reactor.add(client);
    reactor.reserve().serve(queued.0);
    go.send(()).unwrap();
    for (name, whys) in [("served", &served.2), ("bad", &bad.2), ("queued", &queued.2)] {
        assert_eq!(whys.recv_timeout(SOON), Ok(ErrorKind::Internal), "{name}");
    }
    assert!(queued.1.try_recv().is_err());
    let late = told(false);
    reactor.reserve().serve(late.0);
    assert_eq!(late.2.recv_timeout(SOON), Ok(ErrorKind::Internal), "late");
    let (_server, client) = pair(&network());
    assert_eq!(reactor.add(client).post(1, b"").unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::Internal);
}
