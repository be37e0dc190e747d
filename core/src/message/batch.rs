//! Messages of one peer that the thread that pulls them is going to dispatch itself, past the inbox.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::config::Limits;
use super::inbox::{Bytes, LongOffer, Room};
use super::member::Member;

/// Messages of one peer, whose inbox was empty and is claimed as long as they are here. So their order is kept: what arrives
/// later goes to the inbox, and is dispatched after them. It is one peer only, so that no other one waits for its callbacks.
#[derive(Default)]
pub(super) struct Batch {
    member: Option<Arc<Member>>,
    /// Places for messages, which are used again: the first `messages` of them have one, of which `taken` were dispatched. A message that is
    /// written to its place, and moved once, is there sooner than one that is moved from hand to hand: a processor that is to load what it
    /// has just stored in smaller parts waits until all of them have reached its cache.
    slots: Vec<Slot>,
    taken: usize,
    /// No message is added any more.
    closed: bool,
    room: Room,
    /// Messages here, and their bytes.
    messages: usize,
    bytes: usize,
    /// The part of them that the inbox has counted.
    counted: (usize, usize),
}

/// A message.
pub(super) struct Slot {
    pub(super) kind: u16,
    pub(super) bytes: Bytes,
    pub(super) offer: LongOffer,
}

impl Batch {
    /// Whether the next message, of `member` and of `bytes` bytes, belongs here: the caller [`add`](Self::add)s it then.
    /// Otherwise it goes through the inbox, and so do those that follow.
    #[inline]
    pub(super) fn takes(&mut self, member: &Arc<Member>, bytes: usize, limits: &Limits) -> bool {
        if self.closed {
            return false;
        }
        if self.member.is_none() {
            if member.hub.departures.precede(member.rank, member) {
                self.closed = true;
                return false;
            }
            let Some(room) = member.inbox.claim(bytes, limits) else {
                self.closed = true;
                return false;
            };
            self.room = room;
            self.member = Some(member.clone());
            self.counted = (1, bytes);
        } else if self.messages >= self.room.messages || self.bytes + bytes > self.room.bytes {
            self.close();
            return false;
        }
        self.messages += 1;
        self.bytes += bytes;
        true
    }

    /// Adds the message that it [`takes`](Self::takes); `copy` copies long ones.
    #[inline]
    pub(super) fn add(&mut self, kind: u16, body: &[u8], offer: LongOffer, copy: impl FnOnce() -> Vec<u8>) {
        let index = self.messages - 1;
        if index == self.slots.len() {
            self.slots.push(Slot { kind, bytes: Bytes::EMPTY, offer: None });
        }
        let slot = &mut self.slots[index];
        (slot.kind, slot.offer) = (kind, offer);
        if !slot.bytes.fill(body) {
            slot.bytes = Bytes::Buffer(copy());
        }
    }

    /// Begins to read a link. Messages are added if there are none yet.
    pub(super) fn open(&mut self) {
        self.closed = self.member.is_some();
    }

    /// Adds nothing more: what the link brings now goes to the inbox. Has the inbox count what is here.
    pub(super) fn close(&mut self) {
        self.closed = true;
        let all = (self.messages, self.bytes);
        if let Some(member) = &self.member
            && self.counted != all
        {
            member.inbox.count(all.0 - self.counted.0, all.1 - self.counted.1);
            self.counted = all;
        }
    }

    /// The next message to dispatch.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(u16, Bytes, LongOffer)> {
        let slot = self.slots[..self.messages].get_mut(self.taken)?;
        self.taken += 1;
        Some((slot.kind, slot.bytes.take(), slot.offer.take()))
    }

    /// The peer, if there are messages. The caller dispatches all, and then ends the claim with [`Member::dispatched`] of what
    /// [`finish`](Self::finish) returns.
    #[inline]
    pub(super) fn take_member(&mut self) -> Option<Arc<Member>> {
        self.member.take()
    }

    /// Number and bytes of the messages that were here.
    #[inline]
    pub(super) fn finish(&mut self) -> (usize, usize) {
        self.taken = 0;
        (std::mem::take(&mut self.messages), std::mem::take(&mut self.bytes))
    }
}
