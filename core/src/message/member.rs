//! The state of one peer of one generation, which its handles, its messages and the engine share.

use std::sync::Arc;

use super::credit::Amount;
use super::head::{Head, Operation};
use super::hub::Hub;
use super::inbox::{Inbox, Item};
use super::line::Line;
use super::reads::Reads;
use super::room::Room;
use super::unknown::UnknownKinds;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, Mutex, OnceLock, Ordering, fence, lock};

/// The peer cannot be ended now: a handshake with it is under way.
#[derive(Debug)]
pub(super) struct Connecting;

/// A peer.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) generation: u64,
    /// The life that the peer is in with this messenger, see [`Hello::life`](super::hello::Hello::life).
    pub(super) life: u32,
    pub(super) hub: Arc<Hub<Member>>,
    /// The longest message that both sides take.
    pub(super) eager: usize,
    pub(super) inbox: Inbox,
    room: Room,
    /// The link that everything is sent on: the first one, for good, so that messages stay in order.
    sender: OnceLock<Arc<Line>>,
    /// All links: two if both sides connected at the same time.
    lines: Mutex<Vec<Arc<Line>>>,
    dirty: AtomicBool,
    /// In the list of peers with deadlines.
    pub(super) timed: AtomicBool,
    /// Why nothing goes to or comes from the peer any more.
    end: OnceLock<Error>,
    /// Its end has been counted.
    counted: AtomicBool,
    /// It has connected to this messenger.
    accepted: AtomicBool,
    arrived: AtomicBool,
    /// Kinds of messages that the peer had nothing registered for.
    pub(super) unknown: UnknownKinds,
}

impl Member {
    /// A peer that takes messages of up to `eager` bytes, and has room for `inbox` of them.
    pub(super) fn new(
        (rank, generation, life): (u32, u64, u32),
        hub: Arc<Hub<Self>>,
        eager: usize,
        inbox: Amount,
    ) -> Self {
        Self {
            rank,
            generation,
            life,
            hub,
            eager,
            inbox: Inbox::default(),
            room: Room::new(inbox),
            sender: OnceLock::default(),
            lines: Mutex::default(),
            dirty: AtomicBool::new(false),
            timed: AtomicBool::new(false),
            end: OnceLock::default(),
            counted: AtomicBool::new(false),
            accepted: AtomicBool::new(false),
            arrived: AtomicBool::new(false),
            unknown: UnknownKinds::default(),
        }
    }

    /// Adds a link. Fails if the peer has ended meanwhile.
    pub(super) fn add_line(&self, line: Arc<Line>) -> Result<()> {
        let mut lines = lock(&self.lines);
        self.check("connect")?;
        // Fails for the second link: the first one stays the sender.
        let _ = self.sender.set(line.clone());
        lines.push(line);
        Ok(())
    }

    pub(super) fn lines(&self) -> Vec<Arc<Line>> {
        lock(&self.lines).clone()
    }

    /// The link to send on.
    #[inline]
    pub(super) fn sender(&self, op: &'static str) -> Result<&Arc<Line>> {
        self.sender.get().ok_or_else(|| {
            Error::new(ErrorKind::Internal, op, format!("no link to rank {} was made", self.rank))
        })
    }

