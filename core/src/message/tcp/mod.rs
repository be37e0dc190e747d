//! Frames over one authenticated TCP socket.
//!
//! A message leaves at once if nothing has left since the last progress; further ones are gathered and leave together, when
//! 16 KiB are full or at the next progress. So one message is as fast as a bare socket, and many share a system call.
//! Bodies of read replies are neither gathered nor copied at either end.

mod inbound;
mod liveness;
mod outbound;

use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "fuzzing")]
pub(super) use inbound::Inbound;
pub(super) use inbound::Scratch;

#[cfg(not(feature = "fuzzing"))]
use self::inbound::Inbound;
use self::inbound::MAX_BODY;
pub(super) use self::liveness::Liveness;
use self::outbound::Outbound;
use super::head::Head;
use super::lent::Lent;
use super::wire::{Sink, Wire};
use crate::error::Result;
use crate::net::RawStream;
use crate::net::ready::has_hung_up;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Bytes of reads that a peer of the same host is asked for at a time. What it sends ahead waits in sockets, for which the system takes
/// megabytes on its own: from there, and not from the processor's cache, both sides then copy. On two cores of an EPYC, two reads
/// of 1 MiB at a time went at 4.5 GB/s, and one behind the other at 10.6 (benches/records/2026-11-30-messages-two-cores).
const NEAR_WINDOW: usize = 1 << 20;

/// One TCP connection with a peer that has introduced itself.
#[derive(Debug)]
pub(super) struct TcpWire {
    raw: Box<dyn RawStream>,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// As [`Outbound::take_room`], so that whoever asks does not wait for those who send.
    made_room: AtomicBool,
    scratch: Arc<Mutex<Scratch>>,
    liveness: Liveness,
    /// The peer is on this host.
    near: bool,
}

impl TcpWire {
    /// Holds back at most `send_buffer` bytes of messages. `scratch` is where all wires of a messenger receive. A peer whose host
    /// does not answer for `timeout` is lost.
    pub(super) fn new(
        raw: Box<dyn RawStream>,
        send_buffer: usize,
        scratch: Arc<Mutex<Scratch>>,
        timeout: Option<Duration>,
    ) -> Self {
        let liveness = Liveness::new(&*raw, timeout);
        let (outbound, inbound) = (Mutex::new(Outbound::new(send_buffer)), Mutex::default());
        let near = is_near(raw.fd());
        Self { raw, outbound, inbound, made_room: AtomicBool::new(false), scratch, liveness, near }
    }

    fn outbound<T>(&self, f: impl FnOnce(&mut Outbound) -> T) -> T {
        let mut outbound = lock(&self.outbound);
        let result = f(&mut outbound);
        if outbound.take_room() {
            self.made_room.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Whether both ends of a TCP connection have one address.
fn is_near(socket: BorrowedFd<'_>) -> bool {
    let ends = || {
        let stream = TcpStream::from(socket.try_clone_to_owned()?);
        Ok::<_, std::io::Error>((stream.local_addr()?.ip(), stream.peer_addr()?.ip()))
    };
    ends().is_ok_and(|(here, there)| here == there)
}

impl Wire for TcpWire {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn max_body(&self) -> usize {
        MAX_BODY
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        self.outbound(|outbound| outbound.push(&*self.raw, head, body))
    }

    fn push_lent(&self, head: Head, body: Lent) -> Result<bool> {
        self.outbound(|outbound| outbound.push_lent(&*self.raw, head, body))
    }

    fn kick(&self) -> Result<bool> {
        self.outbound(|outbound| outbound.kick(&*self.raw))
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        lock(&self.inbound).pull(&*self.raw, &mut lock(&self.scratch), sink)
    }

    /// The socket is always watched, level-triggered.
    fn arm(&self) -> Result<bool> {
        Ok(false)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.raw.fd()]
    }

    fn waits_for_room(&self) -> bool {
        true
    }

    fn take_room(&self) -> bool {
        self.made_room.load(Ordering::Relaxed) && self.made_room.swap(false, Ordering::Relaxed)
    }

    fn pull_is_syscall(&self) -> bool {
        true
    }

    fn read_window(&self) -> usize {
        if self.near { NEAR_WINDOW } else { usize::MAX }
    }

    fn check(&self) -> Result<()> {
        self.liveness.check(&*self.raw)
    }

    fn has_arrived(&self) -> bool {
        let (fd, mut unacknowledged): (_, libc::c_int) = (self.raw.fd().as_raw_fd(), 0);
        // SAFETY: the request writes one integer, which lives across the call.
        let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut unacknowledged) };
        asked < 0 || unacknowledged == 0
    }

    /// A connection that the peer has broken keeps the count of what it never acknowledged. One that the peer has closed may keep it for a
    /// minute: if its buffer was full, the system of the peer answers that there is no room (Linux, a socket in `FIN-WAIT-2` that has no process).
    fn has_ended(&self) -> bool {
        has_hung_up(self.raw.fd())
    }

    fn close(&self, both: bool) {
        lock(&self.outbound).close();
        // A socket that is not connected any more needs no shutdown.
        let _ = self.raw.shutdown(both);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::liveness::tests::Socket;
    use super::*;
    use crate::Deadline;
    use crate::message::head::Operation;

    /// A socket that is closed with something unread takes along what the system has not sent yet, so closing waits for that.
    #[test]
    fn what_the_system_has_not_sent_has_not_arrived() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mine = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        [&mine, &theirs].into_iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let wire = TcpWire::new(Box::new(Socket(mine)), 1 << 20, Arc::default(), None);
        assert!(wire.has_arrived());
        let mut bytes = vec![0; 64 << 10];
        while wire.kick().unwrap() {
            let head = Head::new(Operation::Message, 1, 0, bytes.len());
            assert!(wire.push(head, &bytes).unwrap());
        }
        assert!(!wire.has_arrived(), "the peer reads nothing");
        let deadline = Deadline::after(Duration::from_secs(30));
        while !(wire.kick().unwrap() && wire.has_arrived()) {
            // Fails as long as nothing is there.
            let _ = theirs.read(&mut bytes);
            assert!(!deadline.expired(), "the peer has read all");
        }
    }

    #[test]
    fn ends_of_one_address_are_near_and_no_others() {
        let connected = |address: Ipv4Addr| {
            let listener = TcpListener::bind((address, 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (stream, listener)
        };
        let ((own, _own), (other, _other)) =
            (connected(Ipv4Addr::LOCALHOST), connected(Ipv4Addr::new(127, 0, 0, 9)));
        assert_ne!(other.local_addr().unwrap().ip(), other.peer_addr().unwrap().ip());
        let (unix, _end) = UnixStream::pair().unwrap();
        assert_eq!([own.as_fd(), other.as_fd(), unix.as_fd()].map(is_near), [true, false, false]);
    }
}
