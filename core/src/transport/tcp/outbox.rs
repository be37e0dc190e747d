//! The sending half: operations become frames, and frames go to the socket as far as it takes them.
//!
//! A small write is copied when it is asked for, together with those around it: many of them, and their signal, are one
//! piece of memory that goes to the socket in one call. The source is held until its bytes are with the kernel, the
//! destination until the peer has acknowledged them.

use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use super::super::idle::{Activity, IdleTimer};
use super::super::in_flight::InFlight;
use super::super::waits::Awaited;
use super::answers::Answers;
use super::counts::Counts;
use super::frame::{Frame, MAX_PAYLOAD};
use super::made::{Made, Obstacle};
use super::operations::{Operation, Operations};
use super::piece::{Payload, Piece};
use super::reads::{Reads, WINDOW};
use super::spent::Spent;
use super::staging::Staging;
use crate::error::{Error, Result};
use crate::memory::{Place, Remote};
use crate::net::RawStream;
use crate::volatile::VolatileSlice;

/// How many pieces are made ready at a time, and how many go into one system call.
const READY: usize = 32;
/// Writes from host memory of up to this size are copied.
pub(super) const SMALL: usize = 512;
/// Operations to send, in order.
pub(super) struct Outbox {
    peer: u32,
    operations: Operations,
    /// Answers to the peer's reads.
    answers: Answers,
    /// Where this rank's reads are noted for the receiving half.
    reads: Arc<Reads>,
    /// The next operation waits for answers, and nothing else can be sent.
    stalled: bool,
    pieces: VecDeque<Piece>,
    staging: Staging,
    /// Memory that operations no longer use; drop it where blocking is allowed.
    spent: Spent,
    /// The peer's memories that unacknowledged frames write to.
    in_flight: InFlight<Arc<Remote>>,
    idle: IdleTimer,
    /// The memory of a piece that was sent, for the next.
    spare: Vec<u8>,
    /// Operations among the pieces that were put there without waiting.
    collected: usize,
    counts: Counts,
    /// Pieces whose bytes were moved to ordinary memory, and are not sent yet.
    spilled: usize,
    /// Nothing more is sent.
    closed: bool,
}

impl Outbox {
    /// Its reads are noted in `reads`, where the receiving half finds where the answers belong.
    pub(super) fn new(staging: Staging, peer: u32, reads: Arc<Reads>) -> Self {
        Self {
            peer,
            operations: Operations::default(),
            answers: Answers::default(),
            reads,
            stalled: false,
            pieces: VecDeque::new(),
            staging,
            spent: Spent::default(),
            in_flight: InFlight::new(),
            idle: IdleTimer::default(),
            spare: Vec::new(),
            collected: 0,
            counts: Counts::new(peer),
            spilled: 0,
            closed: false,
        }
    }

    /// Operations that are not on their way yet.
    pub(super) fn waiting(&self) -> usize {
        self.operations.len() + self.collected
    }

    /// Whether fewer than `most` operations are unacknowledged. If not, asks for an acknowledgement; the caller kicks.
    ///
    /// The socket's buffers do not count as room: they hold a hundred thousand small frames, and a flush would wait for all
    /// of those that other threads put in front of it.
    pub(super) fn has_room(&mut self, most: usize) -> bool {
        let room = self.counts.outstanding() < most;
        if !room {
            self.ask();
        }
        room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.answers.is_empty() && self.pieces.is_empty()
    }

    /// Whether there is something that the socket could take, or that only looking again brings on.
    pub(super) fn wants_room(&self) -> bool {
        let more = !self.operations.is_empty() || !self.answers.is_empty();
        !self.pieces.is_empty() || more && !self.stalled && !self.staging.waits_in_line()
    }

    /// Whether the peer has acknowledged everything, requests for acknowledgements included.
    pub(super) fn is_settled(&self) -> bool {
        self.counts.is_settled()
    }

    /// Whether the peer has acknowledged every operation.
    pub(super) fn has_delivered(&self) -> bool {
        self.counts.outstanding() == 0
    }

