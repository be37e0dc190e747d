//! Messages and events of one peer that callbacks have not seen yet, in order and bounded.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::config::Limits;
use super::credit::{Amount, Debt};
use super::line::Line;
use super::offers::Ended;
use super::reading::Finished;
use super::tokens::Token;
use crate::error::Error;
use crate::sync::{Mutex, lock};

/// The longest message that is kept without a buffer of its own.
const INLINE: usize = 55;

/// The bytes of a message.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    Inline(Short),
    Buffer(Vec<u8>),
}

/// A short message. Aligned, because a message is moved several times on its way to the callback: an array at an odd address is moved
/// in pieces that overlap earlier ones, and the processor waits for each.
#[derive(Clone, Debug)]
#[repr(align(8))]
pub(super) struct Short {
    bytes: [u8; INLINE],
    length: u8,
}

impl Bytes {
    /// None.
    pub(super) const EMPTY: Self = Self::Inline(Short { bytes: [0; INLINE], length: 0 });

    /// A short message in place; `None` if it needs a buffer.
    #[inline]
    pub(super) fn inline(bytes: &[u8]) -> Option<Self> {
        let mut inline = [0; INLINE];
        inline.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::Inline(Short { bytes: inline, length: bytes.len() as u8 }))
    }

    /// Becomes `body` in place, if that needs no buffer and this has none.
    #[inline]
    pub(super) fn fill(&mut self, body: &[u8]) -> bool {
        let Self::Inline(Short { bytes, length }) = self else { return false };
        let Some(place) = bytes.get_mut(..body.len()) else { return false };
        place.copy_from_slice(body);
        *length = body.len() as u8;
        true
    }

    /// Takes the bytes; what stays needs no buffer.
    #[inline]
    pub(super) fn take(&mut self) -> Self {
        match self {
            Self::Inline(short) => Self::Inline(short.clone()),
            Self::Buffer(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::EMPTY;
                Self::Buffer(bytes)
            }
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Inline(Short { bytes, length }) => &bytes[..usize::from(*length)],
            Self::Buffer(bytes) => bytes,
        }
    }
}

/// Long data that a sender offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) id: u32,
    pub(super) token: Token,
}

/// Long data that came with a message, if there was any.
pub(super) type LongOffer = Option<Box<(Arc<Line>, Offer)>>;

/// Something to dispatch.
pub(super) enum Item {
    /// The peer has connected to this messenger.
    Arrived,
    Message(u16, Bytes, LongOffer),
    /// The end of a read.
    Read(Finished),
    /// The end of a long message.
    Long(Ended),
    /// The peer is gone. The last item.
    Gone(Error),
}

/// The items of one peer. Only messages are bounded: the others end what this process has begun.
#[derive(Default)]
pub(super) struct Inbox(Mutex<State>);

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    messages: usize,
    bytes: usize,
    /// Messages that were dispatched, and of which the peer was not told.
    debt: Debt,
    /// A thread is dispatching, or the peer is in the list of those to dispatch.
    claimed: bool,
    /// The last item is there.
    over: bool,
}

impl State {
    fn has_room(&self, bytes: usize, limits: &Limits) -> bool {
        self.messages < limits.inbox_messages && self.bytes + bytes <= limits.inbox_bytes
    }

    fn release(&mut self, messages: usize, bytes: usize, limits: &Limits) -> Option<Amount> {
        self.messages -= messages;
        self.bytes -= bytes;
        self.debt.add(messages, bytes, limits)
    }

    /// True if the caller has to see that it is dispatched.
    fn add(&mut self, item: Item) -> bool {
        self.over |= matches!(item, Item::Gone(_));
        self.items.push_back(item);
        !std::mem::replace(&mut self.claimed, true)
    }
}

/// How many messages, and bytes of them, fit until the inbox is full.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// The outcome of [`Inbox::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is there, and somebody is going to dispatch it.
    Taken,
    /// It is there, and the caller has to see that it is dispatched.
    Wake,
    /// There is no room: the peer has sent more than it has credit for.
    Full,
    /// The peer has ended, and the message is lost with it.
    Over,
    /// The program has dropped the queue.
    Closed,
}

impl Inbox {
    /// Adds a message made by `make`, of `bytes` bytes, if there is room.
    pub(super) fn put(&self, bytes: usize, limits: &Limits, make: impl FnOnce() -> Item) -> Put {
        let mut state = lock(&self.0);
        if state.over {
            return Put::Over;
        }
        if !state.has_room(bytes, limits) {
            return Put::Full;
        }
        state.messages += 1;
        state.bytes += bytes;
        if state.add(make()) { Put::Wake } else { Put::Taken }
    }

