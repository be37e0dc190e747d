//! The sending side of a stream that a [`Reactor`](super::Reactor) serves.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::claims::Claims;
use super::frame;
use super::raw::RawStream;
use super::stream::lost;
use super::sys;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering, lock, wait};

/// Bytes that may wait in a link. Posting more is an error: the peer does not read as fast as this side posts.
const MAX_QUEUED: u64 = 64 << 20;

/// Bytes written in one turn. A peer that reads as fast as it is written to would otherwise hold the caller, and whoever waits for
/// the lock, until a long message is sent, past every deadline.
const TURN: usize = 1 << 20;

/// Requests of a link to the thread that serves it.
pub(super) trait LinkService: Debug + Send + Sync {
    /// Watches a socket for `events` under the number `id`.
    fn register(&self, fd: BorrowedFd<'_>, events: u32, id: u64) -> io::Result<()>;

    /// Stops watching a socket; does nothing for one that is not watched.
    fn unregister(&self, fd: BorrowedFd<'_>);

    /// Changes the events that a socket is watched for; does nothing for one that is not watched.
    fn watch(&self, fd: BorrowedFd<'_>, events: u32, id: u64);

    /// Closes the link `id` once its queue has been sent.
    fn close(&self, id: u64);

    /// The link `id` has failed, and remembers why.
    fn failed(&self, id: u64);

    /// The link `id` cannot send descriptors now; tries again a little later.
    fn rest(&self, id: u64);
}

/// A handle to one served stream. Cheap to clone; usable from any thread.
#[derive(Clone, Debug)]
pub struct Link {
    pub(super) inner: Arc<LinkInner>,
}

#[derive(Debug)]
pub(super) struct LinkInner {
    pub(super) id: u64,
    pub(super) raw: Box<dyn RawStream>,
    peer: Claims,
    max_frame: u32,
    service: Arc<dyn LinkService>,
    /// The peer has sent what this process has no descriptors for.
    starved: AtomicBool,
    out: Mutex<Outbound>,
    drained: Condvar,
}

#[derive(Debug, Default)]
struct Outbound {
    queue: VecDeque<Chunk>,
    /// Bytes posted and bytes written since the beginning.
    posted: u64,
    written: u64,
    /// Set once; nothing is accepted after that.
    failed: Option<Error>,
    closing: bool,
    /// Whether the reactor was asked to tell when the socket takes more.
    watching: bool,
}

/// An encoded frame, or what is left of it. Its descriptors go with the first byte.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    written: usize,
    fds: Vec<OwnedFd>,
}

impl Link {
    pub(super) fn new(
        id: u64,
        raw: Box<dyn RawStream>,
        peer: Claims,
        max_frame: u32,
        service: Arc<dyn LinkService>,
    ) -> Self {
        let (starved, out, drained) = (AtomicBool::new(false), Mutex::default(), Condvar::new());
        Self { inner: Arc::new(LinkInner { id, raw, peer, max_frame, service, starved, out, drained }) }
    }

    /// A number that no other link of this reactor has or will have.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Claims of the peer, which it proved with the secret.
    pub fn peer(&self) -> Claims {
        self.inner.peer
    }

    /// Bytes of frames accepted for sending since the link was made.
    pub fn sent(&self) -> u64 {
        lock(&self.inner.out).posted
    }

    /// Whether the peer has sent something that waits because this process is out of file descriptors: while it does, the
    /// peer cannot be heard, which is not its fault.
    pub fn is_starved(&self) -> bool {
        self.inner.starved.load(Ordering::Relaxed)
    }

    /// Sends a frame without ever waiting: bytes that the socket does not take now are queued. Fails if the link is
    /// closed or too much is queued. Frames of one link arrive in the order of the calls.
    pub fn post(&self, kind: u16, payload: &[u8]) -> Result<()> {
        self.post_fds(kind, payload, Vec::new())
    }

    /// The same with descriptors, which are closed here once they are sent. Unix sockets only.
    pub fn post_fds(&self, kind: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Result<()> {
        let bytes = frame::encode(kind, payload, fds.len(), self.inner.max_frame)?;
        self.inner.enqueue(&mut lock(&self.inner.out), bytes, fds)
    }

    /// Sends a frame once there is room for it, and waits until it is with the kernel. Must not be called from a handler.
    pub fn send(&self, kind: u16, payload: &[u8], deadline: Deadline) -> Result<()> {
        let bytes = frame::encode(kind, payload, 0, self.inner.max_frame)?;
        let mut out = lock(&self.inner.out);
        while !out.has_room(bytes.len()) && out.failed.is_none() {
            if deadline.expired() {
                return Err(self.late("send", &out));
            }
            out = wait(&self.inner.drained, out, deadline);
        }
        self.inner.enqueue(&mut out, bytes, Vec::new())?;
        drop(out);
        self.flush(deadline)
    }

    /// Waits until everything posted so far is with the kernel. Succeeds then even if the link has ended since, because a
    /// peer that has received everything may close first. Must not be called from a handler.
    pub fn flush(&self, deadline: Deadline) -> Result<()> {
        let mut out = lock(&self.inner.out);
        let all = out.posted;
        loop {
            if out.written >= all {
                return Ok(());
            }
            if let Some(error) = &out.failed {
                return Err(error.clone());
            }
            if deadline.expired() {
                return Err(self.late("flush", &out));
            }
            out = wait(&self.inner.drained, out, deadline);
        }
    }

    fn late(&self, op: &'static str, out: &Outbound) -> Error {
        let message = format!("{} bytes could not be sent in time; the peer does not read", out.queued());
        Error::timeout(op, message).with_peer(self.inner.peer.from)
    }

    /// Closes the link once its queue has been sent. The handler is not told.
    pub fn close(&self) {
        lock(&self.inner.out).closing = true;
        self.inner.service.close(self.inner.id);
    }

    /// Closes the link at once because of `why`, which all waiting and later calls return; what was not sent yet is dropped. The
    /// handler is not told.
    pub fn give_up(&self, why: &Error) {
        let mut out = lock(&self.inner.out);
        out.failed.get_or_insert_with(|| why.clone());
        out.queue.clear();
        drop(out);
        self.inner.drained.notify_all();
        self.close();
    }
}

impl Outbound {
    /// Bytes that wait to be sent, while the link has not failed.
    fn queued(&self) -> u64 {
        self.posted - self.written
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.queued() + bytes as u64 <= MAX_QUEUED
    }
}

impl LinkInner {
    fn enqueue(&self, out: &mut Outbound, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<()> {
        if let Some(error) = &out.failed {
            return Err(error.clone());
        }
        if out.closing {
            return Err(Error::usage("post", "the link was closed on this side"));
        }
        if !out.has_room(bytes.len()) {
            let queued = out.queued();
            let message =
                format!("{queued} bytes wait to be sent already; the peer reads too slowly, or not at all");
            return Err(Error::new(ErrorKind::Remote, "post", message).with_peer(self.peer.from));
        }
        out.posted += bytes.len() as u64;
        out.queue.push_back(Chunk { bytes, written: 0, fds });
        if out.queue.len() == 1 {
            self.write_some(out);
        }
        match &out.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Has the service thread watch the socket. Under the lock, so that a poster that meets a full socket either finds
    /// it registered or is found here.
    pub(super) fn register(&self) -> io::Result<()> {
        let mut out = lock(&self.out);
        out.watching = !out.queue.is_empty();
        let events = if out.watching { sys::READ | sys::WRITE } else { sys::READ };
        self.service.register(self.raw.fd(), events, self.id)
    }

    pub(super) fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Ordering::Relaxed);
    }

    /// Stops watching the socket until [`register`](Self::register).
    pub(super) fn unregister(&self) {
        self.service.unregister(self.raw.fd());
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(super) fn writable(&self) {
        self.write_some(&mut lock(&self.out));
    }

    /// Whether the link was closed here and its queue has been sent.
    pub(super) fn finished(&self) -> bool {
        let out = lock(&self.out);
        out.closing && (out.queue.is_empty() || out.failed.is_some())
    }

    /// Whether the link was closed here.
    pub(super) fn closing(&self) -> bool {
        lock(&self.out).closing
    }

    pub(super) fn set_closing(&self) {
        lock(&self.out).closing = true;
    }

    /// Ends the link: drops its queue, and ends every wait with `error`.
    pub(super) fn fail(&self, error: Error) {
        let mut out = lock(&self.out);
        out.failed.get_or_insert(error);
        out.queue.clear();
        drop(out);
        self.drained.notify_all();
        // The peer's end of stream. An error only says that it is gone already.
        let _ = self.raw.shutdown(true);
    }

    fn write_some(&self, out: &mut Outbound) {
        let mut room = TURN;
        while let Some(chunk) = out.queue.front_mut() {
            if room == 0 {
                // The service thread goes on: the socket may well take more.
                return self.watch_for_room(out);
            }
            let fds: Vec<_> = chunk.fds.iter().map(AsFd::as_fd).collect();
            let part = &chunk.bytes[chunk.written..];
            match self.raw.write(&part[..part.len().min(room)], &fds) {
                Ok(0) => return self.break_off(out, io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    room -= count;
                    chunk.fds.clear();
                    chunk.written += count;
                    out.written += count as u64;
                    if chunk.written == chunk.bytes.len() {
                        out.queue.pop_front();
                        // Its sender need not wait for what others have posted since.
                        self.drained.notify_all();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.watch_for_room(out),
                Err(error) if sys::exhausted(&error) => {
                    log::debug!("descriptors for rank {} wait to be sent: {error}", self.peer.from);
                    return self.service.rest(self.id);
                }
                Err(error) => return self.break_off(out, error),
            }
        }
        if out.watching {
            out.watching = false;
            self.service.watch(self.raw.fd(), sys::READ, self.id);
        }
        self.drained.notify_all();
    }

    /// Has the service thread send the rest when the socket takes more.
    fn watch_for_room(&self, out: &mut Outbound) {
        if !out.watching {
            out.watching = true;
            self.service.watch(self.raw.fd(), sys::READ | sys::WRITE, self.id);
        }
    }

    fn break_off(&self, out: &mut Outbound, error: io::Error) {
        out.failed = Some(lost("send", self.peer, error));
        out.queue.clear();
        self.service.failed(self.id);
        self.drained.notify_all();
    }

    /// Why it failed, if it did.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.out).failed.clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
