//! Frames on their way to the socket: their headers, and the bytes behind the last of them wherever they lie.

use std::ptr;

use super::frame::Frame;
use super::staging::Staging;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::Event;
use crate::memory::{HostSlice, Place};
use crate::volatile::VolatileSlice;

/// Bytes of frames that are collected in one piece.
const COLLECTED: usize = 4 << 10;

/// Whole frames, the last of which may have its bytes elsewhere.
pub(super) struct Piece {
    head: Vec<u8>,
    payload: Payload,
    sent: usize,
    /// Operations in it that were collected.
    pub(super) collected: usize,
    /// Frames in it that are counted.
    pub(super) counted: u64,
    /// It has bytes that the peer reads.
    pub(super) answers: bool,
}

/// Bytes behind the header of a frame.
pub(super) enum Payload {
    /// None, or those in the piece itself.
    None,
    Host(HostSlice),
    /// A part of a borrowed block of pinned memory.
    Staged {
        at: usize,
        len: usize,
        /// The copy that fills it, until that is known to be done.
        filled: Option<Event>,
    },
    /// Ordinary memory, where a part of the pinned one was needed.
    Spilled(Box<[u8]>),
}

impl Piece {
    /// A piece that begins with `frame`, in `memory`, which is empty.
    #[inline]
    pub(super) fn new(memory: Vec<u8>, frame: Frame) -> Self {
        let mut head = memory;
        head.extend_from_slice(&frame.encode());
        Self { head, payload: Payload::None, sent: 0, collected: 0, counted: 0, answers: false }
    }

    /// Whether `len` more bytes may be appended.
    #[inline]
    pub(super) fn has_room(&self, len: usize) -> bool {
        matches!(self.payload, Payload::None) && self.head.len() + len <= COLLECTED
    }

    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// Appends the bytes that `source` has now.
    #[inline]
    pub(super) fn append_from(&mut self, source: VolatileSlice<'_>) -> Result<()> {
        let at = self.head.len();
        self.head.resize(at + source.len(), 0);
        source.read(0, &mut self.head[at..])
    }

    /// Makes it one counted frame, with `payload` behind its header.
    pub(super) fn carry(&mut self, payload: Payload) {
        self.payload = payload;
        self.counted = 1;
    }

    /// Makes it the answer to a read, with `payload` behind its header, or an acknowledgement, without.
    pub(super) fn answer(&mut self, payload: Payload) {
        self.answers = !matches!(payload, Payload::None);
        self.payload = payload;
    }

    /// Whether the socket has taken some of it.
    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.sent > 0
    }

    /// Whether all its bytes are there. Gives the event that said so back to `staging`.
    #[inline]
    pub(super) fn is_filled(&mut self, staging: &mut Staging) -> Result<bool> {
        let Payload::Staged { filled, .. } = &mut self.payload else { return Ok(true) };
        if let Some(event) = filled
            && !event.is_done()?
        {
            return Ok(false);
        }
        if let Some(event) = filled.take() {
            staging.recycle(event);
        }
        Ok(true)
    }

    /// Moves its bytes out of pinned memory, where they must [be](Self::is_filled); false if none are there.
    pub(super) fn spill(&mut self, staging: &Staging) -> Result<bool> {
        let Payload::Staged { at, len, .. } = self.payload else { return Ok(false) };
        let mut bytes = vec![0; len].into_boxed_slice();
        staging.read(at, &mut bytes)?;
        self.payload = Payload::Spilled(bytes);
        Ok(true)
    }

    /// Whether its bytes were moved out of pinned memory.
    pub(super) fn is_spilled(&self) -> bool {
        matches!(self.payload, Payload::Spilled(_))
    }

    /// Bytes that the socket has not taken yet, in order; a part may be empty. Valid while the piece and `staging` are.
    #[inline]
    pub(super) fn rest(&self, staging: &Staging) -> [libc::iovec; 2] {
        let head = (self.head.as_ptr(), self.head.len());
        let payload = match &self.payload {
            Payload::None => (ptr::null(), 0),
            Payload::Host(host) => (host.memory().as_ptr().cast_const(), host.memory().len()),
            Payload::Staged { at, len, .. } => (staging.host(*at).cast_const(), *len),
            Payload::Spilled(bytes) => (bytes.as_ptr(), bytes.len()),
        };
        let mut skip = self.sent;
        [head, payload].map(|(base, len)| {
            let skipped = skip.min(len);
            skip -= skipped;
            let base = base.wrapping_add(skipped).cast_mut().cast();
            libc::iovec { iov_base: base, iov_len: len - skipped }
        })
    }

    /// The socket has taken up to `sent` more bytes: how many of those are this piece's.
    #[inline]
    pub(super) fn advance(&mut self, sent: usize) -> usize {
        let step = (self.len() - self.sent).min(sent);
        self.sent += step;
        step
    }

    /// Whether the socket has taken all of it.
    #[inline]
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.len()
    }

    /// Its memory, for another piece, and where the bytes were.
    #[inline]
    pub(super) fn into_parts(mut self) -> (Vec<u8>, Payload) {
        self.head.clear();
        (self.head, self.payload)
    }

    #[inline]
    fn len(&self) -> usize {
        self.head.len()
            + match &self.payload {
                Payload::None => 0,
                Payload::Host(host) => host.memory().len(),
                Payload::Staged { len, .. } => *len,
                Payload::Spilled(bytes) => bytes.len(),
            }
    }
}

