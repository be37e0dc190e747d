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
use super::super::service::Disposer;
use super::frame::{Frame, MAX_PAYLOAD};
use super::staging::Staging;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Event};
use crate::memory::{HostSlice, Place, Remote};
use crate::net::RawStream;
use crate::volatile::VolatileSlice;

/// How many pieces are made ready at a time, and how many go into one system call.
const READY: usize = 32;
/// Writes from host memory of up to this size are copied.
pub(super) const SMALL: usize = 512;
/// Bytes of frames that are collected in one piece.
const COLLECTED: usize = 4 << 10;
/// Counted frames after which an acknowledgement is asked for, so that what they hold is released in time.
const ASK_EVERY: u64 = 1024;

/// Operations to send, in order.
pub(super) struct Outbox {
    peer: u32,
    operations: VecDeque<Operation>,
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
    /// The count behind each operation that the peer has not acknowledged.
    unacknowledged: VecDeque<u64>,
    /// Counted frames of all operations so far.
    count: u64,
    /// The count behind the latest request for an acknowledgement.
    asked: u64,
    /// Counted frames that the socket has taken.
    sent: u64,
    /// Counted frames that the peer has acknowledged.
    acknowledged: u64,
}

/// Memory that operations no longer use. Its drop may wait for the device, and may end the communicator.
#[derive(Default)]
pub(super) struct Spent {
    pub(super) places: Vec<Place>,
    pub(super) remotes: Vec<Arc<Remote>>,
}

impl Spent {
    /// Has everything dropped by threads that may block.
    pub(super) fn dispose(self, disposer: &Disposer) {
        if !self.places.is_empty() {
            disposer.free(Arc::new(self.places));
        }
        if !self.remotes.is_empty() {
            disposer.dispose(self.remotes);
        }
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.places.append(&mut other.places);
        self.remotes.append(&mut other.remotes);
    }
}

enum Operation {
    Write { region: u64, offset: u64, source: Place, len: usize, done: usize },
    Update { region: u64, offset: u64, value: u64 },
    Ask,
    After(Event),
}

/// Whole frames, the last of which may have its bytes elsewhere.
struct Piece {
    head: Vec<u8>,
    payload: Payload,
    sent: usize,
    /// The copy that fills the payload.
    filled: Option<Event>,
    /// Operations in it that were collected.
    collected: usize,
    /// Frames in it that are counted.
    counted: u64,
}

enum Payload {
    None,
    Host(HostSlice),
    Staged { at: usize, len: usize },
}

/// The obstacle to further sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing is left to be sent.
    Nothing,
    /// The socket takes no more now.
    Socket,
    /// A device has not finished a copy, or the work that the user ordered operations behind.
    Device,
}

impl Outbox {
    pub(super) fn new(staging: Staging, peer: u32) -> Self {
        Self {
            peer,
            operations: VecDeque::new(),
            pieces: VecDeque::new(),
            staging,
            spent: Spent::default(),
            in_flight: InFlight::new(),
            idle: IdleTimer::default(),
            spare: Vec::new(),
            collected: 0,
            unacknowledged: VecDeque::new(),
            count: 0,
            asked: 0,
            sent: 0,
            acknowledged: 0,
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
        let room = self.unacknowledged.len() < most;
        if !room {
            self.ask();
        }
        room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.pieces.is_empty()
    }

    /// Whether the peer has acknowledged every operation.
    pub(super) fn is_settled(&self) -> bool {
        self.acknowledged == self.count
    }

    pub(super) fn write(
        &mut self,
        remote: &Arc<Remote>,
        region: u64,
        offset: u64,
        source: Place,
        len: usize,
    ) {
        self.count += len.div_ceil(MAX_PAYLOAD) as u64;
        self.operations.push_back(Operation::Write { region, offset, source, len, done: 0 });
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
            let at = piece.head.len();
            piece.head.resize(at + len, 0);
            source.read(0, &mut piece.head[at..])?;
        }
        self.hold(remote);
        Ok(true)
    }

    pub(super) fn update(&mut self, remote: &Arc<Remote>, region: u64, offset: u64, value: u64) {
        if !self.collect(Frame::Update { region, offset, value }, 0) {
            self.count += 1;
            self.operations.push_back(Operation::Update { region, offset, value });
        }
        self.hold(remote);
    }

    /// Holds the memory that the latest frame writes to, until the frame is acknowledged.
    #[inline]
    fn hold(&mut self, remote: &Arc<Remote>) {
        self.in_flight.hold(self.count - 1, |known| Arc::ptr_eq(known, remote), || remote.clone());
        self.unacknowledged.push_back(self.count);
        if self.count - self.asked >= ASK_EVERY {
            self.ask();
        }
    }

