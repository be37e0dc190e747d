//! Messages between ranks of a communicator that are about to make another one among themselves. They pass on the same
//! links, also after an abort.
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireResult, Writer};

/// Bytes of one frame; longer messages are sent in parts.
pub(super) const PART: usize = 64 << 10;
/// Bytes of one peer that may wait unread. A peer that sends more is broken, and lost.
const MAX_UNREAD: usize = 64 << 20;
/// Bytes that each message counts for besides its own, so that empty ones are not free.
const ENVELOPE: usize = 256;

/// Which messages belong together, at their receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) peer: u32,
    /// Which group is being made.
    pub(crate) group: u64,
    pub(crate) tag: u64,
}

/// The ranks and the generation that a group is to be made of.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    /// Which call makes it, for messages.
    pub(crate) op: &'static str,
    /// Its members, as ranks of this communicator.
    pub(crate) ranks: Vec<u32>,
    /// The agreed generation that it is, if one was agreed.
    pub(crate) generation: Option<u64>,
}

/// Messages that have arrived.
#[derive(Debug, Default)]
pub(super) struct Mail {
    whole: HashMap<Address, VecDeque<Vec<u8>>>,
    parts: HashMap<Address, Vec<u8>>,
    /// The bytes of each peer that wait here, envelopes included.
    unread: HashMap<u32, usize>,
    /// How many meetings of all ranks were begun here.
    pub(super) meetings: u64,
}

impl Mail {
    pub(super) fn deliver(&mut self, peer: u32, payload: &[u8]) -> Result<()> {
        let Part { group, tag, last, bytes } = Part::decode(payload)?;
        let address = Address { peer, group, tag };
        let envelope = if self.parts.contains_key(&address) { 0 } else { ENVELOPE };
        let unread = self.unread.entry(peer).or_default();
        if *unread + bytes.len() + envelope > MAX_UNREAD {
            let message = format!(
                "more than {MAX_UNREAD} bytes of rank {peer} lie unread; it sends what nobody expects"
            );
            return Err(Error::new(ErrorKind::Remote, "shrink", message).with_peer(peer));
        }
        *unread += bytes.len() + envelope;
        let so_far = self.parts.entry(address).or_default();
        so_far.extend_from_slice(bytes);
        if last && let Some(message) = self.parts.remove(&address) {
            self.whole.entry(address).or_default().push_back(message);
        }
        Ok(())
    }

    pub(super) fn take(&mut self, address: Address) -> Option<Vec<u8>> {
        let queue = self.whole.get_mut(&address)?;
        let message = queue.pop_front()?;
        if queue.is_empty() {
            self.whole.remove(&address);
        }
        if let Some(unread) = self.unread.get_mut(&address.peer) {
            *unread -= message.len() + ENVELOPE;
        }
        Some(message)
    }

    /// Drops the messages of `group`, which was made or has failed.
    pub(super) fn forget(&mut self, group: u64) {
        self.whole.retain(|address, _| address.group != group);
        self.parts.retain(|address, _| address.group != group);
        self.unread = self.count();
    }

    /// The bytes of each peer that wait here, envelopes included.
    fn count(&self) -> HashMap<u32, usize> {
        let mut unread = HashMap::new();
        let whole =
            self.whole.iter().flat_map(|(address, queue)| queue.iter().map(|message| (*address, message)));
        let parts = self.parts.iter().map(|(address, bytes)| (*address, bytes));
        for (address, bytes) in whole.chain(parts) {
            *unread.entry(address.peer).or_default() += bytes.len() + ENVELOPE;
        }
        unread
    }
}

/// Payload of [`frames::MAIL`](crate::group::frames::MAIL).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) group: u64,
    pub(super) tag: u64,
    pub(super) last: bool,
    pub(super) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u64(self.group).u64(self.tag).u8(u8::from(self.last)).bytes(self.bytes);
        w.finish()
    }

    fn decode(payload: &'a [u8]) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let part = Self { group: r.u64()?, tag: r.u64()?, last: r.bool()?, bytes: r.bytes(PART)? };
        r.finish()?;
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_come_whole_and_groups_do_not_mix() {
        let mut mail = Mail::default();
        let part = |group, last, bytes: &'static [u8]| Part { group, tag: 1, last, bytes }.encode();
        for (group, last, bytes) in
            [(7, false, b"one "), (8, true, b"else"), (7, true, b"two "), (7, true, b"more")]
        {
            mail.deliver(3, &part(group, last, bytes)).unwrap();
        }
        let address = Address { peer: 3, group: 7, tag: 1 };
        assert_eq!(mail.take(address).unwrap(), b"one two ");
        assert_eq!(mail.take(Address { tag: 2, ..address }), None);
        mail.forget(8);
        assert_eq!(mail.unread[&3], 4 + ENVELOPE);
        assert_eq!(mail.take(address).unwrap(), b"more");
        assert_eq!((mail.take(address), mail.unread[&3]), (None, 0));
        assert!(mail.deliver(3, &part(7, true, b"x")[1..]).is_err());
    }

    #[test]
    fn empty_messages_are_not_free() {
        let mut mail = Mail::default();
        let part = |tag| Part { group: 7, tag, last: tag % 2 == 0, bytes: b"" }.encode();
        let most = (MAX_UNREAD / ENVELOPE) as u64;
        (0..most).for_each(|tag| mail.deliver(3, &part(tag)).unwrap());
        let error = mail.deliver(3, &part(most)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(3)));
        mail.deliver(3, &Part { group: 7, tag: 1, last: true, bytes: b"" }.encode()).unwrap();
        mail.deliver(4, &part(most)).expect("another peer has room of its own");
        mail.forget(7);
        assert!(mail.unread.is_empty());
    }
}