    /// Tells the peer, unless it has been told, that `landed` of its counted frames have landed here.
    pub(super) fn acknowledge_to_peer(&mut self, landed: u64) {
        if let Some(count) = self.counts.tell(landed)
            && !self.answers.acknowledge(count)
        {
            self.interject(Frame::Ack { count }, &[]);
        }
    }

    pub(super) fn write(
        &mut self,
        remote: &Arc<Remote>,
        region: u64,
        offset: u64,
        source: Place,
        len: usize,
    ) {
        self.counts.add(len.div_ceil(MAX_PAYLOAD) as u64);
        self.operations.push(Operation::Write { region, offset, source, len, done: 0 });
        self.hold(remote);
    }

    /// [`write`](Self::write) of at most [`SMALL`] bytes, which are read now; false, having done nothing, if earlier operations
    /// wait, which may be for whoever produces these bytes.
    pub(super) fn write_now(
        &mut self,
        remote: &Arc<Remote>,
        region: u64,
        offset: u64,
        source: VolatileSlice<'_>,
    ) -> Result<bool> {
        let len = source.len();
        if !self.collect(Frame::Write { region, offset, len: len as u32 }, len) {
            return Ok(false);
        }
        if let Some(piece) = self.pieces.back_mut() {
            piece.append_from(source)?;
        }
        self.hold(remote);
        Ok(true)
    }

    pub(super) fn update(&mut self, remote: &Arc<Remote>, region: u64, offset: u64, value: u64) {
        if !self.collect(Frame::Update { region, offset, value }, 0) {
            self.counts.add(1);
            self.operations.push(Operation::Update { region, offset, value });
        }
        self.hold(remote);
    }

    /// Asks for `len` bytes, which belong to `to`.
    pub(super) fn read(&mut self, remote: &Arc<Remote>, region: u64, offset: u64, to: Place, len: usize) {
        let frame = Frame::Read { region, offset, len: len as u32 };
        let at_once = len <= MAX_PAYLOAD && self.reads.waiting() < WINDOW;
        if at_once && self.collect(frame, 0) {
            self.reads.ask(to, len);
        } else {
            self.counts.add(len.div_ceil(MAX_PAYLOAD) as u64);
            self.operations.push(Operation::Read { region, offset, to, len, done: 0 });
        }
        self.hold(remote);
    }

    /// The peer asks for the `len` bytes at each of these places.
    ///
    /// # Errors
    /// `Remote` if it asks for too many at one time.
    pub(super) fn answer(&mut self, asked: impl IntoIterator<Item = (Place, usize)>) -> Result<()> {
        if self.closed {
            self.spent.places.extend(asked.into_iter().map(|(from, _)| from));
            return Ok(());
        }
        let mut allowed = Ok(());
        for (from, len) in asked {
            allowed = allowed.and_then(|()| self.answers.check(self.peer));
            match &allowed {
                Ok(()) => self.answers.add(from, len),
                Err(_) => self.spent.places.push(from),
            }
        }
        allowed
    }

    /// Holds the memory that the latest frame names, until the frame is acknowledged.
    #[inline]
    fn hold(&mut self, remote: &Arc<Remote>) {
        let latest = self.counts.count() - 1;
        self.in_flight.hold(latest, |known| Arc::ptr_eq(known, remote), || remote.clone());
        if self.counts.end_operation() {
            self.ask();
        }
    }

    /// The peer says that `count` counted frames have landed. It may say so after it said more: its threads race.
    ///
    /// # Errors
    /// `Remote` if it cannot have received so many.
    pub(super) fn acknowledge(&mut self, count: u64) -> Result<()> {
        let begun = self.pieces.front().map_or(0, |piece| if piece.has_begun() { piece.counted } else { 0 });
        self.counts.acknowledge(count, begun)?;
        self.spent.remotes.extend(std::iter::from_fn(|| self.in_flight.release(count)));
        Ok(())
    }

    /// Whether the service thread must be told to look for idleness: operations are unacknowledged, and it does not look yet.
    pub(super) fn must_watch(&mut self) -> bool {
        self.counts.is_unasked() && self.idle.arm()
    }

