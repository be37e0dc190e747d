//! Messages between two ranks about a setup item.
//!
//! ```text
//! follower                         leader
//!     ASK  ───────────────────────▶      has begun the attempt and can build
//!          ◀───────────────────────  ASK      the same, unless the other's was there first
//!          ◀───────────────────────  OFFER    what the follower needs; only after its ASK
//!     ACCEPT ─────────────────────▶      the follower has built its end; what the leader needs
//!          ◀───────────────────────  COMMIT   the leader has built its end: both have succeeded
//! END ◀───────────────────────────▶  END      the sender's end failed, and why
//! ```
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::key::{Key, Kind, Namespace};
use crate::error::Error;
use crate::group::frames::{MAX_TEXT, clip, kind_from_code};
use crate::ledger::holds::HoldId;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Bytes of an offer: several times what the largest description of a memory or an endpoint takes.
const MAX_BODY: usize = 8 << 10;
/// The most holds of one offer; it needs at most a mapping, a region and a semaphore's words.
const MAX_HOLDS: usize = 8;

/// The data that the peer needs to build its end. `H` stands for an object that the sender keeps for the peer until
/// the peer gives it back: the sender's [`Hold`](crate::ledger::receipt::Hold), its [`HoldId`] on the wire, or the
/// receiver's [`Receipt`](crate::ledger::receipt::Receipt).
#[derive(Debug)]
pub(crate) struct Offer<H> {
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) holds: Vec<H>,
}

impl<H> Default for Offer<H> {
    fn default() -> Self {
        Self { body: Vec::new(), fds: Vec::new(), holds: Vec::new() }
    }
}

impl<H> Offer<H> {
    /// The same with other stand-ins for what is held.
    pub(crate) fn map<G>(self, f: impl FnMut(H) -> G) -> Offer<G> {
        Offer { body: self.body, fds: self.fds, holds: self.holds.into_iter().map(f).collect() }
    }
}

/// One message about one attempt.
#[derive(Debug)]
pub(crate) enum Message {
    /// The sender has begun the attempt and can build its end.
    Ask,
    /// The data that the follower needs to build its end.
    Offer(Offer<HoldId>),
    /// The follower has built its end; carries the data that the leader needs.
    Accept(Offer<HoldId>),
    /// Both ends are built.
    Commit,
    /// The sender's end failed.
    End(Error),
}

/// Payload of [`SETUP`](crate::group::frames::SETUP): `kind` is the sender's.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) space: Namespace,
    pub(crate) tag: u64,
    pub(crate) attempt: u64,
    pub(crate) message: Message,
}

impl Setup {
    /// A message about the attempt `attempt` of the sender's `key`.
    pub(crate) fn new(key: Key, attempt: u64, message: Message) -> Self {
        Self { kind: key.kind, space: key.space, tag: key.tag, attempt, message }
    }

    /// The receiver's key for the item that rank `sender` means.
    pub(crate) fn key(&self, sender: u32) -> Key {
        Key { kind: self.kind.counterpart(), peer: sender, space: self.space, tag: self.tag }
    }

    /// Payload and file descriptors.
    pub(crate) fn encode(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut w = Writer::new();
        w.u8(self.kind.to_wire());
        self.space.encode(&mut w);
        w.u64(self.tag).u64(self.attempt);
        let mut fds = Vec::new();
        match self.message {
            Message::Ask => {
                w.u8(0);
            }
            Message::Offer(offer) => fds = encode_offer(w.u8(1), offer),
            Message::Accept(offer) => fds = encode_offer(w.u8(2), offer),
            Message::Commit => {
                w.u8(3);
            }
            Message::End(error) => {
                w.u8(4).u32(error.kind() as u32).str(clip(&error.to_string()));
            }
        }
        (w.finish(), fds)
    }

    /// Decodes what rank `peer` sent.
    pub(crate) fn decode(peer: u32, payload: &[u8], fds: Vec<OwnedFd>) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let (kind, space) = (Kind::from_wire(r.u8()?)?, Namespace::decode(&mut r)?);
        let (tag, attempt) = (r.u64()?, r.u64()?);
        let step = r.u8()?;
        if !fds.is_empty() && !matches!(step, 1 | 2) {
            return Err(WireError::Invalid { what: "descriptors of a setup item" });
        }
        let message = match step {
            0 => Message::Ask,
            1 => Message::Offer(decode_offer(&mut r, fds)?),
            2 => Message::Accept(decode_offer(&mut r, fds)?),
            3 => Message::Commit,
            4 => {
                let (code, text) = (r.u32()?, r.text(MAX_TEXT)?);
                let failed = Error::new(
                    kind_from_code(code),
                    kind.counterpart().op(),
                    format!("rank {peer} failed: {text}"),
                );
                Message::End(failed.with_origin(peer))
            }
            _ => return Err(WireError::Invalid { what: "step of setup item" }),
        };
        r.finish()?;
        Ok(Self { kind, space, tag, attempt, message })
    }
}

fn encode_offer(w: &mut Writer, offer: Offer<HoldId>) -> Vec<OwnedFd> {
    w.bytes(&offer.body).count(offer.holds.len());
    offer.holds.iter().for_each(|id| id.encode(w));
    offer.fds
}

fn decode_offer(r: &mut Reader<'_>, fds: Vec<OwnedFd>) -> WireResult<Offer<HoldId>> {
    let body = r.bytes(MAX_BODY)?.to_vec();
    let count = r.count(MAX_HOLDS, HoldId::BYTES)?;
    let holds = (0..count).map(|_| HoldId::decode(r)).collect::<WireResult<_>>()?;
    Ok(Offer { body, fds, holds })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_error_keeps_its_kind_and_gains_the_rank() {
        let failed = Message::End(Error::timeout("recv_memory", "é".repeat(MAX_TEXT)));
        let (payload, fds) = Setup::new(Key::user(Kind::MemoryRecv, 0, 5), 2, failed).encode();
        assert!(fds.is_empty());
        let setup = Setup::decode(4, &payload, fds).unwrap();
        assert_eq!(setup.key(4), Key::user(Kind::MemorySend, 4, 5));
        let Message::End(error) = setup.message else { panic!("{setup:?}") };
        assert_eq!((error.kind(), error.peer(), error.op()), (ErrorKind::Timeout, Some(4), "send_memory"));
        assert_eq!(error.origin(), Some(4));
    }

    #[test]
    fn offers_round_trip_and_only_they_carry_descriptors() {
        let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let key = Key::library(Kind::Semaphore, 0, 5);
        let holds = vec![HoldId::Memory(1), HoldId::Token(u64::MAX)];
        let offer = Offer { body: vec![7; 9], fds: vec![fd()], holds: holds.clone() };
        let (payload, fds) = Setup::new(key, 2, Message::Accept(offer)).encode();
        let Message::Accept(offer) = Setup::decode(4, &payload, fds).unwrap().message else {
            panic!("a step lost")
        };
        assert_eq!((offer.body, offer.fds.len(), offer.holds), (vec![7; 9], 1, holds));
        let (payload, _) = Setup::new(key, 2, Message::Ask).encode();
        assert!(Setup::decode(4, &payload, vec![fd()]).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            let _ = Setup::decode(0, &bytes, Vec::new());
        }
    }
}
