//! What two ranks tell each other about a setup item.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::key::Kind;
use super::mailbox::{Message, Offer};
use crate::error::Error;
use crate::group::frames::{MAX_TEXT, clip, kind_from_code};
use crate::wire::{Reader, WireError, WireResult, Writer};

const MAX_BODY: usize = 64 << 10;

/// Payload of [`SETUP`](crate::group::frames::SETUP): `kind` is the sender's.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) tag: u64,
    pub(crate) attempt: u64,
    pub(crate) message: Message,
}

impl Setup {
    /// Payload and file descriptors.
    pub(crate) fn encode(self) -> (Vec<u8>, Vec<OwnedFd>) {
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
                w.u8(2).u32(error.kind() as u32).str(clip(&error.clone().to_string()));
                (w.finish(), Vec::new())
            }
        }
    }

    /// Decodes what rank `peer` sent.
    pub(crate) fn decode(peer: u32, payload: &[u8], fds: Vec<OwnedFd>) -> WireResult<Self> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_error_keeps_its_kind_and_gains_the_rank() {
        let failed = Message::Done(Err(Error::timeout("recv_memory", "é".repeat(MAX_TEXT))));
        let (payload, fds) = Setup { kind: Kind::MemoryRecv, tag: 5, attempt: 2, message: failed }.encode();
        assert!(fds.is_empty());
        let setup = Setup::decode(4, &payload, fds).unwrap();
        let Message::Done(Err(error)) = setup.message else { panic!("{setup:?}") };
        assert_eq!((error.kind(), error.peer(), error.op()), (ErrorKind::Timeout, Some(4), "send_memory"));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            let _ = Setup::decode(0, &bytes, Vec::new());
        }
    }
}
