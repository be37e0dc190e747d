//! Messages between ranks of a communicator that are about to make another one among themselves. They pass on the same
//! links, also after an abort.
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use std::collections::{HashMap, VecDeque};

use super::Control;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::group::frames;
use crate::group::peer_state::PeerState;
use crate::sync::lock;
use crate::wire::{Reader, WireResult, Writer};

/// Bytes of one frame; longer messages are sent in parts.
const PART: usize = 64 << 10;
/// Bytes that may lie here unread. Beyond it the peer is broken, and lost.
const MAX_UNREAD: usize = 64 << 20;
/// What a message takes besides its bytes, about: empty ones are not free.
const ENVELOPE: usize = 256;

/// Which messages belong together, at their receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) peer: u32,
    /// Which group is being made.
    pub(crate) group: u64,
    pub(crate) tag: u64,
}

/// What it takes to make a group.
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
    unread: usize,
    /// How many meetings of all ranks were begun here.
    meetings: u64,
}

impl Mail {
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
        if last && let Some(message) = self.parts.remove(&address) {
            self.whole.entry(address).or_default().push_back(message);
        }
        Ok(())
    }

    fn take(&mut self, address: Address) -> Option<Vec<u8>> {
        let queue = self.whole.get_mut(&address)?;
        let message = queue.pop_front()?;
        if queue.is_empty() {
            self.whole.remove(&address);
        }
        self.unread -= message.len() + ENVELOPE;
        Some(message)
    }

    /// Forgets what belongs to a group that was made, or was not.
    fn forget(&mut self, group: u64) {
        self.whole.retain(|address, _| address.group != group);
        self.parts.retain(|address, _| address.group != group);
        self.unread = self.count();
    }

    /// What lies here.
    fn count(&self) -> usize {
        self.whole.values().flatten().chain(self.parts.values()).map(|message| message.len() + ENVELOPE).sum()
    }
}

impl Control {
    /// A number for the next meeting of all ranks, the same at each as long as all make the same calls.
    pub(crate) fn next_meeting(&self) -> u64 {
        let mut state = lock(&self.state);
        state.mail.meetings += 1;
        state.mail.meetings
    }

    /// Drops what has come for `group`, which was made, or was not.
    pub(crate) fn end_group(&self, group: u64) {
        lock(&self.state).mail.forget(group);
    }

    /// Sends a message to `to.peer`, to which there is a link.
    pub(crate) fn send_mail(&self, to: Address, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        loop {
            let (bytes, after) = rest.split_at(rest.len().min(PART));
            let part = Part { group: to.group, tag: to.tag, last: after.is_empty(), bytes };
            self.post(to.peer, frames::MAIL, &part.encode(), Vec::new())?;
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next message from `from.peer`. An error once the group cannot be made any more.
    pub(crate) fn recv_mail(&self, from: Address, needs: &Needs, deadline: Deadline) -> Result<Vec<u8>> {
        let mut outcome = None;
        let in_time = self.wait_until(deadline, |state| {
            let broken = |state: &super::State| self.check_needs_in(state, needs).err().map(Err);
            outcome = state.mail.take(from).map(Ok).or_else(|| broken(state));
            outcome.is_some()
        });
        match outcome {
            Some(outcome) if in_time => outcome,
            _ => {
                let message = format!(
                    "nothing came from rank {} before the deadline: it did not call {}(), or waits for a rank that did not",
                    from.peer, needs.op
                );
                Err(Error::timeout(needs.op, message).with_peer(from.peer))
            }
        }
    }

    /// `Ok` while a group can be made.
    pub(crate) fn check_needs(&self, needs: &Needs) -> Result<()> {
        self.check_needs_in(&lock(&self.state), needs)
    }

    fn check_needs_in(&self, state: &super::State, needs: &Needs) -> Result<()> {
        // The members of an agreed generation go on for all that has failed.
        if needs.generation.is_none() {
            self.abort.check(needs.op)?;
        }
        state.check_needs(needs)
    }

    /// A message has come.
    pub(super) fn hear_mail(&self, peer: u32, payload: &[u8]) -> Result<()> {
        let mut state = lock(&self.state);
        state.mail.deliver(peer, payload)?;
        self.wake(&mut state);
        Ok(())
    }
}

impl super::State {
    fn check_needs(&self, needs: &Needs) -> Result<()> {
        let gone = |rank: &&u32| self.peer_states[**rank as usize].is_gone();
        if let Some(rank) = needs.ranks.iter().find(gone) {
            return self.check(needs.op, *rank);
        }
        match needs.generation {
            Some(generation) if self.membership.is_superseded(generation) => Err(Error::new(
                ErrorKind::PeerLost,
                needs.op,
                "another rank has lost a member and begins anew",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn lost(&self) -> impl Iterator<Item = u32> {
        let ranks = (0..).zip(&self.peer_states);
        let lost =
            |peer_state: &PeerState| matches!(peer_state, PeerState::Lost(_) | PeerState::Suspected(_));
        ranks.filter(move |(_, peer_state)| lost(peer_state)).map(|(rank, _)| rank)
    }
}

/// Payload of [`frames::MAIL`].
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
        assert_eq!(mail.unread, 4 + ENVELOPE);
        assert_eq!(mail.take(address).unwrap(), b"more");
        assert_eq!((mail.take(address), mail.unread), (None, 0));
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
        mail.forget(7);
        assert_eq!(mail.unread, 0);
    }
}