    /// The peer says that `count` counted frames have landed. It may say so after it said more: its threads race.
    ///
    /// # Errors
    /// `Remote` if it cannot have received so many.
    pub(super) fn acknowledge(&mut self, count: u64) -> Result<()> {
        let begun = self.pieces.front().map_or(0, |piece| if piece.sent > 0 { piece.counted } else { 0 });
        if count > self.sent + begun {
            let (peer, sent) = (self.peer, self.sent);
            let message = format!("rank {peer} acknowledged {count} messages of {sent} that were sent");
            return Err(Error::new(ErrorKind::Remote, "recv", message).with_peer(peer));
        }
        self.acknowledged = self.acknowledged.max(count);
        while self.unacknowledged.pop_front_if(|last| *last <= count).is_some() {}
        self.spent.remotes.extend(std::iter::from_fn(|| self.in_flight.release(count)));
        Ok(())
    }

    /// Whether the service thread must be told to look for idleness: operations are unacknowledged, and it does not look yet.
    pub(super) fn must_watch(&mut self) -> bool {
        self.asked != self.count && self.idle.arm()
    }

    /// A look of the service thread. If the connection has become idle, an acknowledgement is asked for with the next progress.
    pub(super) fn look_for_idleness(&mut self) -> Activity {
        let activity = self.idle.look(self.count, Instant::now);
        if activity == Activity::Idle {
            self.ask();
        }
        activity
    }

    /// Asks for an acknowledgement of everything so far: the count that it will name.
    pub(super) fn ask(&mut self) -> u64 {
        if self.asked != self.count {
            if !self.collect(Frame::Ask, 0) {
                self.count += 1;
                self.operations.push_back(Operation::Ask);
            }
            self.asked = self.count;
        }
        self.asked
    }

    /// Lets what comes later begin only once the work before `event` is done.
    pub(super) fn after(&mut self, event: &Event) -> Result<()> {
        self.staging.stream.wait_event(event)?;
        let event = self.staging.event()?;
        self.operations.push_back(Operation::After(event));
        Ok(())
    }

    /// Sends `frame`, with `text` behind it, as soon as the piece on its way has gone.
    pub(super) fn interject(&mut self, frame: Frame, text: &[u8]) {
        let behind = usize::from(self.pieces.front().is_some_and(|piece| piece.sent > 0));
        let mut piece = self.piece(frame);
        piece.head.extend_from_slice(text);
        self.pieces.insert(behind, piece);
    }

    /// Nothing more is sent.
    pub(super) fn clear(&mut self) {
        for operation in self.operations.drain(..) {
            if let Operation::Write { source, .. } = operation {
                self.spent.places.push(source);
            }
        }
        for piece in self.pieces.drain(..) {
            if let Payload::Host(host) = piece.payload {
                self.spent.places.push(Place::Host(host, None));
            }
        }
        self.collected = 0;
        self.spent.remotes.extend(std::iter::from_fn(|| self.in_flight.release(u64::MAX)));
    }

