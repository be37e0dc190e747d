//! The head of every frame between two messengers, and what may stand in it.
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | length of the body in bytes | 4 |
//! | 4 | sequence number, one more than that of the frame before on this link and in this direction | 4 |
//! | 8 | operation | 1 |
//! | 9 | check over the other fifteen bytes | 1 |
//! | 10 | kind of a message, otherwise 0 | 2 |
//! | 12 | number of the read or of the long message that the frame is about, otherwise 0 | 4 |
//!
//! The check tells a reader of a byte stream at once that it no longer stands at the beginning of a frame. It protects
//! nothing: whoever knows the job's secret can compute it.
#![forbid(unsafe_code)]

use crate::wire::{WireError, WireResult};

/// The purpose of a frame. Its number crosses the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    /// A message; the body is what its sender gave.
    Message = 1,
    /// A message with a token: the body is the token, then what its sender gave.
    Long = 2,
    /// The outcome of a long message: one byte, 0 for delivered and 1 for refused; then 8 bytes of the token that it offered.
    LongDone = 3,
    /// Asks for a range of exposed memory: token, offset, length.
    Read = 4,
    /// The next bytes of the oldest read that has not got all of its bytes.
    Data = 5,
    /// The owner does not serve this read, or not the rest of it: one byte says why.
    Refused = 6,
    /// The reader no longer wants this read.
    Cancel = 7,
    /// The receiver has nothing registered for this kind of message.
    Unknown = 8,
    /// The last frame of a side that leaves in good order.
    Goodbye = 9,
    /// As `Read`, of a reader that can map the memory instead.
    Map = 10,
    /// The answer to `Map` of an owner that has handed over a descriptor: the memory's place within it.
    Mapped = 11,
    /// Messages were dispatched: their number and their bytes, which the peer may send again.
    Credit = 12,
    /// As `Read`, of a reader whose device can read the memory itself: asks for its key.
    Fetch = 13,
    /// The answer to `Fetch`: the key, or nothing.
    Key = 14,
}

/// A frame's head. The wire stamps the sequence number when it takes the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) sequence: u32,
    pub(super) operation: Operation,
    pub(super) kind: u16,
    pub(super) id: u32,
}

impl Head {
    /// Size of the encoded head.
    pub(super) const BYTES: usize = 16;

    /// The head of a frame with a body of `length` bytes, which no wire has stamped yet.
    #[inline]
    pub(super) fn new(operation: Operation, kind: u16, id: u32, length: usize) -> Self {
        let length = u32::try_from(length).expect("bodies are limited to far less than 4 GiB");
        Self { length, sequence: 0, operation, kind, id }
    }

    /// The encoded head.
    #[inline]
    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let low = u64::from(self.length) | u64::from(self.sequence) << 32;
        let high = u64::from(self.operation as u8) | u64::from(self.kind) << 16 | u64::from(self.id) << 32;
        let high = high | u64::from(check(low, high)) << 8;
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&low.to_le_bytes());
        out[8..].copy_from_slice(&high.to_le_bytes());
        out
    }

    /// Decodes and checks a head; `max_length` bounds what the receiver is willing to take.
    #[inline]
    pub(super) fn decode(bytes: &[u8; Self::BYTES], max_length: u32) -> WireResult<Self> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (low, high) = (word(0), word(8));
        if check(low, high & !0xff00) != (high >> 8) as u8 {
            return Err(WireError::Invalid { what: "check of a frame's head" });
        }
        let operation =
            Operation::from_number(high as u8).ok_or(WireError::Invalid { what: "operation of a frame" })?;
        let (length, sequence) = (low as u32, (low >> 32) as u32);
        let (kind, id) = ((high >> 16) as u16, (high >> 32) as u32);
        if length > max_length {
            return Err(WireError::TooLong { length: length.into(), limit: max_length.into() });
        }
        Ok(Self { length, sequence, operation, kind, id })
    }
}

impl Operation {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Message,
            2 => Self::Long,
            3 => Self::LongDone,
            4 => Self::Read,
            5 => Self::Data,
            6 => Self::Refused,
            7 => Self::Cancel,
            8 => Self::Unknown,
            9 => Self::Goodbye,
            10 => Self::Map,
            11 => Self::Mapped,
            12 => Self::Credit,
            13 => Self::Fetch,
            14 => Self::Key,
            _ => return None,
        })
    }
}

/// Folds the two words of a head, the check itself left out, to a byte.
#[inline]
fn check(low: u64, high: u64) -> u8 {
    let mixed = (low ^ high.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 ^ 0xa5
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_round_trip_and_garbage_is_refused(
            length: u32, sequence: u32, number in 1u8..=14, kind: u16, id: u32, noise: [u8; 16],
        ) {
            let operation = Operation::from_number(number).unwrap();
            let head = Head { length, sequence, operation, kind, id };
            prop_assert_eq!(Head::decode(&head.encode(), length), Ok(head));
            if length > 0 {
                let refused = Err(WireError::TooLong { length: length.into(), limit: u64::from(length) - 1 });
                prop_assert_eq!(Head::decode(&head.encode(), length - 1), refused);
            }
            if let Ok(found) = Head::decode(&noise, u32::MAX) {
                prop_assert_eq!(found.encode(), noise);
            }
        }

        #[test]
        fn a_changed_byte_is_mostly_noticed(length: u32, sequence: u32, at in 0usize..16, change in 1u8..) {
            let head = Head { length, sequence, operation: Operation::Message, kind: 7, id: 0 };
            let mut bytes = head.encode();
            bytes[at] ^= change;
            // The check has eight bits: what slips through is at least another head, and one that encodes to these bytes.
            if let Ok(found) = Head::decode(&bytes, u32::MAX) {
                prop_assert!(found != head && found.encode() == bytes);
            }
        }
    }

    #[test]
    fn zeros_and_ones_are_no_heads() {
        assert!(Head::decode(&[0; 16], u32::MAX).is_err());
        assert!(Head::decode(&[0xff; 16], u32::MAX).is_err());
    }
}
