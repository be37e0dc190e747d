//! One link to a peer: its wire, and what has to keep its order on it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::exposed::Exposures;
use super::head::{Head, Operation};
use super::offers::Offers;
use super::reads::Reads;
use super::serving::{Served, Serving};
use super::wire::Wire;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, AtomicU32, Mutex, OnceLock, Ordering, lock};

/// The most control frames that may wait for room. A peer that provokes more breaks the protocol.
const MAX_CONTROL: usize = 1 << 16;

/// Frames that wait for room beyond which a peer is not told of kinds that nothing is registered for.
const MAX_UNKNOWN_WAITING: usize = 64;

/// A link.
pub(super) struct Line {
    /// The wire, as long as the link has not ended. Handles keep the link, but none of its descriptors and mappings.
    wire: Weak<dyn Wire>,
    /// Keeps the wire until the link ends.
    keeper: Mutex<Option<Arc<dyn Wire>>>,
    /// The wire's name.
    pub(super) name: &'static str,
    /// Whether the wire may hold frames back until it is kicked.
    pub(super) gathers: bool,
    /// The first error of sending. Progress ends the peer because of it.
    failure: OnceLock<Error>,
    /// Short frames that must not be lost for lack of room, in order.
    control: Mutex<VecDeque<(Head, Box<[u8]>)>>,
    /// Reads that this side has asked for, and how many may be open at a time.
    pub(super) reads: Mutex<Reads>,
    read_depth: usize,
    /// The oldest read is to be copied by this side, as far as the last look at the reads tells.
    pub(super) copies: AtomicBool,
    /// The device makes the oldest reads, as far as the last look at them tells.
    fetching: AtomicBool,
    /// The device may have brought more than one turn takes, or have room that nobody has filled.
    fetches_wait: AtomicBool,
    /// Reads into devices wait for another turn.
    pub(super) transfers_wait: AtomicBool,
    /// The last kick served as many bytes as it may in one turn, and more are to be served.
    waits_for_turn: AtomicBool,
    /// Reads that the peer has asked for, and of what.
    pub(super) serving: Mutex<Serving>,
    exposures: Arc<Exposures>,
    /// Long messages that this side has sent.
    pub(super) offers: Mutex<Offers>,
    /// The number of the next frame. Only whoever makes progress touches it, one thread at a time.
    expected: AtomicU32,
    /// The peer has said goodbye on it.
    pub(super) left: AtomicBool,
    /// This side says goodbye: it asks for nothing more and serves nothing more, which the peer would not hear.
    parting: AtomicBool,
}

impl Line {
    /// A link over `wire` to a peer that takes `read_depth` requests at a time.
    pub(super) fn new(wire: Box<dyn Wire>, read_depth: usize, exposures: Arc<Exposures>) -> Self {
        let reads = Mutex::new(Reads::new(wire.passes_descriptors(), wire.one_sided().is_some()));
        let (name, gathers, wire) = (wire.name(), wire.gathers(), Arc::<dyn Wire>::from(wire));
        Self {
            wire: Arc::downgrade(&wire),
            keeper: Mutex::new(Some(wire)),
            name,
            gathers,
            failure: OnceLock::default(),
            control: Mutex::default(),
            reads,
            copies: AtomicBool::new(false),
            fetching: AtomicBool::new(false),
            fetches_wait: AtomicBool::new(false),
            transfers_wait: AtomicBool::new(false),
            waits_for_turn: AtomicBool::new(false),
            read_depth,
            serving: Mutex::default(),
            exposures,
            offers: Mutex::default(),
            expected: AtomicU32::new(0),
            left: AtomicBool::new(false),
            parting: AtomicBool::new(false),
        }
    }

    /// The wire; `None` once the link has ended. It is kept while the result lives.
    #[inline]
    pub(super) fn wire(&self) -> Option<Arc<dyn Wire>> {
        self.wire.upgrade()
    }

    /// As [`Wire::push`]. An error is kept: the caller has the peer ended.
    #[inline]
    pub(super) fn push(&self, head: Head, body: &[u8]) -> Result<bool> {
        match self.wire() {
            Some(wire) => wire.push(head, body).map_err(|error| self.fail(error)),
            None => Err(closed()),
        }
    }

    /// As [`Wire::take_room`].
    pub(super) fn take_room(&self) -> bool {
        self.wire().is_some_and(|wire| wire.take_room())
    }

    /// Keeps `error` as the reason why the link has failed, if it is the first; returns it.
    #[cold]
    fn fail(&self, error: Error) -> Error {
        // Fails for a later one.
        let _ = self.failure.set(error.clone());
        self.waits_for_turn.store(false, Ordering::Relaxed);
        error
    }

    /// The reason why nothing can be sent on the link; `None` as long as no call has failed.
    #[inline]
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Closes the wire and lets it go, with the answers that waited for it. Calls of other threads that are inside end first.
    pub(super) fn end(&self) {
        let wire = lock(&self.keeper).take();
        if let Some(wire) = wire {
            wire.close(true);
        }
        let control = std::mem::take(&mut *lock(&self.control));
        let mut serving = lock(&self.serving);
        // Under the lock: a kick that is still under way finds nothing to serve afterwards.
        self.waits_for_turn.store(false, Ordering::Relaxed);
        let served = std::mem::take(&mut *serving);
        drop(serving);
        drop((control, served));
    }

    /// Queues a short frame that must arrive. The caller marks the peer dirty.
    pub(super) fn tell(&self, operation: Operation, kind: u16, id: u32, body: &[u8]) -> Result<()> {
        let mut control = lock(&self.control);
        if control.len() >= MAX_CONTROL {
            let text = "the peer asks for more answers than it reads";
            return Err(self.fail(Error::new(ErrorKind::Remote, "progress", text)));
        }
        control.push_back((Head::new(operation, kind, id, body.len()), body.into()));
        Ok(())
    }

