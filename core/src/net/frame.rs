//! Frames: a header, a payload of bounded length, and on local sockets a stated number of file descriptors.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::wire::FrameHeader;

/// The most file descriptors that one frame can carry.
pub const MAX_FDS: usize = 16;

/// Payload memory is taken as bytes arrive, in steps of this size, not at once on the word of a header.
const GROWTH: usize = 256 << 10;

/// One message of a [`Stream`](super::Stream) or [`Link`](super::Link).
#[derive(Debug)]
pub struct Frame {
    /// Type of the payload; the protocol on the stream assigns the numbers.
    pub kind: u16,
    /// The bytes.
    pub payload: Vec<u8>,
    /// Descriptors that came with it; as many as the sender announced.
    pub fds: Vec<OwnedFd>,
}

/// Header and payload as one piece of memory to write.
pub(super) fn encode(kind: u16, payload: &[u8], fds: usize, max: u32) -> Result<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= max).ok_or_else(|| {
        Error::usage("send", format!("a frame of {} bytes is above the limit of {max}", payload.len()))
    })?;
    if fds > MAX_FDS {
        return Err(Error::usage(
            "send",
            format!("{fds} file descriptors in one frame, the limit is {MAX_FDS}"),
        ));
    }
    let header = FrameHeader { kind, length, fds: fds as u16 }.encode();
    let mut bytes = Vec::with_capacity(header.len() + payload.len());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Turns a stream of bytes into frames. Does no input or output.
#[derive(Debug)]
pub(super) struct Decoder {
    max: u32,
    header: [u8; FrameHeader::BYTES],
    have: usize,
    current: Option<FrameHeader>,
    payload: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    ready: VecDeque<Frame>,
}

impl Decoder {
    /// A decoder that refuses payloads above `max` bytes.
    pub(super) fn new(max: u32) -> Self {
        Self {
            max,
            header: [0; FrameHeader::BYTES],
            have: 0,
            current: None,
            payload: Vec::new(),
            fds: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// The next complete frame.
    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// The largest payload taken, for frames sent the other way.
    pub(super) fn max(&self) -> u32 {
        self.max
    }

    /// Whether the stream would end inside a frame if it ended now.
    pub(super) fn inside_frame(&self) -> bool {
        self.have > 0 || self.current.is_some()
    }

    /// Takes the next bytes of the stream and the descriptors that came with them.
    pub(super) fn push(&mut self, mut bytes: &[u8], fds: &mut Vec<OwnedFd>) -> Result<()> {
        self.fds.extend(fds.drain(..));
        loop {
            let header = match self.current {
                Some(header) => header,
                None => {
                    let take = bytes.len().min(self.header.len() - self.have);
                    self.header[self.have..self.have + take].copy_from_slice(&bytes[..take]);
                    self.have += take;
                    bytes = &bytes[take..];
                    if self.have < self.header.len() {
                        break;
                    }
                    self.have = 0;
                    *self.current.insert(FrameHeader::decode(&self.header, self.max, MAX_FDS as u16)?)
                }
            };
            let missing = header.length as usize - self.payload.len();
            let take = bytes.len().min(missing);
            if self.payload.capacity() - self.payload.len() < take {
                self.payload.reserve(missing.min(GROWTH.max(take)));
            }
            self.payload.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if take < missing {
                break;
            }
            self.complete(header)?;
        }
        // Descriptors travel with the first byte of their frame, so between frames none may be left over.
        if self.fds.len() > MAX_FDS || (!self.inside_frame() && !self.fds.is_empty()) {
            return Err(protocol("file descriptors arrived that no frame announced"));
        }
        Ok(())
    }

    fn complete(&mut self, header: FrameHeader) -> Result<()> {
        let count = usize::from(header.fds);
        if self.fds.len() < count {
            return Err(protocol(format!("{count} file descriptors announced, {} came", self.fds.len())));
        }
        let fds = self.fds.drain(..count).collect();
        self.current = None;
        self.ready.push_back(Frame { kind: header.kind, payload: std::mem::take(&mut self.payload), fds });
        Ok(())
    }
}

fn protocol(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Remote, "recv", message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_cut_of_the_stream_gives_the_same_frames(
            frames in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..70)), 0..6),
            cuts in prop::collection::vec(1usize..40, 1..20),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(k, p)| encode(*k, p, 0, 100).unwrap()).collect();
            let mut decoder = Decoder::new(100);
            let (mut rest, mut cut) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cut.next().unwrap()));
                decoder.push(now, &mut Vec::new()).unwrap();
                rest = later;
            }
            prop_assert!(!decoder.inside_frame());
            let found: Vec<_> = std::iter::from_fn(|| decoder.pop()).map(|f| (f.kind, f.payload)).collect();
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn garbage_is_an_error_or_waits_and_takes_little_memory(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(1 << 30);
            let _ = decoder.push(&bytes, &mut Vec::new());
            prop_assert!(decoder.payload.capacity() <= bytes.len() + GROWTH);
        }
    }

    #[test]
    fn a_gigabyte_announced_is_refused_and_a_large_frame_grows_with_its_bytes() {
        let giant = FrameHeader { kind: 0, length: 1 << 30, fds: 0 }.encode();
        assert!(Decoder::new(1 << 20).push(&giant, &mut Vec::new()).is_err());
        let mut decoder = Decoder::new(1 << 30);
        decoder.push(&giant, &mut Vec::new()).unwrap();
        decoder.push(&[1; 100], &mut Vec::new()).unwrap();
        assert!(decoder.payload.capacity() <= 2 * GROWTH && decoder.inside_frame());
        assert!(encode(0, &[0; 11], 0, 10).is_err() && encode(0, &[], MAX_FDS + 1, 10).is_err());
    }

    #[test]
    fn descriptors_must_match_their_announcement() {
        let fd = || vec![OwnedFd::from(std::fs::File::open("/dev/null").unwrap())];
        assert!(Decoder::new(9).push(&encode(0, b"x", 1, 9).unwrap(), &mut Vec::new()).is_err());
        assert!(Decoder::new(9).push(&encode(0, b"x", 0, 9).unwrap(), &mut fd()).is_err());
        let mut decoder = Decoder::new(9);
        decoder.push(&encode(0, b"x", 1, 9).unwrap(), &mut fd()).unwrap();
        assert_eq!(decoder.pop().unwrap().fds.len(), 1);
        // Even inside a frame no more are kept than one frame can carry.
        let mut many: Vec<OwnedFd> = (0..=MAX_FDS).flat_map(|_| fd()).collect();
        assert!(Decoder::new(9).push(&encode(0, b"x", 1, 9).unwrap()[..8], &mut many).is_err());
    }
}