impl Payload {
    /// `size` bytes of `source` from `done`; those of a device are copied into pinned memory. None if there is no room now.
    pub(super) fn of(
        source: &Place,
        done: usize,
        size: usize,
        staging: &mut Staging,
    ) -> Result<Option<Self>> {
        match source {
            Place::Host(host, _) => Ok(Some(Self::Host(host.part(done, size)))),
            Place::Device(slice) => {
                let Some(at) = staging.take(size) else { return Ok(None) };
                let (to, from) = (staging.device(at, size)?, slice.slice(done..done + size)?);
                staging.stream().copy(&to, &from)?;
                // Behind the copy.
                let filled = Some(staging.event()?);
                Ok(Some(Self::Staged { at, len: size, filled }))
            }
            Place::Elsewhere => Err(Error::new(ErrorKind::Internal, "write", "a source that is not mapped")),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::frame::HEADER_BYTES;
    use super::*;
    use crate::gpu::{Context, Device, Driver};

    fn staging() -> Staging {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        Staging::alone(&Context::new(&Device::new(&driver, 0).unwrap()).unwrap(), 4)
    }

    #[test]
    fn the_rest_of_a_piece_is_what_the_socket_has_not_taken() {
        let staging = staging();
        let mut piece = Piece::new(Vec::new(), Frame::Ask);
        piece.append(&[1; 8]);
        let head = HEADER_BYTES + 8;
        piece.carry(Payload::Staged { at: 64, len: 100, filled: None });
        let begin = piece.rest(&staging).map(|part| part.iov_base);
        assert!(!piece.has_begun() && !piece.is_sent());
        for (step, sent) in [(7, 7), (head, head + 7), (90, head + 97), (0, head + 97)] {
            assert_eq!(piece.advance(step), step);
            assert!(piece.has_begun() && !piece.is_sent());
            let skipped = [sent.min(head), sent.saturating_sub(head)];
            for (part, (base, (len, skipped))) in
                piece.rest(&staging).iter().zip(begin.iter().zip([head, 100].iter().zip(skipped)))
            {
                assert_eq!((part.iov_base, part.iov_len), (base.wrapping_byte_add(skipped), len - skipped));
            }
        }
        assert_eq!(piece.advance(50), 3, "the others belong to the next piece");
        assert!(piece.is_sent() && piece.rest(&staging).iter().all(|part| part.iov_len == 0));
    }

    #[test]
    fn frames_are_collected_up_to_a_size_and_not_behind_bytes_elsewhere() {
        let mut piece = Piece::new(Vec::new(), Frame::Ask);
        let room = COLLECTED - HEADER_BYTES;
        assert!(piece.has_room(room) && !piece.has_room(room + 1));
        piece.append(&[0; 16]);
        assert!(piece.has_room(room - 16) && !piece.has_room(room - 15));
        piece.carry(Payload::Staged { at: 0, len: 1, filled: None });
        assert!(!piece.has_room(0));
    }

    #[test]
    fn a_piece_is_filled_when_its_copy_is_done() {
        let mut staging = staging();
        let mut piece = Piece::new(Vec::new(), Frame::Ask);
        assert!(piece.is_filled(&mut staging).unwrap());
        let event = staging.event().unwrap();
        while !event.is_done().unwrap() {}
        piece.carry(Payload::Staged { at: 0, len: 1, filled: Some(event) });
        assert!(piece.is_filled(&mut staging).unwrap());
        assert!(matches!(piece.payload, Payload::Staged { filled: None, .. }), "it went back");
    }
}
