//! What control links carry: the kinds of frames and their payloads.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::holds::HoldId;
use super::key::Kind;
use super::mailbox::{Message, Offer};
use crate::abort::AbortCause;
use crate::error::{Error, ErrorKind};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A message about a setup item, see [`Setup`].
pub(super) const SETUP: u16 = 1;
/// Something that was received is no longer used, see [`Release`].
pub(super) const RELEASE: u16 = 2;
/// A rank failed, see [`encode_failure`]; passed on once by everyone who hears it.
pub(super) const FAILURE: u16 = 3;
/// The sender leaves in good order; the end of the link that follows is not a failure.
pub(super) const BYE: u16 = 4;
/// Nothing but a sign of life, sent where nothing else was for a while.
pub(super) const HEARTBEAT: u16 = 5;

/// A message between ranks that make another communicator, see [`letters`](super::control).
pub(super) const LETTER: u16 = 16;

/// Version of every payload of this module. Ranks compare it before they open links.
pub(super) const VERSION: u16 = 1;

const MAX_BODY: usize = 64 << 10;
const MAX_TEXT: usize = 4 << 10;

/// Payload of [`SETUP`]: `kind` is the sender's.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) kind: Kind,
    pub(super) tag: u64,
    pub(super) attempt: u64,
    pub(super) message: Message,
}

impl Setup {
    /// Payload and file descriptors.
    pub(super) fn encode(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut w = Writer::new();
        w.u8(self.kind.to_wire()).u64(self.tag).u64(self.attempt);
        match self.message {
            Message::Offer(offer) => {
                w.u8(0).bytes(&offer.body);
                (w.finish(), offer.fds)
            }
            Message::Done(Ok(())) => {
                w.u8(1);
                (w.finish(), Vec::new())
            }
            Message::Done(Err(error)) => {
                w.u8(2).u32(error.kind() as u32).str(clip(&error.duplicate().to_string()));
                (w.finish(), Vec::new())
            }
        }
    }

    /// Decodes what rank `peer` sent.
    pub(super) fn decode(peer: u32, payload: &[u8], fds: Vec<OwnedFd>) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let (kind, tag, attempt) = (Kind::from_wire(r.u8()?)?, r.u64()?, r.u64()?);
        let message = match r.u8()? {
            0 => Message::Offer(Offer { body: r.bytes(MAX_BODY)?.to_vec(), fds }),
            1 => Message::Done(Ok(())),
            2 => {
                let (code, text) = (r.u32()?, r.str(MAX_TEXT)?);
                let failed = Error::new(
                    kind_from_code(code),
                    kind.counterpart().op(),
                    format!("rank {peer} failed: {text}"),
                );
                Message::Done(Err(failed.with_peer(peer)))
            }
            _ => return Err(WireError::Invalid { what: "step of setup item" }),
        };
        r.finish()?;
        Ok(Self { kind, tag, attempt, message })
    }
}

/// Payload of [`RELEASE`]: `count` receipts of something that the receiver of this frame exported are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) id: HoldId,
    pub(super) count: u64,
}

impl Release {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut w = Writer::new();
        match self.id {
            HoldId::Memory(id) => w.u8(1).u64(id),
            HoldId::Token(slot) => w.u8(2).u64(slot),
            HoldId::Region(number) => w.u8(3).u64(number),
        };
        w.u64(self.count);
        w.finish()
    }

    pub(super) fn decode(payload: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let id = match r.u8()? {
            1 => HoldId::Memory(r.u64()?),
            2 => HoldId::Token(r.u64()?),
            3 => HoldId::Region(r.u64()?),
            _ => return Err(WireError::Invalid { what: "kind of release" }),
        };
        let release = Self { id, count: r.u64()? };
        r.finish()?;
        Ok(release)
    }
}

/// Payload of [`FAILURE`].
pub(super) fn encode_failure(cause: &AbortCause) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(cause.kind as u32).u32(cause.rank.unwrap_or(u32::MAX)).str(clip(&cause.reason));
    w.finish()
}

/// The cause in a [`FAILURE`], as seen in a communicator of `size` ranks.
pub(super) fn decode_failure(payload: &[u8], size: u32) -> WireResult<AbortCause> {
    let mut r = Reader::new(payload);
    let (code, rank) = (r.u32()?, r.u32()?);
    let reason = r.str(MAX_TEXT)?.to_owned();
    r.finish()?;
    if rank >= size && rank != u32::MAX {
        return Err(WireError::Invalid { what: "rank" });
    }
    Ok(AbortCause { kind: kind_from_code(code), rank: (rank != u32::MAX).then_some(rank), reason })
}

/// The kinds that one rank may report to another; anything else is only "remote".
fn kind_from_code(code: u32) -> ErrorKind {
    const KNOWN: [ErrorKind; 9] = [
        ErrorKind::InvalidUsage,
        ErrorKind::Cuda,
        ErrorKind::Verbs,
        ErrorKind::System,
        ErrorKind::PeerLost,
        ErrorKind::Timeout,
        ErrorKind::Aborted,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ];
    KNOWN.into_iter().find(|kind| *kind as u32 == code).unwrap_or(ErrorKind::Remote)
}

/// As much of `text` as the receiver takes, cut at a character.
fn clip(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_gains_the_rank() {
        let failed = Message::Done(Err(Error::timeout("recv_memory", "é".repeat(MAX_TEXT))));
        let (payload, fds) = Setup { kind: Kind::MemoryRecv, tag: 5, attempt: 2, message: failed }.encode();
        assert!(fds.is_empty());
        let setup = Setup::decode(4, &payload, fds).unwrap();
        let Message::Done(Err(error)) = setup.message else { panic!("{setup:?}") };
        assert_eq!((error.kind(), error.peer(), error.op()), (ErrorKind::Timeout, Some(4), "send_memory"));
    }

    #[test]
    fn failures_round_trip_and_ranks_are_checked() {
        let cause = AbortCause::peer_lost(3, "killed");
        assert_eq!(decode_failure(&encode_failure(&cause), 4).unwrap(), cause);
        assert!(decode_failure(&encode_failure(&cause), 3).is_err());
        let anonymous = AbortCause { kind: ErrorKind::Internal, rank: None, reason: String::new() };
        assert_eq!(decode_failure(&encode_failure(&anonymous), 1).unwrap(), anonymous);
    }

    #[test]
    fn releases_round_trip() {
        for id in [HoldId::Memory(u64::MAX), HoldId::Token(3), HoldId::Region(8)] {
            let release = Release { id, count: 9 };
            assert_eq!(Release::decode(&release.encode()), Ok(release));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            let _ = Setup::decode(0, &bytes, Vec::new());
            let _ = Release::decode(&bytes);
            let _ = decode_failure(&bytes, 4);
        }
    }
}
