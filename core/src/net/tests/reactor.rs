//! Many links on one service thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::*;

/// One call of the handler.
#[derive(Debug)]
enum Seen {
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

fn reactor() -> (Reactor, Receiver<Seen>) {
    let (sender, seen) = channel();
    (Reactor::start("test", ReactorConfig::default(), Box::new(Teller(sender))).unwrap(), seen)
}

fn next(seen: &Receiver<Seen>) -> Seen {
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
        let (reactor, _seen) = reactor();
        let (mut server, client) = pair(&network());
        let link = reactor.add(client);
        (0..20).for_each(|_| link.post(1, &[3; 100_000]).unwrap());
        let reader = std::thread::spawn(move || std::iter::from_fn(|| server.recv(soon()).ok()).count());
        if close {
            link.close();
            assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::InvalidUsage);
        } else {
            drop(reactor);
        }
        assert_eq!(reader.join().unwrap(), 20);
    }
}

#[test]
fn dropping_is_quick_even_with_a_peer_that_does_nothing() {
    let (reactor, _seen) = reactor();
    let (server, client) = pair(&network());
    let link = reactor.add(client);
    let start = Instant::now();
    drop(reactor);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(link.post(1, b"").is_err());
    drop(server);
}

#[test]
fn bad_frames_and_panicking_handlers_end_links_not_the_process() {
    let (reactor, seen) = reactor();
    let (mut bad, first) = pair(&network());
    let (mut good, second) = pair(&network());
    let (first, second) = (reactor.add(first), reactor.add(second));
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

/// A stream over which the kernel takes no descriptors while too many are on their way.
#[derive(Debug)]
struct Crowded(Box<dyn RawStream>, Arc<crate::sync::AtomicBool>);

impl RawStream for Crowded {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
        self.0.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        if self.1.load(crate::sync::Ordering::Acquire) {
            return Err(std::io::Error::from_raw_os_error(libc::ETOOMANYREFS));
        }
        self.0.write(from, fds)
    }

    fn shutdown(&self, both: bool) -> std::io::Result<()> {
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[derive(Debug)]
struct Crowd(Arc<crate::sync::AtomicBool>);

impl Layer for Crowd {
    fn wrap(&self, _: Claims, _: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        Box::new(Crowded(raw, self.0.clone()))
    }
}

#[test]
fn descriptors_that_the_kernel_does_not_take_now_are_sent_later() {
    let crowded = Arc::new(crate::sync::AtomicBool::new(false));
    let (reactor, _seen) = reactor();
    let (mut server, client) = pair(&network().with_layer(Arc::new(Crowd(crowded.clone()))));
    let link = reactor.add(client);
    crowded.store(true, crate::sync::Ordering::Release);
    link.post(1, b"waits").unwrap();
    assert_eq!(link.flush(millis(250)).unwrap_err().kind(), ErrorKind::Timeout);
    crowded.store(false, crate::sync::Ordering::Release);
    link.flush(soon()).unwrap();
    assert_eq!(server.recv(soon()).unwrap().payload, b"waits");
}

/// Tells why it is not served any more. Panics when it is polled, if it is `bad`.
struct Told {
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

/// A pollable, and what it hears: that it was polled, and why it is not served.
fn told(bad: bool) -> (Arc<Told>, Receiver<()>, Receiver<ErrorKind>) {
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let ((polled, polls), (why, whys)) = (channel(), channel());
    (Arc::new(Told { socket: socket.into(), bad, polled, why }), polls, whys)
}

/// Holds the service thread until `go` says something.
struct Holds(OwnedFd, Sender<()>, std::sync::Mutex<Receiver<()>>);

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

#[test]
fn when_the_thread_dies_every_pollable_is_told_also_those_that_come_too_late() {
    const SOON: Duration = Duration::from_secs(20);
    let (reactor, _seen) = reactor();
    let served = told(false);
    reactor.reserve().serve(served.0);
    served.1.recv_timeout(SOON).unwrap();
    // While the thread is held, queues the one that panics, and a link and another one behind it.
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let ((held, holds), (go, goes)) = (channel(), channel());
    reactor.reserve().serve(Arc::new(Holds(socket.into(), held, std::sync::Mutex::new(goes))));
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
