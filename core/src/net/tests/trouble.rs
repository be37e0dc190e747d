//! Links whose sockets fail, are full, or cannot take descriptors.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::reactor::{Seen, next, reactor, settle};
use super::*;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::wire::FrameHeader;

/// The troubles of a stream of rank 1, and what was asked of it.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// An error number, and how many calls fail with it from now on.
    pub(super) read: Mutex<(i32, u32)>,
    pub(super) write: Mutex<(i32, u32)>,
    /// How many empty frames can be read besides what the peer sends.
    frames: AtomicU32,
    writes: AtomicU32,
    /// The calls of `shutdown`.
    pub(super) ends: Mutex<Vec<bool>>,
}

#[derive(Debug)]
struct Troubled(Box<dyn RawStream>, Arc<Trouble>);

fn fail(trouble: &Mutex<(i32, u32)>) -> std::io::Result<()> {
    let (error, times) = &mut *lock(trouble);
    if *times == 0 {
        return Ok(());
    }
    *times -= 1;
    Err(std::io::Error::from_raw_os_error(*error))
}

impl RawStream for Troubled {
    fn read(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
        fail(&self.1.read)?;
        if self.1.frames.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
        {
            let frame = FrameHeader { kind: 1, length: 0, fds: 0 }.encode();
            into[..frame.len()].copy_from_slice(&frame);
            return Ok(frame.len());
        }
        self.0.read(into, fds)
    }

    fn write(&self, from: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        self.1.writes.fetch_add(1, Ordering::AcqRel);
        fail(&self.1.write)?;
        self.0.write(from, fds)
    }

