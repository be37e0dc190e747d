//! Frames to and from a process of the same host and user: a ring for each direction, and the unix socket over which the rings
//! were handed over.
//!
//! The socket stays open for two purposes. Its end tells that the peer is gone. And it is the doorbell: a side that sleeps is
//! woken by a byte. An eventfd would be a little cheaper, but it would be the peer's: its flags belong to both processes, so a
//! peer could clear `O_NONBLOCK`, fill the counter, and a write here would wait for ever. A send to a socket says with each call
//! that it does not wait. It also costs no descriptor, and a side that waits watches one instead of two.
//!
//! A third purpose is to hand over descriptors of exposed memory: each with one byte of its own. It is sent before the frame that
//! speaks of it is pushed, so it is there when that frame is read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::Rings;
use super::memory::RingMemory;
use super::protocol::{Consumer, Producer, Push, Violation, longest};
use crate::error::{Error, ErrorKind, Result};
use crate::message::head::Head;
use crate::message::wire::{Sink, Wire};
use crate::net::RawStream;
use crate::net::ready::has_hung_up;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The most frames that one pull gives.
const SHARE: usize = 128;
/// The most reads of the doorbell at a time. What a peer rings beyond that is taken the next time.
const LISTENS: usize = 16;
/// The byte that rings, and the one that a descriptor comes with.
const RING: u8 = 0;
const DESCRIPTOR: u8 = 1;
/// The most descriptors that may have come before their frames are read. A correct peer hands over one at a time.
const MAX_DESCRIPTORS: usize = 4;
/// Memory of the system that may be in use for what the peer has not read on the socket, in bytes, when a descriptor is sent. So
/// a peer that never reads keeps few of them on their way, which all processes of a user share a limit of.
const MAX_UNREAD: libc::c_int = 16 << 10;

/// One link over shared memory.
#[derive(Debug)]
pub(in crate::message) struct RingWire {
    /// The peer's memory, which this side writes.
    outbound: RingMemory,
    producer: Producer,
    inbound: RingMemory,
    receiver: Mutex<Receiver>,
    closed: AtomicBool,
    socket: Box<dyn RawStream>,
    /// The socket has ended: nobody writes the ring any more.
    ended: AtomicBool,
    /// Taken after `receiver`, if both are.
    bell: Mutex<Bell>,
    /// The peer has rung since [`take_room`](Wire::take_room) was last asked: perhaps because it has made room.
    rung: AtomicBool,
}

/// Bytes and descriptors that have come on the socket.
#[derive(Debug, Default)]
struct Bell {
    /// In order; `None` for those that this process had no room for.
    descriptors: VecDeque<Option<OwnedFd>>,
}

/// The reading side.
#[derive(Debug)]
struct Receiver {
    consumer: Consumer,
    /// The sleeping word is set, or was until the peer rang.
    armed: bool,
}

impl RingWire {
    /// A link whose rings are new. `socket` joins both processes, and nothing is on its way on it.
    pub(in crate::message) fn new(socket: Box<dyn RawStream>, rings: Rings) -> Self {
        let Rings { inbound, outbound } = rings;
        let consumer = Consumer::new(&inbound, 0, usize::MAX);
        let receiver = Mutex::new(Receiver { consumer, armed: false });
        let closed = AtomicBool::new(false);
        let (ended, bell, rung) = (AtomicBool::new(false), Mutex::default(), AtomicBool::new(false));
        Self { outbound, producer: Producer::new(0), inbound, receiver, closed, socket, ended, bell, rung }
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::message) fn socket(&self) -> &dyn RawStream {
        &*self.socket
    }

    /// Wakes the peer. Cannot fail in a way that matters: a full socket is readable already, and the end of a broken one is
    /// found by whoever reads it.
    #[cold]
    fn wake_peer(&self) {
        let _ = self.socket.write(&[RING], &[]);
    }

    /// Takes what the peer has rung and handed over.
    fn listen(&self, bell: &mut Bell) -> Result<()> {
        let mut bytes = [0; 64];
        for _ in 0..LISTENS {
            let mut fds = Vec::new();
            let mut came = self.socket.read(&mut bytes, &mut fds);
            if came.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE)) {
                // They would stay in the socket, which tells of them without end: better none than that.
                let mut part = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
                // SAFETY: `bytes` is writable, as long as stated, and not used meanwhile.
                came = unsafe { self.socket.read_parts(&mut part) };
            }
            match came {
                Ok(0) => self.ended.store(true, Ordering::Relaxed),
                Ok(count) => {
                    bell.take(&bytes[..count], fds);
                    self.rung.store(true, Ordering::Relaxed);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    self.ended.store(true, Ordering::Relaxed)
                }
                Err(error) => return Err(Error::system("recv", "cannot read a unix socket", error)),
            }
            break;
        }
        Ok(())
    }

    fn disarm(&self, receiver: &mut Receiver) {
        receiver.armed = false;
        receiver.consumer.disarm(&self.inbound);
    }
}

