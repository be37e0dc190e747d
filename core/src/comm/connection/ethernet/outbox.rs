//! The sending half: operations become frames, and frames go to the socket as far as it takes them.

use std::collections::VecDeque;
use std::io;
use std::ptr;

use super::frame::{Frame, HEADER_BYTES, MAX_PAYLOAD};
use super::staging::Staging;
use crate::comm::memory::{HostSlice, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{DeviceSlice, Event};
use crate::net::RawStream;

/// How many frames are made ready at a time, and how many go into one system call.
const READY: usize = 32;

/// What is to be sent, in order.
pub(super) struct Outbox {
    peer: u32,
    operations: VecDeque<Operation>,
    pieces: VecDeque<Piece>,
    staging: Staging,
    /// What is on its way and need not be kept any more; to be dropped where waiting is allowed.
    spent: Vec<Place>,
    /// Counted frames of all operations so far.
    count: u64,
    /// The count behind the latest request for an acknowledgement.
    asked: u64,
}

enum Operation {
    Write { region: u64, offset: u64, source: Place, len: usize, done: usize },
    Update { region: u64, offset: u64, value: u64 },
    Ask,
    After(Event),
}

/// One frame on its way.
struct Piece {
    header: [u8; HEADER_BYTES],
    payload: Payload,
    sent: usize,
    /// The copy that fills the payload.
    filled: Option<Event>,
}

enum Payload {
    None,
    Host(HostSlice),
    Staged { at: usize, len: usize },
    Text(Vec<u8>),
}

/// What sending waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing is left to be sent.
    Nothing,
    /// The socket takes no more now.
    Socket,
    /// A device has not finished a copy, or what the user ordered operations behind.
    Device,
}

impl Outbox {
    pub(super) fn new(staging: Staging, peer: u32) -> Self {
        Self {
            peer,
            operations: VecDeque::new(),
            pieces: VecDeque::new(),
            staging,
            spent: Vec::new(),
            count: 0,
            asked: 0,
        }
    }

    /// Operations that are not on their way yet.
    pub(super) fn waiting(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.pieces.is_empty()
    }

    pub(super) fn write(&mut self, region: u64, offset: u64, source: Place, len: usize) {
        self.count += len.div_ceil(MAX_PAYLOAD) as u64;
        self.operations.push_back(Operation::Write { region, offset, source, len, done: 0 });
    }

    pub(super) fn update(&mut self, region: u64, offset: u64, value: u64) {
        self.count += 1;
        self.operations.push_back(Operation::Update { region, offset, value });
    }

    /// Asks for an acknowledgement of everything so far: the count that it will name.
    pub(super) fn ask(&mut self) -> u64 {
        if self.asked != self.count {
            self.count += 1;
            self.asked = self.count;
            self.operations.push_back(Operation::Ask);
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

    /// Sends `frame`, with `text` behind it, as soon as the frame on its way has ended.
    pub(super) fn interject(&mut self, frame: Frame, text: Vec<u8>) {
        let behind = usize::from(self.pieces.front().is_some_and(|piece| piece.sent > 0));
        let payload = if text.is_empty() { Payload::None } else { Payload::Text(text) };
        self.pieces.insert(behind, Piece { header: frame.encode(), payload, sent: 0, filled: None });
    }

    /// Nothing more is sent.
    pub(super) fn clear(&mut self) {
        for operation in self.operations.drain(..) {
            if let Operation::Write { source, .. } = operation {
                self.spent.push(source);
            }
        }
        for piece in self.pieces.drain(..) {
            if let Payload::Host(host) = piece.payload {
                self.spent.push(Place::Host(host, None));
            }
        }
    }

    /// What need not be kept any more.
    pub(super) fn take_spent(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.spent)
    }

    /// Sends what can be sent now.
    pub(super) fn progress(&mut self, socket: &dyn RawStream) -> Result<Waits> {
        loop {
            let waits = self.prepare()?;
            let mut parts = [NO_PART; 2 * READY];
            let count = self.gather(&mut parts)?;
            if count == 0 {
                return Ok(if self.pieces.is_empty() { waits } else { Waits::Device });
            }
            // SAFETY: the parts lie in headers and texts of `self.pieces`, in its ring, and in memory that the pieces keep
            // alive; none of it goes away during the call.
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
                    let header =
                        Frame::Write { region: *region, offset: *offset + *done as u64, len: size as u32 };
                    *done += size;
                    if *done < *len {
                        self.pieces.push_back(Piece { header: header.encode(), payload, sent: 0, filled });
                        continue;
                    }
                    (header, payload, filled)
                }
            };
            if let Some(Operation::Write { source, .. }) = self.operations.pop_front() {
                self.spent.push(source);
            }
            self.pieces.push_back(Piece { header: frame.encode(), payload, sent: 0, filled });
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
                Payload::Text(text) => (text.as_ptr(), text.len()),
            };
            for (base, len, skip) in [
                (piece.header.as_ptr(), HEADER_BYTES, piece.sent.min(HEADER_BYTES)),
                (base, len, piece.sent.saturating_sub(HEADER_BYTES)),
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
            match self.pieces.pop_front().map(|piece| piece.payload) {
                Some(Payload::Staged { .. }) => self.staging.free_oldest(),
                Some(Payload::Host(host)) => self.spent.push(Place::Host(host, None)),
                Some(Payload::None | Payload::Text(_)) | None => {}
            }
        }
    }
}

impl Piece {
    fn len(&self) -> usize {
        HEADER_BYTES
            + match &self.payload {
                Payload::None => 0,
                Payload::Host(host) => host.memory().len(),
                Payload::Staged { len, .. } => *len,
                Payload::Text(text) => text.len(),
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
