//! Frames on the socket of a connection: headers of one size, some with bytes behind them.
#![forbid(unsafe_code)]

use crate::wire::{Reader, WireError, WireResult};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 32;
/// The most bytes behind one header. A longer write or read is several frames, between which acknowledgements pass.
pub(super) const MAX_PAYLOAD: usize = 512 << 10;
/// The longest reason of a failure.
pub(super) const MAX_REASON: usize = 512;

/// One header. `Write`, `Update`, `Read` and `Ask` are counted by both sides; `Ack` names such a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// `len` bytes follow, for that place of a region of the receiver's.
    Write { region: u64, offset: u64, len: u32 },
    /// A value for the 8 bytes at that place.
    Update { region: u64, offset: u64, value: u64 },
    /// Asks for an `Ack` once everything so far, and this, has landed.
    Ask,
    /// Asks for the `len` bytes at that place of a region of the receiver's, as `Data`.
    Read { region: u64, offset: u64, len: u32 },
    /// The `len` bytes that the earliest unanswered `Read` asks for follow.
    Data { len: u32 },
    /// So many counted frames have landed, and the bytes of the reads among them are before this.
    Ack { count: u64 },
    /// The sender has let go of the connection and will send only acknowledgements and answers to reads.
    Bye,
    /// The sender gives the connection up; `len` bytes of reason follow.
    Fail { len: u32 },
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, len, region, offset, value) = match self {
            Self::Write { region, offset, len } => (1, len, region, offset, 0),
            Self::Update { region, offset, value } => (2, 0, region, offset, value),
            Self::Ask => (3, 0, 0, 0, 0),
            Self::Ack { count } => (4, 0, 0, 0, count),
            Self::Fail { len } => (5, len, 0, 0, 0),
            Self::Bye => (6, 0, 0, 0, 0),
            Self::Read { region, offset, len } => (7, len, region, offset, 0),
            Self::Data { len } => (8, len, 0, 0, 0),
        };
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&u32::to_le_bytes(kind));
        header[4..8].copy_from_slice(&len.to_le_bytes());
        for (at, word) in [(8, region), (16, offset), (24, value)] {
            header[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        header
    }

    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> WireResult<Self> {
        let mut r = Reader::new(header);
        let (kind, len, region, offset, value) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?, r.u64()?);
        let frame = match kind {
            1 => Self::Write { region, offset, len },
            2 => Self::Update { region, offset, value },
            3 => Self::Ask,
            4 => Self::Ack { count: value },
            5 => Self::Fail { len },
            6 => Self::Bye,
            7 => Self::Read { region, offset, len },
            8 => Self::Data { len },
            _ => return Err(WireError::Invalid { what: "kind of frame" }),
        };
        let fits = match frame {
            Self::Write { len, .. } | Self::Read { len, .. } | Self::Data { len } => {
                (1..=MAX_PAYLOAD).contains(&(len as usize))
            }
            Self::Fail { len } => len as usize <= MAX_REASON,
            _ => true,
        };
        // One header has one meaning: what a kind does not use is zero.
        if fits && frame.encode() == *header { Ok(frame) } else { Err(WireError::Invalid { what: "header" }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_round_trips_and_lengths_are_bounded() {
        let frames = [
            Frame::Write { region: 1, offset: u64::MAX, len: MAX_PAYLOAD as u32 },
            Frame::Update { region: 2, offset: 8, value: u64::MAX },
            Frame::Ask,
            Frame::Ack { count: 9 },
            Frame::Fail { len: 512 },
            Frame::Bye,
            Frame::Read { region: 3, offset: 16, len: 1 },
            Frame::Data { len: MAX_PAYLOAD as u32 },
        ];
        for frame in frames {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        for len in [0, MAX_PAYLOAD as u32 + 1, u32::MAX] {
            let (region, offset) = (1, 0);
            for frame in [
                Frame::Write { region, offset, len },
                Frame::Read { region, offset, len },
                Frame::Data { len },
            ] {
                assert!(Frame::decode(&frame.encode()).is_err());
            }
        }
        assert!(Frame::decode(&Frame::Fail { len: 513 }.encode()).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_panic_and_accepted_headers_are_canonical(header: [u8; HEADER_BYTES]) {
            if let Ok(frame) = Frame::decode(&header) {
                prop_assert_eq!(frame.encode(), header);
            }
        }
    }
}