impl Wire for RingWire {
    fn name(&self) -> &'static str {
        "shared memory"
    }

    fn max_body(&self) -> usize {
        longest(&self.outbound)
    }

    fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Stopped, "send", "the link was closed"));
        }
        if body.len() > self.max_body() {
            let text = format!("a frame of {} bytes does not fit this link", body.len());
            return Err(Error::new(ErrorKind::Internal, "send", text));
        }
        let words = |sequence| words(Head { sequence, ..head }.encode());
        let mut pushed = self.producer.push(&self.outbound, words, body).map_err(broken)?;
        #[cfg(all(test, not(loom)))]
        super::tests::pushed(pushed);
        // The peer rings when it has made room. It may have done so before it was asked to.
        if pushed == Push::Full && self.producer.arm(&self.outbound, body.len()).map_err(broken)? {
            pushed = self.producer.push(&self.outbound, words, body).map_err(broken)?;
        }
        if pushed == Push::Wake {
            self.wake_peer();
        }
        Ok(pushed != Push::Full)
    }

    fn kick(&self) -> Result<bool> {
        Ok(true)
    }

    fn pull(&self, sink: &mut dyn Sink) -> Result<usize> {
        let mut receiver = lock(&self.receiver);
        let receiver = &mut *receiver;
        if receiver.armed {
            self.disarm(receiver);
            self.listen(&mut lock(&self.bell))?;
        }
        let mut taken = 0;
        while taken < SHARE {
            let Some(frame) = receiver.consumer.peek(&self.inbound).map_err(broken)? else { break };
            let head = Head::decode(&bytes(frame.prefix), u32::MAX)?;
            let len = frame.body.len();
            if head.length as usize != len {
                let text = format!("a head states {} bytes, its frame has {len}", head.length);
                return Err(Error::new(ErrorKind::Remote, "recv", text));
            }
            sink.frame(head, frame.body)?;
            taken += 1;
            if receiver.consumer.pop(&self.inbound, len) {
                self.wake_peer();
            }
        }
        if taken == 0 && self.ended.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::PeerLost, "recv", "its process ended or closed the link"));
        }
        Ok(taken)
    }

    fn arm(&self) -> Result<bool> {
        let mut receiver = lock(&self.receiver);
        let mut bell = lock(&self.bell);
        self.listen(&mut bell)?;
        receiver.armed = true;
        // A peer that has made room rings once: nobody may sleep before the next pull has told of it, whoever took it from the socket.
        let arrived = receiver.consumer.arm(&self.inbound).map_err(broken)?
            || self.rung.load(Ordering::Relaxed)
            || self.ended.load(Ordering::Relaxed);
        drop(bell);
        if arrived {
            self.disarm(&mut receiver);
        }
        Ok(arrived)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.fd()]
    }

    /// The doorbell tells of room, too, and makes the descriptor readable.
    fn waits_for_room(&self) -> bool {
        false
    }

    #[inline]
    fn take_room(&self) -> bool {
        // A load first: rounds that only look at memory take no locked instruction.
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Relaxed)
    }

    fn gathers(&self) -> bool {
        false
    }

    fn pull_is_syscall(&self) -> bool {
        false
    }

    fn passes_descriptors(&self) -> bool {
        true
    }

    fn send_descriptor(&self, fd: BorrowedFd<'_>) -> bool {
        let mut unread: libc::c_int = 0;
        // SAFETY: `unread` is a live output of the type that the call stores.
        let asked = unsafe { libc::ioctl(self.socket.fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        asked == 0 && unread <= MAX_UNREAD && matches!(self.socket.write(&[DESCRIPTOR], &[fd]), Ok(1))
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        let mut bell = lock(&self.bell);
        if bell.descriptors.is_empty() {
            // An error shows when the link sleeps.
            let _ = self.listen(&mut bell);
        }
        bell.descriptors.pop_front().flatten()
    }

    /// Asked without reading, because a thread that sleeps may wait for the bytes.
    fn has_ended(&self) -> bool {
        has_hung_up(self.socket.fd())
    }

    fn close(&self, both: bool) {
        self.closed.store(true, Ordering::Relaxed);
        // A socket whose peer is gone needs no shutdown.
        let _ = self.socket.shutdown(both);
    }
}

impl Bell {
    /// Keeps the descriptors that `bytes` announce. Others, which nobody asked for, are closed.
    fn take(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        for _ in bytes.iter().filter(|byte| **byte == DESCRIPTOR) {
            if self.descriptors.len() < MAX_DESCRIPTORS {
                self.descriptors.push_back(fds.next());
            }
        }
    }
}

#[cold]
fn broken(violation: Violation) -> Error {
    Error::new(ErrorKind::Remote, "progress", format!("the peer broke the protocol: {violation}"))
}

#[inline]
fn words(bytes: [u8; Head::BYTES]) -> [u64; 2] {
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")))
}

#[inline]
fn bytes(words: [u64; 2]) -> [u8; Head::BYTES] {
    let mut bytes = [0; Head::BYTES];
    for (half, word) in bytes.chunks_exact_mut(8).zip(words) {
        half.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
