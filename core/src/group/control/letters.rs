//! Letters: messages between ranks of a communicator that are about to make another one among themselves, see
//! [`shrink`](crate::comm::shrink). They pass on the same links, also after an abort.
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use std::collections::{HashMap, VecDeque};

use super::Control;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::frames;
use crate::group::standing::Standing;
use crate::sync::lock;
use crate::wire::{Reader, WireResult, Writer};

/// Bytes of one frame; longer letters are sent in parts.
const PART: usize = 64 << 10;
/// Bytes that may lie here unread. Beyond it the peer is broken, and lost.
const MAX_UNREAD: usize = 64 << 20;
/// What a letter takes besides its bytes, about: empty ones are not free.
const ENVELOPE: usize = 256;

/// Which letters belong together, at their receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) peer: u32,
    /// Which group is being made.
    pub(crate) group: u64,
    pub(crate) tag: u64,
}

/// Letters that have arrived.
#[derive(Debug, Default)]
pub(super) struct Letters {
    whole: HashMap<Address, VecDeque<Vec<u8>>>,
    parts: HashMap<Address, Vec<u8>>,
    unread: usize,
    /// How often each group was begun here.
    begun: HashMap<Vec<u32>, u64>,
}

impl Letters {
    fn deliver(&mut self, peer: u32, payload: &[u8]) -> Result<()> {
        let Part { group, tag, last, bytes } = Part::decode(payload)?;
        let address = Address { peer, group, tag };
        let envelope = if self.parts.contains_key(&address) { 0 } else { ENVELOPE };
        if self.unread + bytes.len() + envelope > MAX_UNREAD {
            let message =
                format!("more than {MAX_UNREAD} bytes lie unread; rank {peer} sends what nobody expects");
            return Err(Error::new(ErrorKind::Remote, "shrink", message).with_peer(peer));
        }
        self.unread += bytes.len() + envelope;
        let so_far = self.parts.entry(address).or_default();
        so_far.extend_from_slice(bytes);
        if last && let Some(letter) = self.parts.remove(&address) {
            self.whole.entry(address).or_default().push_back(letter);
        }
        Ok(())
    }

    fn take(&mut self, address: Address) -> Option<Vec<u8>> {
        let queue = self.whole.get_mut(&address)?;
        let letter = queue.pop_front()?;
        if queue.is_empty() {
            self.whole.remove(&address);
        }
        self.unread -= letter.len() + ENVELOPE;
        Some(letter)
    }

    /// Forgets what belongs to a group that was made, or was not.
    fn forget(&mut self, group: u64) {
        self.whole.retain(|address, _| address.group != group);
        self.parts.retain(|address, _| address.group != group);
        self.unread = self.count();
    }

    /// What lies here.
    fn count(&self) -> usize {
        self.whole.values().flatten().chain(self.parts.values()).map(|letter| letter.len() + ENVELOPE).sum()
    }
}

impl Control {
    /// How often this was called for the group without `gone`, this call included.
    pub(crate) fn begin_group(&self, gone: &[u32]) -> u64 {
        let mut state = lock(&self.state);
        let begun = state.letters.begun.entry(gone.to_vec()).or_default();
        *begun += 1;
        *begun
    }

    /// Ends what [`begin_group`](Self::begin_group) began.
    pub(crate) fn end_group(&self, group: u64) {
        lock(&self.state).letters.forget(group);
    }

    /// Sends a letter to `to.peer`, to which there is a link.
    pub(crate) fn send_letter(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        loop {
            let (bytes, after) = rest.split_at(rest.len().min(PART));
            let part = Part { group: to.group, tag: to.tag, last: after.is_empty(), bytes };
            self.post(to.peer, frames::LETTER, &part.encode(), Vec::new())?;
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next letter from `from.peer`. An error once a rank besides `gone` is gone: then the group cannot be made.
    pub(crate) fn recv_letter(&self, from: Address, gone: &[u32], deadline: Deadline) -> Result<Vec<u8>> {
        let mut outcome = None;
        let in_time = self.wait_until(deadline, |state| {
            outcome = state.letters.take(from).map(Ok).or_else(|| {
                let missing = state.gone().find(|rank| !gone.contains(rank))?;
                Some(state.check("shrink", missing).map(|()| Vec::new()))
            });
            outcome.is_some()
        });
        match outcome {
            Some(outcome) if in_time => outcome,
            _ => {
                let message = format!("rank {} did not shrink the communicator in time, too", from.peer);
                Err(Error::timeout("shrink", message).with_peer(from.peer))
            }
        }
    }

    /// The ranks that are not there any more: lost, or gone in good order.
    pub(crate) fn gone(&self) -> Vec<u32> {
        lock(&self.state).gone().collect()
    }

    /// A letter has come.
    pub(super) fn hear_letter(&self, peer: u32, payload: &[u8]) -> Result<()> {
        let mut state = lock(&self.state);
        state.letters.deliver(peer, payload)?;
        self.wake(&mut state);
        Ok(())
    }
}

impl super::State {
    fn gone(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.standing).filter(|(_, standing)| standing.is_gone()).map(|(rank, _)| rank)
    }

    pub(super) fn lost(&self) -> impl Iterator<Item = u32> {
        let ranks = (0..).zip(&self.standing);
        ranks.filter(|(_, standing)| matches!(standing, Standing::Lost(_))).map(|(rank, _)| rank)
    }
}

/// Payload of [`frames::LETTER`].
#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    group: u64,
    tag: u64,
    last: bool,
    bytes: &'a [u8],
}

impl<'a> Part<'a> {
    fn encode(&self) -> Vec<u8> {
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
    fn long_letters_come_whole_and_groups_do_not_mix() {
        let mut letters = Letters::default();
        let part = |group, last, bytes: &'static [u8]| Part { group, tag: 1, last, bytes }.encode();
        for (group, last, bytes) in
            [(7, false, b"one "), (8, true, b"else"), (7, true, b"two "), (7, true, b"more")]
        {
            letters.deliver(3, &part(group, last, bytes)).unwrap();
        }
        let address = Address { peer: 3, group: 7, tag: 1 };
        assert_eq!(letters.take(address).unwrap(), b"one two ");
        assert_eq!(letters.take(Address { tag: 2, ..address }), None);
        letters.forget(8);
        assert_eq!(letters.unread, 4 + ENVELOPE);
        assert_eq!(letters.take(address).unwrap(), b"more");
        assert_eq!((letters.take(address), letters.unread), (None, 0));
        assert!(letters.deliver(3, &part(7, true, b"x")[1..]).is_err());
    }

    #[test]
    fn empty_letters_are_not_free() {
        let mut letters = Letters::default();
        let part = |tag| Part { group: 7, tag, last: tag % 2 == 0, bytes: b"" }.encode();
        let most = (MAX_UNREAD / ENVELOPE) as u64;
        (0..most).for_each(|tag| letters.deliver(3, &part(tag)).unwrap());
        let error = letters.deliver(3, &part(most)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(3)));
        letters.deliver(3, &Part { group: 7, tag: 1, last: true, bytes: b"" }.encode()).unwrap();
        letters.forget(7);
        assert_eq!(letters.unread, 0);
    }
}