    /// A look of the service thread. If the connection has become idle, an acknowledgement is asked for with the next progress.
    pub(super) fn look_for_idleness(&mut self) -> Activity {
        let activity = self.idle.look(self.counts.count(), Instant::now);
        if activity == Activity::Idle {
            self.ask();
        }
        activity
    }

    /// Asks for an acknowledgement of everything so far: the count that it will name.
    pub(super) fn ask(&mut self) -> u64 {
        if self.counts.is_unasked() {
            if !self.collect(Frame::Ask, 0) {
                self.counts.add(1);
                self.operations.push(Operation::Ask);
            }
            self.counts.ask();
        }
        self.counts.asked()
    }

    /// Lets what comes later begin only once `awaited` is over.
    pub(super) fn after(&mut self, awaited: Awaited) {
        self.operations.push(Operation::After(awaited));
    }

    /// Sends `frame`, with `text` behind it, as soon as the piece on its way has gone.
    pub(super) fn interject(&mut self, frame: Frame, text: &[u8]) {
        let behind = usize::from(self.pieces.front().is_some_and(Piece::has_begun));
        let mut piece = self.piece(frame);
        piece.append(text);
        self.pieces.insert(behind, piece);
    }

    /// Nothing more is sent.
    pub(super) fn clear(&mut self) {
        self.spent.places.extend(self.operations.clear());
        self.spent.places.extend(self.answers.clear());
        self.spent.places.extend(self.reads.clear());
        for piece in self.pieces.drain(..) {
            self.spent.take(piece.into_parts().1);
        }
        (self.collected, self.spilled) = (0, 0);
        self.staging.clear();
        self.spent.remotes.extend(std::iter::from_fn(|| self.in_flight.release(u64::MAX)));
    }

    /// [`clear`](Self::clear), but for a piece of which the socket has taken a part: the peer reads what is sent next behind the rest
    /// of it.
    ///
    /// # Errors
    /// Those of the driver; then nothing was cleared.
    pub(super) fn clear_behind_begun(&mut self) -> Result<()> {
        let begun = match self.pieces.front_mut() {
            Some(piece) if piece.has_begun() => {
                // Pinned memory is given back, and nothing of it is counted any more.
                piece.spill(&self.staging)?;
                let spilled = piece.is_spilled();
                (piece.collected, piece.counted, piece.answers) = (0, 0, false);
                self.pieces.pop_front().map(|piece| (piece, spilled))
            }
            _ => None,
        };
        self.clear();
        if let Some((piece, spilled)) = begun {
            self.spilled = usize::from(spilled);
            self.pieces.push_back(piece);
        }
        Ok(())
    }

    /// [`clear`](Self::clear), and takes no pinned memory afterwards.
    pub(super) fn close(&mut self) {
        self.clear();
        self.closed = true;
    }

