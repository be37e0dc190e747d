//! Places in a stream of bytes, which a stream of frames may be.

use crate::wire::FrameHeader;

/// A place in one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Behind so many bytes.
    Bytes(u64),
    /// Behind so many whole messages.
    Frames(u64),
}

/// A position in a stream of frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    bytes: u64,
    frames: u64,
    header: Vec<u8>,
    /// Payload bytes still to come, once the header is complete.
    payload: u32,
}

impl Position {
    /// Advances by one byte.
    pub(super) fn push(&mut self, byte: u8) {
        self.bytes += 1;
        if self.header.len() < FrameHeader::BYTES {
            self.header.push(byte);
            let Ok(header) = <&[u8; FrameHeader::BYTES]>::try_from(&self.header[..]) else { return };
            self.payload = FrameHeader::decode(header, u32::MAX, u16::MAX).map_or(0, |header| header.length);
        } else {
            self.payload -= 1;
        }
        if self.payload == 0 && self.header.len() == FrameHeader::BYTES {
            self.frames += 1;
            self.header.clear();
        }
    }

    /// Number of bytes of `next` before the place `at`, or `None` if `next` ends before it.
    pub(super) fn distance(&self, at: At, next: &[u8]) -> Option<usize> {
        match at {
            At::Bytes(bytes) => usize::try_from(bytes.saturating_sub(self.bytes))
                .ok()
                .filter(|distance| *distance < next.len()),
            At::Frames(frames) if frames <= self.frames => Some(0),
            At::Frames(frames) => {
                let mut position = self.clone();
                next.iter()
                    .position(|byte| {
                        position.push(*byte);
                        position.frames == frames
                    })
                    .map(|index| index + 1)
                    .filter(|distance| *distance < next.len())
            }
        }
    }

    /// Number of bytes before the place `at`, of which none is known yet: 0 if it has been reached, and `None` if only the bytes
    /// will tell.
    pub(super) fn distance_unseen(&self, at: At) -> Option<usize> {
        match at {
            At::Bytes(bytes) => usize::try_from(bytes.saturating_sub(self.bytes)).ok(),
            At::Frames(frames) => (frames <= self.frames).then_some(0),
        }
    }
}