    /// Takes the memory that operations no longer use.
    pub(super) fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }

    /// Sends what can be sent now.
    pub(super) fn progress(&mut self, socket: &dyn RawStream) -> Result<Waits> {
        loop {
            let waits = self.prepare()?;
            if self.pieces.is_empty() {
                return Ok(waits);
            }
            let mut parts = [NO_PART; 2 * READY];
            let count = self.gather(&mut parts)?;
            if count == 0 {
                return Ok(Waits::Device);
            }
            // SAFETY: the parts lie in the heads of `self.pieces`, in its ring, and in memory that the pieces keep alive; none of
            // it goes away during the call.
            match unsafe { socket.write_parts(&parts[..count]) } {
                Ok(sent) => self.consume(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Waits::Socket),
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
        if !self.operations.is_empty() {
            return false;
        }
        let header = frame.encode();
        let fits = |piece: &Piece| {
            matches!(piece.payload, Payload::None) && piece.head.len() + header.len() + len <= COLLECTED
        };
        let full = self.pieces.len() >= READY;
        match self.pieces.back_mut() {
            Some(last) if fits(last) => last.head.extend_from_slice(&header),
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
        self.count += 1;
        true
    }

    /// A piece that begins with `frame`.
    fn piece(&mut self, frame: Frame) -> Piece {
        let mut head = std::mem::take(&mut self.spare);
        head.extend_from_slice(&frame.encode());
        Piece { head, payload: Payload::None, sent: 0, filled: None, collected: 0, counted: 0 }
    }

    /// Makes frames of operations. What the next one waits for.
    fn prepare(&mut self) -> Result<Waits> {
        while self.pieces.len() < READY {
            let Some(operation) = self.operations.front_mut() else { return Ok(Waits::Nothing) };
            let (frame, payload, filled) = match operation {
                Operation::After(event) => {
                    if !event.is_done()? {
                        return Ok(Waits::Device);
                    }
                    self.operations.pop_front();
                    continue;
                }
                Operation::Update { region, offset, value } => {
                    (Frame::Update { region: *region, offset: *offset, value: *value }, Payload::None, None)
                }
                Operation::Ask => (Frame::Ask, Payload::None, None),
                Operation::Write { region, offset, source, len, done } => {
                    let size = (*len - *done).min(MAX_PAYLOAD);
                    let (payload, filled) = match source {
                        Place::Host(host, _) => (Payload::Host(host.part(*done, size)), None),
                        Place::Device(slice) => {
                            let staging = &mut self.staging;
                            let Some(at) = staging.take(size) else { return Ok(Waits::Device) };
                            (Payload::Staged { at, len: size }, Some(stage(staging, at, slice, *done, size)?))
                        }
                        Place::Elsewhere => {
                            return Err(Error::new(
                                ErrorKind::Internal,
                                "write",
                                "a source that is not mapped",
                            ));
                        }
                    };
                    let offset = *offset + *done as u64;
                    *done += size;
                    (Frame::Write { region: *region, offset, len: size as u32 }, payload, filled)
                }
            };
            let unfinished = matches!(operation, Operation::Write { len, done, .. } if *done < *len);
            if !unfinished && let Some(Operation::Write { source, .. }) = self.operations.pop_front() {
                self.spent.places.push(source);
            }
            let piece = self.piece(frame);
            self.pieces.push_back(Piece { payload, filled, counted: 1, ..piece });
        }
        Ok(Waits::Nothing)
    }

    /// The bytes of the first pieces that are complete; how many parts.
    fn gather(&mut self, parts: &mut [libc::iovec; 2 * READY]) -> Result<usize> {
        let mut count = 0;
        for piece in self.pieces.iter_mut().take(READY) {
            if let Some(event) = &piece.filled {
                if !event.is_done()? {
                    break;
                }
                if let Some(event) = piece.filled.take() {
                    self.staging.recycle(event);
                }
            }
            let (base, len) = match &piece.payload {
                Payload::None => (ptr::null(), 0),
                Payload::Host(host) => (host.memory().as_ptr().cast_const(), host.memory().len()),
                Payload::Staged { at, len } => (self.staging.host(*at).cast_const(), *len),
            };
            let head = piece.head.len();
            for (base, len, skip) in [
                (piece.head.as_ptr(), head, piece.sent.min(head)),
                (base, len, piece.sent.saturating_sub(head)),
            ] {
                if len > skip {
                    parts[count] = libc::iovec {
                        iov_base: base.wrapping_add(skip).cast_mut().cast(),
                        iov_len: len - skip,
                    };
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// `sent` more bytes are with the kernel.
    fn consume(&mut self, mut sent: usize) {
        while sent > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            let step = (piece.len() - piece.sent).min(sent);
            piece.sent += step;
            sent -= step;
            if piece.sent < piece.len() {
                continue;
            }
            let Some(Piece { mut head, payload, collected, counted, .. }) = self.pieces.pop_front() else {
                return;
            };
            self.collected -= collected;
            self.sent += counted;
            head.clear();
            self.spare = head;
            match payload {
                Payload::Staged { .. } => self.staging.free_oldest(),
                Payload::Host(host) => self.spent.places.push(Place::Host(host, None)),
                Payload::None => {}
            }
        }
    }
}

impl Piece {
    fn len(&self) -> usize {
        self.head.len()
            + match &self.payload {
                Payload::None => 0,
                Payload::Host(host) => host.memory().len(),
                Payload::Staged { len, .. } => *len,
            }
    }
}

const NO_PART: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Copies `size` bytes of `slice` from `done` into the ring; the event is behind that.
fn stage(staging: &mut Staging, at: usize, slice: &DeviceSlice, done: usize, size: usize) -> Result<Event> {
    let (to, from) = (staging.device(at, size)?, slice.slice(done..done + size)?);
    staging.stream.copy(&to, &from)?;
    staging.event()
}