    fn shutdown(&self, both: bool) -> std::io::Result<()> {
        lock(&self.1.ends).push(both);
        self.0.shutdown(both)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[derive(Debug)]
struct Troubles(Arc<Trouble>);

impl Layer for Troubles {
    fn wrap(&self, local: Claims, _: Claims, raw: Box<dyn RawStream>) -> Box<dyn RawStream> {
        if local.from == 1 { Box::new(Troubled(raw, self.0.clone())) } else { raw }
    }
}

/// Both ends of a stream, and the troubles of that of rank 1, which is the second.
pub(super) fn troubled() -> (Stream, Stream, Arc<Trouble>) {
    let trouble = Arc::new(Trouble::default());
    let (server, client) = pair(&network().with_layer(Arc::new(Troubles(trouble.clone()))));
    (server, client, trouble)
}

/// A link of rank 1 that is served, its other end, its troubles, and what its handler sees.
fn served() -> (Reactor, Receiver<Seen>, Link, Stream, Arc<Trouble>) {
    serve(troubled())
}

pub(super) fn serve(
    (mut server, client, trouble): (Stream, Stream, Arc<Trouble>),
) -> (Reactor, Receiver<Seen>, Link, Stream, Arc<Trouble>) {
    let (reactor, seen) = reactor();
    let link = reactor.add(client);
    server.send(1, b"", soon()).unwrap();
    assert!(matches!(next(&seen), Seen::Frame(..)));
    (reactor, seen, link, server, trouble)
}

/// Has the kernel keep little of what is sent to `reader`, so that most waits at the sender.
pub(super) fn narrow(writer: &Stream, reader: &Stream) {
    for (stream, option) in [(writer, libc::SO_SNDBUF), (reader, libc::SO_RCVBUF)] {
        let bytes: libc::c_int = 16 << 10;
        let size = size_of_val(&bytes) as libc::socklen_t;
        // SAFETY: `bytes` lives across the call and its size is passed with it.
        let set = unsafe {
            libc::setsockopt(
                stream.raw.fd().as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size,
            )
        };
        assert_eq!(set, 0);
    }
}

#[test]
fn descriptors_that_the_kernel_does_not_take_now_are_sent_later() {
    let (_reactor, _seen, link, mut server, trouble) = served();
    *lock(&trouble.write) = (libc::ETOOMANYREFS, u32::MAX);
    let begun = Instant::now();
    link.post(1, b"waits").unwrap();
    let late = link.flush(millis(250)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert!(late.message().contains("21 bytes"), "{late}");
    let tries = trouble.writes.load(Ordering::Acquire);
    assert!(u128::from(tries) <= 2 + begun.elapsed().as_millis() / 100, "{tries} tries are a busy loop");
    *lock(&trouble.write) = (0, 0);
    link.flush(soon()).unwrap();
    assert_eq!(server.recv(soon()).unwrap().payload, b"waits");
}

#[test]
fn a_link_that_cannot_be_written_or_read_has_ended() {
    for writing in [true, false] {
        let (_reactor, seen, link, mut server, trouble) = served();
        if writing {
            *lock(&trouble.write) = (libc::EPIPE, u32::MAX);
            assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::PeerLost);
        } else {
            *lock(&trouble.read) = (libc::ECONNRESET, u32::MAX);
            server.send(1, b"", soon()).unwrap();
        }
        assert!(matches!(next(&seen), Seen::Closed(id, ErrorKind::PeerLost) if id == link.id()));
    }
}

#[test]
fn a_peer_that_sends_without_end_does_not_keep_a_link_that_has_failed() {
    let (reactor, seen, link, _server, trouble) = served();
    // The service thread has read all that was sent.
    settle(&reactor);
    trouble.frames.store(20_000, Ordering::Release);
    *lock(&trouble.write) = (libc::EPIPE, u32::MAX);
    link.post(1, b"").unwrap_err();
    let frames = (0..).take_while(|_| matches!(next(&seen), Seen::Frame(..))).count();
    assert_eq!(frames, 4096, "more than a socket holds, and a bound");
}

#[test]
fn a_link_that_is_closed_ends_at_its_peer() {
    let (_reactor, _seen, link, mut server, trouble) = served();
    link.close();
    assert_eq!(server.recv(soon()).unwrap_err().kind(), ErrorKind::PeerLost);
    assert!(!lock(&trouble.ends)[0], "the peer may still have something to send");
}

#[test]
fn a_reactor_that_stops_ends_its_links_in_one_direction_first() {
    let (reactor, _seen, link, mut server, trouble) = served();
    let reader = std::thread::spawn(move || server.recv(soon()).unwrap_err().kind());
    drop(reactor);
    assert_eq!(reader.join().unwrap(), ErrorKind::PeerLost);
    assert!(!lock(&trouble.ends)[0], "the peer may still have something to send");
    assert!(link.post(1, b"").is_err());
}

/// An event may tell of what is gone when the socket is read, or the last read took all.
#[test]
fn a_link_that_has_nothing_to_read_goes_on() {
    let (_reactor, seen, link, mut server, trouble) = served();
    *lock(&trouble.read) = (libc::EAGAIN, 2);
    server.send(2, b"", soon()).unwrap();
    assert!(matches!(next(&seen), Seen::Frame(id, 2, _) if id == link.id()));
    assert_eq!(*lock(&trouble.read), (libc::EAGAIN, 0));
}

/// Sockets take all parts at once; what lies before them need not know of parts.
#[test]
fn a_layer_that_knows_no_parts_takes_the_first_that_is_not_empty() {
    let (server, client, _trouble) = troubled();
    let mut bytes = *b"abcde";
    let part = |from: usize, to: usize, bytes: &mut [u8]| libc::iovec {
        iov_base: bytes[from..].as_mut_ptr().cast(),
        iov_len: to - from,
    };
    let mut parts = [(0, 0), (0, 3), (3, 5)].map(|(from, to)| part(from, to, &mut bytes));
    // SAFETY: the parts lie in `bytes`, which lives and which nobody borrows meanwhile.
    assert_eq!(unsafe { client.raw.write_parts(&parts) }.unwrap(), 3);
    assert!(sys::wait(server.raw.fd(), sys::READ, soon()).unwrap());
    let mut got = [0; 9];
    assert_eq!(server.raw.read(&mut got, &mut Vec::new()).unwrap(), 3);
    assert_eq!(got[..3], *b"abc");
    assert_eq!(server.raw.write(b"vwxyz", &[]).unwrap(), 5);
    assert!(sys::wait(client.raw.fd(), sys::READ, soon()).unwrap());
    // SAFETY: as above.
    assert_eq!(unsafe { client.raw.read_parts(&mut parts) }.unwrap(), 3);
    assert_eq!(bytes, *b"vwxde");
    // SAFETY: there is no part.
    assert_eq!(unsafe { client.raw.read_parts(&mut []) }.unwrap(), 0);
}