    /// Says goodbye behind what was sent. Fails only for a peer that is lost.
    pub(super) fn part(&self) -> Result<()> {
        self.parting.store(true, Ordering::Relaxed);
        self.tell(Operation::Goodbye, 0, 0, &[])
    }

    /// Queues the news that nothing is registered for `kind`. False if it waits to be sent already, or if so much waits that the peer
    /// does not read: then it is told of a later message.
    pub(super) fn tell_unknown(&self, kind: u16) -> Result<bool> {
        let is_told =
            |(head, _): &(Head, Box<[u8]>)| (head.operation, head.kind) == (Operation::Unknown, kind);
        let control = lock(&self.control);
        if control.len() >= MAX_UNKNOWN_WAITING || control.iter().any(is_told) {
            return Ok(false);
        }
        drop(control);
        self.tell(Operation::Unknown, kind, 0, &[])?;
        Ok(true)
    }

    /// Asks the peer for queued reads, as many as it takes at a time. True if there was room for that.
    pub(super) fn ask(&self) -> Result<bool> {
        let Some(wire) = self.wire() else { return Err(closed()) };
        let push = |operation, id, body: &[u8]| wire.push(Head::new(operation, 0, id, body.len()), body);
        let mut reads = lock(&self.reads);
        let asked = reads.ask((self.read_depth, wire.read_window()), wire.one_sided(), push);
        if reads.can_copy() {
            self.copies.store(true, Ordering::Relaxed);
        }
        if reads.is_fetching() && !self.is_fetching() {
            self.set_fetching(true, true);
        }
        drop(reads);
        asked.map_err(|error| self.fail(error))
    }

    /// Whether this side has something to copy.
    pub(super) fn has_copies(&self) -> bool {
        self.copies.load(Ordering::Relaxed)
    }

    /// Whether the device makes the oldest reads.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetching.load(Ordering::Relaxed)
    }

    /// Whether reads into devices wait for another turn.
    pub(super) fn has_transfers(&self) -> bool {
        self.transfers_wait.load(Ordering::Relaxed)
    }

    /// Notes that reads into devices have another turn, if there are any. The caller has them locked.
    pub(super) fn note_transfers(&self, reads: &Reads) {
        self.transfers_wait.store(reads.has_transfers(), Ordering::Relaxed);
    }

    /// Notes whether the device makes the oldest reads, and whether that needs another turn. The caller has the reads locked.
    pub(super) fn set_fetching(&self, fetching: bool, waits: bool) {
        self.fetching.store(fetching, Ordering::Relaxed);
        self.fetches_wait.store(waits, Ordering::Relaxed);
    }

    /// Whether another turn can move something, although no descriptor tells of it.
    ///
    /// Looks at flags without the locks of `reads` and `serving`, under which they are written. The caller has cleared the peer's dirty flag
    /// and then kicked the line (`send_all`), which takes both locks: a flag that was raised before the kick shows here, and whoever raises
    /// one later finds the dirty flag clear and marks the peer dirty anew.
    pub(super) fn waits_for_turn(&self) -> bool {
        self.has_copies()
            || self.waits_for_turn.load(Ordering::Relaxed)
            || self.fetches_wait.load(Ordering::Relaxed)
            || self.has_transfers()
    }

    /// Called about once a second: unmaps memory that was revoked. An error if the peer's host has not answered for too long.
    pub(super) fn look_after(&self) -> Result<()> {
        lock(&self.reads).sweep();
        self.wire().map_or(Ok(()), |wire| wire.check())
    }

    /// Pushes queued frames, requests and answers to reads, and sends what is held back. True if nothing is left. An error is
    /// kept, as that of [`push`](Self::push).
    pub(super) fn kick(&self) -> Result<bool> {
        match self.wire() {
            Some(wire) => self.kick_wire(&*wire).map_err(|error| self.fail(error)),
            None => Err(closed()),
        }
    }

    fn kick_wire(&self, wire: &dyn Wire) -> Result<bool> {
        let mut control = lock(&self.control);
        while let Some((head, body)) = control.front() {
            if !wire.push(*head, body)? {
                break;
            }
            control.pop_front();
        }
        let told = control.is_empty();
        if told && control.capacity() > 64 {
            // An idle link keeps little.
            *control = VecDeque::new();
        }
        drop(control);
        if self.parting.load(Ordering::Relaxed) {
            return Ok(wire.kick()? && told);
        }
        let asked = self.ask()?;
        let mut serving = lock(&self.serving);
        let served = serving.serve(&self.exposures, wire)?;
        // Under the lock, so that the last one who served has the last word.
        self.waits_for_turn.store(served == Served::Enough, Ordering::Relaxed);
        drop(serving);
        Ok(wire.kick()? && told && asked && served == Served::All)
    }

    /// Checks the number of a frame: it must be the next one.
    pub(super) fn check(&self, head: Head) -> Result<()> {
        let expected = self.expected.load(Ordering::Relaxed);
        if head.sequence == expected {
            return Ok(());
        }
        let text = format!("frame {} arrived instead of {expected}: one was lost or repeated", head.sequence);
        Err(Error::new(ErrorKind::Remote, "progress", text))
    }

    /// Counts a frame that was taken.
    pub(super) fn count(&self) {
        let expected = self.expected.load(Ordering::Relaxed);
        self.expected.store(expected.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::PeerLost, "send", "the link has ended")
}

/// Without what has come on it.
impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("wire", &self.name).field("left", &self.left).finish_non_exhaustive()
    }
}