    /// `Ok` as long as the peer is there; otherwise why it is not.
    #[inline]
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        match self.end.get() {
            None => Ok(()),
            Some(error) => Err(error.clone().of(op)),
        }
    }

    pub(super) fn end(&self) -> Option<&Error> {
        self.end.get()
    }

    /// Ends the peer because of `why`; returns its links at the first call. The caller ends what is under way.
    pub(super) fn finish(&self, why: &Error) -> Option<Vec<Arc<Line>>> {
        let mut lines = lock(&self.lines);
        if self.end.get().is_some() {
            return None;
        }
        // Before the end shows: a new link belongs to the next life.
        self.count_end();
        self.end.set(why.clone()).ok()?;
        // A send that was refused fails now, which is worth a look.
        self.found_room();
        Some(std::mem::take(&mut *lines))
    }

    /// As [`finish`](Self::finish) if no handshake with the peer is under way; otherwise an error, and nothing has changed.
    pub(super) fn finish_between_handshakes(
        &self,
        why: &Error,
    ) -> std::result::Result<Option<Vec<Arc<Line>>>, Connecting> {
        let mut lines = lock(&self.lines);
        if self.end.get().is_some() {
            return Ok(None);
        }
        if !self.counted.load(Ordering::Acquire) {
            if !self.hub.lives.end_between_handshakes(self.rank, self.generation) {
                return Err(Connecting);
            }
            self.counted.store(true, Ordering::Release);
        }
        let set = self.end.set(why.clone());
        self.found_room();
        Ok(set.is_ok().then(|| std::mem::take(&mut *lines)))
    }

    /// Whether a handshake with the peer is under way, which may bring another link.
    pub(super) fn is_connecting(&self) -> bool {
        self.hub.lives.is_connecting(self.rank, self.generation)
    }

    /// Whether the peer has said goodbye on every link that it has with this side. Handshakes are looked at first: the link
    /// that one has brought shows before the handshake ends.
    pub(super) fn has_left(&self) -> bool {
        !self.is_connecting() && self.has_left_all()
    }

    /// Whether the peer has said goodbye on every link that is there.
    pub(super) fn has_left_all(&self) -> bool {
        self.lines().iter().all(|line| line.has_left())
    }

    /// Whether `life` of the peer comes after this one. Lives start over.
    pub(super) fn is_before(&self, life: u32) -> bool {
        life.wrapping_sub(self.life).cast_signed() > 0
    }

    /// Whether this life of the peer comes after `life`.
    pub(super) fn is_behind(&self, life: u32) -> bool {
        self.life.wrapping_sub(life).cast_signed() > 0
    }

    /// Its end is not to begin another life of this side.
    pub(super) fn leave_uncounted(&self) {
        self.counted.store(true, Ordering::Release);
    }

    /// Whether the peer is known to be in a later life: what is left of this one is read.
    pub(super) fn is_superseded(&self) -> bool {
        self.counted.load(Ordering::Acquire)
    }

    /// Notes that the peer is in a later life, so that this one ends soon.
    pub(super) fn supersede(&self) {
        let lines = lock(&self.lines);
        self.count_end();
        drop(lines);
    }

    /// Counts the end of this peer, once, with the links locked: what connects from now on belongs to the next life of this side
    /// with it.
    fn count_end(&self) {
        if !self.counted.swap(true, Ordering::AcqRel) {
            self.hub.lives.end(self.rank, self.generation);
        }
    }

    /// Pushes one message, of `bytes` bytes for the receiver's inbox, on the sending link; false if there is no room here or
    /// there. After an error the caller calls [`broken`](Self::broken) once it holds no lock.
    #[inline]
    pub(super) fn push(
        self: &Arc<Self>,
        op: &'static str,
        head: Head,
        body: &[u8],
        bytes: usize,
    ) -> Result<bool> {
        let line = self.sender(op)?;
        let mut pushed = self.try_push(line, head, body, bytes);
        if matches!(pushed, Ok(false)) {
            self.note_refused();
            // As with room: whoever ends the peer from here on sees the note.
            self.check(op)?;
            pushed = self.try_push(line, head, body, bytes);
        }
        if line.gathers {
            self.mark_dirty();
        }
        pushed
    }

    fn try_push(&self, line: &Line, head: Head, body: &[u8], bytes: usize) -> Result<bool> {
        let Some(taken) = self.room.take(bytes) else { return Ok(false) };
        let pushed = line.push(head, body);
        if !matches!(pushed, Ok(true)) {
            self.room.put_back(&taken, || self.hub.note_room());
        }
        pushed
    }

    /// See [`Room::note_refused`].
    pub(super) fn note_refused(&self) {
        self.room.note_refused();
    }

    /// See [`Room::found`].
    pub(super) fn found_room(&self) {
        self.room.found(|| self.hub.note_room());
    }

    /// Wakes whoever was refused a read of a line, whose reads the caller has locked, if there is room for one now.
    #[inline]
    pub(super) fn note_room_for_reads(&self, reads: &mut Reads) {
        if reads.found_room() {
            self.hub.note_room();
        }
    }

    /// The peer gives credit back.
    pub(super) fn take_credit(&self, amount: Amount) -> Result<()> {
        self.room.give(amount, || self.hub.note_room())
    }

    /// Tells the peer of credit that is due.
    #[inline]
    fn give_credit(self: &Arc<Self>, due: Option<Amount>) {
        if let Some(amount) = due {
            self.tell_credit(amount);
        }
    }

    fn tell_credit(self: &Arc<Self>, amount: Amount) {
        let Ok(line) = self.sender("progress") else { return };
        if self.tell(line, Operation::Credit, 0, 0, &amount.encode()).is_err() {
            // The line keeps the error, and progress ends the peer.
            self.mark_dirty();
        }
    }

    /// A message of `bytes` bytes was not kept: the peer may send another one.
    pub(super) fn not_kept(self: &Arc<Self>, bytes: usize) {
        self.give_credit(self.inbox.owe(1, bytes, &self.hub.limits));
    }

    /// Ends the peer because a call that sends has failed with `why`; returns the error of `op`. The caller holds no lock of it.
    #[cold]
    pub(super) fn broken(self: &Arc<Self>, op: &'static str, why: &Error) -> Error {
        if let Some(engine) = self.hub.engine() {
            engine.end_if_broken(self);
        }
        self.lost(op, why)
    }

    /// Queues a short frame on `line`.
    pub(super) fn tell(
        self: &Arc<Self>,
        line: &Line,
        operation: Operation,
        kind: u16,
        id: u32,
        body: &[u8],
    ) -> Result<()> {
        if self.end().is_some() || self.hub.forked() {
            // An ended peer is sent nothing more, and a child does not speak for its parent.
            return Ok(());
        }
        line.tell(operation, kind, id, body)?;
        self.mark_dirty();
        Ok(())
    }

    /// Has the next progress send what wires hold back. If all threads of the messenger sleep, it is sent here.
    #[inline]
    pub(super) fn mark_dirty(self: &Arc<Self>) {
        if self.dirty.load(Ordering::Relaxed) || self.dirty.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.hub.alarm.is_asleep() && !self.hub.forked() {
            return self.kick_for_sleeper();
        }
        self.hub.add_dirty(self.clone());
    }

    /// [`mark_dirty`](Self::mark_dirty) for callers who have a link's reads locked: sending would lock them again, so a thread that
    /// sleeps is woken instead.
    pub(super) fn leave_to_progress(self: &Arc<Self>) {
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.hub.add_dirty(self.clone());
        }
    }

    /// Sends what is held back in place of those who sleep. The flag is clear meanwhile: what comes now is a new reason.
    #[cold]
    fn kick_for_sleeper(self: &Arc<Self>) {
        self.clear_dirty();
        let lines = self.lines();
        let all_left = lines.iter().all(|line| line.kick().unwrap_or(false));
        if lines.iter().fold(false, |room, line| line.take_room() | room) {
            self.found_room();
        }
        let for_progress = !all_left || self.waits_for_turn() || self.end().is_some();
        if for_progress && !self.dirty.swap(true, Ordering::AcqRel) {
            // The sleeper waits for room from now on, finds the error, or forgets the links.
            self.hub.add_dirty(self.clone());
        }
    }

    /// Whether memory is left to copy or to serve on any link.
    pub(super) fn waits_for_turn(&self) -> bool {
        self.lines().iter().any(|line| line.waits_for_turn())
    }

    /// Begins to look after the peer: what becomes dirty from now on is a new reason.
    pub(super) fn clear_dirty(&self) {
        self.dirty.store(false, Ordering::Release);
        // A sender publishes and then looks at the flag. If it still sees the flag set, the kick that follows sees its frame.
        fence(Ordering::SeqCst);
    }

    /// Ends the operations of a link that is gone; devices that copy for them have until `settled`.
    pub(super) fn fail(self: &Arc<Self>, line: &Line, why: &Error, settled: Deadline) {
        let reads = lock(&line.reads).fail(why);
        reads.settle(settled).into_iter().for_each(|finished| self.deliver(Item::Read(finished)));
        self.hub.exposures.resources.note();
        let offers = lock(&line.offers).fail(why);
        self.found_room();
        offers.into_iter().for_each(|ended| self.deliver(Item::Long(ended)));
    }

    /// Has `item` dispatched after what is there.
    pub(super) fn deliver(self: &Arc<Self>, item: Item) {
        if self.inbox.push(item) {
            self.hub.add_ready(self.clone());
        }
    }

    /// The peer has connected to this messenger.
    pub(super) fn accept(&self) {
        self.accepted.store(true, Ordering::Release);
    }

    /// Tells that the peer has connected to this messenger, if it has: once, before its first message.
    pub(super) fn arrive(self: &Arc<Self>) {
        if self.accepted.load(Ordering::Acquire) && !self.arrived.swap(true, Ordering::AcqRel) {
            self.deliver(Item::Arrived);
        }
    }

    /// Messages that were waiting have been taken.
    pub(super) fn release(self: &Arc<Self>, messages: usize, bytes: usize) {
        self.give_credit(self.inbox.release(messages, bytes, &self.hub.limits));
    }

    /// The inbox had been claimed, and `messages` were dispatched; what has come meanwhile is dispatched next.
    pub(super) fn dispatched(self: Arc<Self>, messages: usize, bytes: usize) {
        let (due, more) = self.inbox.unclaim(messages, bytes, &self.hub.limits);
        self.give_credit(due);
        if more {
            let hub = self.hub.clone();
            hub.add_ready(self);
        }
    }

    /// Tells the peer that messages of `kind` were dropped, as if nothing had been registered for it.
    pub(super) fn tell_unknown(self: &Arc<Self>, kind: u16) {
        if self.end().is_some() || self.hub.forked() {
            return;
        }
        // A link that cannot tell is about to end.
        if self.lines().iter().rev().find_map(|line| line.tell_unknown(kind).ok()) == Some(true) {
            self.mark_dirty();
        }
    }

    /// The error of a peer whose link has failed.
    pub(super) fn lost(&self, op: &'static str, why: &Error) -> Error {
        match self.end() {
            Some(end) => end.clone().of(op),
            None => Error::peer_lost(op, self.rank, why.message()).with_source(why.clone()),
        }
    }
}