    /// Claims an empty inbox for a thread that dispatches what it has read itself, and counts the first message, of `bytes`
    /// bytes. Returns the room for it and those that follow. There is at least as much as long as the thread reads the peer's
    /// links: nothing else uses it up.
    pub(super) fn claim(&self, bytes: usize, limits: &Limits) -> Option<Room> {
        let mut state = lock(&self.0);
        if state.over || state.claimed || !state.items.is_empty() || !state.has_room(bytes, limits) {
            return None;
        }
        let messages = limits.inbox_messages.saturating_sub(state.messages);
        let room = Room { messages, bytes: limits.inbox_bytes.saturating_sub(state.bytes) };
        state.claimed = true;
        state.messages += 1;
        state.bytes += bytes;
        Some(room)
    }

    /// Counts `messages` of `bytes` in all that wait elsewhere, for which [`claim`](Self::claim) has found room.
    pub(super) fn count(&self, messages: usize, bytes: usize) {
        let mut state = lock(&self.0);
        state.messages += messages;
        state.bytes += bytes;
    }

    /// Accounts for a message that `add` puts elsewhere; [`Put::Closed`] if that returns false. Under the lock, so that none is
    /// added after the news that the peer is gone.
    pub(super) fn charge(&self, bytes: usize, limits: &Limits, add: impl FnOnce() -> bool) -> Put {
        let mut state = lock(&self.0);
        if state.over {
            return Put::Over;
        }
        if !state.has_room(bytes, limits) {
            return Put::Full;
        }
        if !add() {
            return Put::Closed;
        }
        state.messages += 1;
        state.bytes += bytes;
        Put::Taken
    }

    /// Adds what needs no room. True if the caller has to see that it is dispatched.
    pub(super) fn push(&self, item: Item) -> bool {
        lock(&self.0).add(item)
    }

    /// Moves up to `max` items to `into`. The caller has claimed the inbox.
    pub(super) fn take(&self, max: usize, into: &mut VecDeque<Item>) {
        let mut state = lock(&self.0);
        let count = state.items.len().min(max);
        into.extend(state.items.drain(..count));
    }

    /// Ends a claim under which `messages` of `bytes` in all were dispatched. Returns the credit of which the peer is to be told,
    /// and whether there is more to dispatch: then the claim goes on.
    pub(super) fn unclaim(&self, messages: usize, bytes: usize, limits: &Limits) -> (Option<Amount>, bool) {
        let mut state = lock(&self.0);
        let due = state.release(messages, bytes, limits);
        if state.items.is_empty() {
            // An idle peer keeps little.
            if state.items.capacity() > 64 {
                state.items = VecDeque::new();
            }
            state.claimed = false;
        }
        (due, state.claimed)
    }

    /// `messages` of `bytes` in all have been dispatched. Returns the credit of which the peer is to be told.
    pub(super) fn release(&self, messages: usize, bytes: usize, limits: &Limits) -> Option<Amount> {
        lock(&self.0).release(messages, bytes, limits)
    }

    /// `messages` of `bytes` in all have come and were never here. Returns the credit of which the peer is to be told.
    pub(super) fn owe(&self, messages: usize, bytes: usize, limits: &Limits) -> Option<Amount> {
        lock(&self.0).debt.add(messages, bytes, limits)
    }

    /// Takes all items of a peer that nobody dispatches any more.
    pub(super) fn drain(&self) -> VecDeque<Item> {
        std::mem::take(&mut lock(&self.0).items)
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        eager: 100,
        inbox_messages: 4,
        inbox_bytes: 100,
        send_buffer: 100,
        reads: 1,
        read_depth: 1,
        longs: 1,
    };

    fn gone() -> Item {
        Item::Gone(Error::peer_lost("test", 1, "on purpose"))
    }

    /// A message goes to a queue under the lock: the news that the peer is gone stands before it or behind it, never in between.
    #[test]
    fn nothing_comes_to_a_queue_after_the_end() {
        let inbox = Inbox::default();
        let added = inbox.charge(10, &LIMITS, || {
            assert!(inbox.0.try_lock().is_err(), "another thread could end the peer here");
            true
        });
        assert_eq!(added, Put::Taken);
        inbox.push(gone());
        assert_eq!(inbox.charge(10, &LIMITS, || panic!("the peer is gone")), Put::Over);
        assert_eq!(inbox.put(10, &LIMITS, || panic!("the peer is gone")), Put::Over);
        // Once it was told, the inbox is empty, and nobody has it.
        inbox.take(1, &mut VecDeque::new());
        assert_eq!(inbox.unclaim(0, 0, &LIMITS), (None, false));
        assert!(inbox.claim(10, &LIMITS).is_none());
    }

    #[test]
    fn a_queue_that_takes_nothing_is_charged_nothing() {
        let inbox = Inbox::default();
        for _ in 0..10 {
            assert_eq!(inbox.charge(60, &LIMITS, || false), Put::Closed);
        }
        assert_eq!(inbox.charge(60, &LIMITS, || true), Put::Taken);
    }
}
