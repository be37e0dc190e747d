//! Frames on control links: their kinds and payloads.
#![forbid(unsafe_code)]

use crate::abort::AbortCause;
use crate::error::ErrorKind;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A message about a setup item, see [`message`](crate::setup::message).
pub(crate) const SETUP: u16 = 1;
/// Something that was received is no longer used, see [`ledger`](crate::memory::ledger).
pub(crate) const RELEASE: u16 = 2;
/// A rank failed, see [`encode_failure`]; passed on once by everyone who hears it.
pub(crate) const FAILURE: u16 = 3;
/// The sender leaves in good order; the end of the link that follows is not a failure.
pub(crate) const BYE: u16 = 4;
/// Nothing but a sign of life, sent where nothing else was for a while.
pub(crate) const HEARTBEAT: u16 = 5;

/// A message between ranks that make another communicator, see [`mail`](crate::group::control).
pub(crate) const MAIL: u16 = 16;

/// A message of the agreement on the next group, see [`membership`](crate::group::membership).
pub(crate) const MEMBERSHIP: u16 = 17;

/// Version of every payload of this module. Ranks compare it before they open links.
pub(crate) const VERSION: u16 = 4;

/// Bytes of a text in a frame.
pub(crate) const MAX_TEXT: usize = 4 << 10;

/// Payload of [`FAILURE`].
pub(crate) fn encode_failure(cause: &AbortCause) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(cause.kind as u32).u32(cause.rank.unwrap_or(u32::MAX)).str(clip(&cause.reason));
    w.finish()
}

/// The cause in a [`FAILURE`], as seen in a communicator of `size` ranks.
pub(crate) fn decode_failure(payload: &[u8], size: u32) -> WireResult<AbortCause> {
    let mut r = Reader::new(payload);
    let (code, rank) = (r.u32()?, r.u32()?);
    let reason = r.text(MAX_TEXT)?;
    r.finish()?;
    if rank >= size && rank != u32::MAX {
        return Err(WireError::Invalid { what: "rank" });
    }
    Ok(AbortCause { kind: kind_from_code(code), rank: (rank != u32::MAX).then_some(rank), reason })
}

/// The kinds that one rank may report to another; anything else is only "remote".
pub(crate) fn kind_from_code(code: u32) -> ErrorKind {
    const KNOWN: [ErrorKind; 11] = [
        ErrorKind::InvalidUsage,
        ErrorKind::Cuda,
        ErrorKind::Verbs,
        ErrorKind::System,
        ErrorKind::PeerLost,
        ErrorKind::Timeout,
        ErrorKind::Aborted,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
        ErrorKind::Stopped,
        ErrorKind::Exhausted,
    ];
    KNOWN.into_iter().find(|kind| *kind as u32 == code).unwrap_or(ErrorKind::Remote)
}

/// As much of `text` as the receiver takes, cut at a character.
pub(crate) fn clip(text: &str) -> &str {
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
    fn failures_round_trip_and_ranks_are_checked() {
        let cause = AbortCause::peer_lost(3, "killed");
        assert_eq!(decode_failure(&encode_failure(&cause), 4).unwrap(), cause);
        assert!(decode_failure(&encode_failure(&cause), 3).is_err());
        let anonymous = AbortCause { kind: ErrorKind::Internal, rank: None, reason: String::new() };
        assert_eq!(decode_failure(&encode_failure(&anonymous), 1).unwrap(), anonymous);
    }

    #[test]
    fn a_peers_reason_commands_no_terminal() {
        let cause =
            AbortCause { kind: ErrorKind::PeerLost, rank: Some(0), reason: "\u{1b}[31m\u{9b}é\n".into() };
        let heard = decode_failure(&encode_failure(&cause), 1).unwrap().reason;
        assert_eq!(heard, r"\u{1b}[31m\u{9b}é\n");
        // Whoever passes it on says the same.
        let again = AbortCause { reason: heard.clone(), ..cause };
        assert_eq!(decode_failure(&encode_failure(&again), 1).unwrap().reason, heard);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            let _ = decode_failure(&bytes, 4);
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = format!("a{}", "\u{e9}".repeat(MAX_TEXT));
        assert_eq!(clip(&long), &long[..MAX_TEXT - 1]);
        let cause = AbortCause { kind: ErrorKind::Internal, rank: None, reason: long };
        assert_eq!(decode_failure(&encode_failure(&cause), 1).unwrap().reason.len(), MAX_TEXT - 1);
    }
}