    /// Takes the memory that operations no longer use.
    pub(super) fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }

    /// Sends what can be sent now.
    pub(super) fn progress(&mut self, socket: &dyn RawStream) -> Result<Obstacle> {
        loop {
            let waits = self.prepare()?;
            if self.pieces.is_empty() {
                return Ok(waits);
            }
            let mut parts = [NO_PART; 2 * READY];
            let count = self.gather(&mut parts)?;
            if count == 0 {
                return Ok(Obstacle::Device);
            }
            // SAFETY: the parts lie in the heads of `self.pieces`, in its ring, and in memory that the pieces keep alive; none of
            // it goes away during the call.
            match unsafe { socket.write_parts(&parts[..count]) } {
                Ok(sent) => self.consume(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(if self.spill()? { Obstacle::Device } else { Obstacle::Socket });
                }
                Err(error) => {
                    return Err(Error::peer_lost(
                        "send",
                        self.peer,
                        format!("its connection failed: {error}"),
                    ));
                }
            }
        }
    }

    /// Puts the header of a counted frame, behind which `len` bytes will follow, into the last piece or a new one; false if
    /// earlier operations wait, or there is no room.
    fn collect(&mut self, frame: Frame, len: usize) -> bool {
        let reads_first =
            matches!(frame, Frame::Write { .. } | Frame::Update { .. }) && self.reads.waiting() > 0;
        if reads_first || !self.operations.is_empty() {
            return false;
        }
        let header = frame.encode();
        let full = self.pieces.len() >= READY;
        match self.pieces.back_mut() {
            Some(last) if last.has_room(header.len() + len) => last.append(&header),
            _ if full => return false,
            _ => {
                let piece = self.piece(frame);
                self.pieces.push_back(piece);
            }
        }
        if let Some(piece) = self.pieces.back_mut() {
            piece.collected += 1;
            piece.counted += 1;
        }
        self.collected += 1;
        self.counts.add(1);
        true
    }

    /// A piece that begins with `frame`.
    fn piece(&mut self, frame: Frame) -> Piece {
        Piece::new(std::mem::take(&mut self.spare), frame)
    }

    /// Makes frames of operations and answers. What the next operation waits for.
    fn prepare(&mut self) -> Result<Obstacle> {
        if self.closed {
            return Ok(Obstacle::Nothing);
        }
        self.stalled = false;
        while self.pieces.len() < READY {
            // In turn, so that neither the peer's reads nor this rank's operations hold up the others for long. An operation may wait
            // for an answer of the peer's, which does the same: so answers never wait for operations.
            let answered = match self.answers.next(&mut self.staging, self.spilled)? {
                Made::Frame(frame, payload, place) => {
                    self.ready(frame, payload, place, Piece::answer);
                    true
                }
                Made::Waits(obstacle) => return Ok(obstacle),
                Made::Nothing => false,
            };
            match self.operations.next(&self.reads, &mut self.staging, self.spilled)? {
                Made::Frame(frame, payload, place) => self.ready(frame, payload, place, Piece::carry),
                _ if answered => {}
                Made::Nothing => return Ok(Obstacle::Nothing),
                Made::Waits(obstacle) => {
                    self.stalled = obstacle == Obstacle::Answers;
                    return Ok(obstacle);
                }
            }
        }
        // It may have been woken for pinned memory that it cannot use now.
        self.staging.leave();
        Ok(Obstacle::Nothing)
    }

    fn ready(&mut self, frame: Frame, payload: Payload, spent: Option<Place>, fill: fn(&mut Piece, Payload)) {
        self.spent.places.extend(spent);
        let mut piece = self.piece(frame);
        fill(&mut piece, payload);
        self.pieces.push_back(piece);
    }

    /// The bytes of the first pieces that are complete; how many parts.
    fn gather(&mut self, parts: &mut [libc::iovec; 2 * READY]) -> Result<usize> {
        let mut count = 0;
        for piece in self.pieces.iter_mut().take(READY) {
            if !piece.is_filled(&mut self.staging)? {
                break;
            }
            for part in piece.rest(&self.staging) {
                if part.iov_len > 0 {
                    parts[count] = part;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// The peer takes nothing now. Gives pinned memory up if others wait for some; true if a device has still to fill it.
    fn spill(&mut self) -> Result<bool> {
        if !self.staging.is_wanted() {
            return Ok(false);
        }
        for piece in &mut self.pieces {
            if !piece.is_filled(&mut self.staging)? {
                return Ok(true);
            }
            if piece.spill(&self.staging)? {
                self.staging.free_oldest();
                self.spilled += 1;
            }
        }
        Ok(false)
    }

    /// `sent` more bytes are with the kernel.
    fn consume(&mut self, mut sent: usize) {
        while sent > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            sent -= piece.advance(sent);
            if !piece.is_sent() {
                continue;
            }
            let Some(piece) = self.pieces.pop_front() else { return };
            self.collected -= piece.collected;
            self.counts.send(piece.counted);
            if piece.answers {
                self.answers.sent();
            }
            let (memory, payload) = piece.into_parts();
            self.spare = memory;
            match payload {
                Payload::Staged { .. } => self.staging.free_oldest(),
                Payload::Spilled(_) => self.spilled -= 1,
                Payload::None | Payload::Host(_) => {}
            }
            self.spent.take(payload);
        }
    }
}

const NO_PART: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

#[cfg(all(test, not(loom)))]
mod tests;
