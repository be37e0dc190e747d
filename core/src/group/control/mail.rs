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
/// Bytes of one peer that may wait unread, for meetings that this rank has not ended. A peer that sends more is broken, and lost.
const MAX_UNREAD: usize = 64 << 20;
/// Bytes that each message counts for besides its own, so that empty ones are not free.
const ENVELOPE: usize = 256;

/// Numbers of the meetings of one call; no call has so many.
const MEETINGS: u64 = 1 << 16;

/// Counters that number meetings. Each rank begins the meetings of one counter in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counter {
    /// Calls that all ranks make.
    Calls,
    /// Agreed generations.
    Generations,
}

/// One meeting of ranks. All of them give it the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Meeting {
    pub(crate) counter: Counter,
    pub(crate) number: u64,
}

/// Which messages belong together, at their receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) peer: u32,
    pub(crate) meeting: Meeting,
    /// Which group the meeting makes, of which ranks and by which call.
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
    /// The highest number of each counter that was begun here.
    begun: HashMap<Counter, u64>,
    /// The meetings that were begun here and go on.
    running: Vec<Meeting>,
}

impl Mail {
    /// Begins the next meeting of `counter`.
    pub(super) fn begin_next(&mut self, counter: Counter) -> Meeting {
        let number = self.begun.get(&counter).map_or(1, |begun| begun + 1);
        self.begin(Meeting { counter, number })
    }

    /// Begins a call that all ranks make together, behind `missed` that this rank made without coming so far: its meetings get numbers
    /// of their own, so that it does not matter how many of them the ranks came to in earlier calls.
    pub(super) fn begin_call(&mut self, missed: u64) {
        let begun = self.begun.entry(Counter::Calls).or_default();
        *begun = (*begun / MEETINGS + 1 + missed) * MEETINGS;
    }

    pub(super) fn begin(&mut self, meeting: Meeting) -> Meeting {
        let begun = self.begun.entry(meeting.counter).or_default();
        *begun = meeting.number.max(*begun);
        self.running.push(meeting);
        meeting
    }

    /// Ends `meeting`: drops its messages, and those of meetings before it that are not running.
    pub(super) fn end(&mut self, meeting: Meeting) {
        self.running.retain(|running| *running != meeting);
        let (begun, running) = (&self.begun, &self.running);
        self.whole.retain(|address, _| !is_over(begun, running, address.meeting));
        self.parts.retain(|address, _| !is_over(begun, running, address.meeting));
        self.unread = self.count();
    }

    /// Keeps a part of a message, unless its meeting is over here: a peer that meets for longer than this rank does sends
    /// nothing wrong.
    pub(super) fn deliver(&mut self, peer: u32, payload: &[u8]) -> Result<()> {
        let Part { meeting, group, tag, last, bytes } = Part::decode(payload)?;
        if is_over(&self.begun, &self.running, meeting) {
            return Ok(());
        }
        let address = Address { peer, meeting, group, tag };
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

    /// Whether `from.peer` has written in a later call, so that nothing of it comes any more in this one.
    pub(super) fn is_ahead(&self, from: Address) -> bool {
        let call = |meeting: Meeting| meeting.number / MEETINGS;
        let is_later = |other: &Address| {
            other.peer == from.peer
                && other.meeting.counter == Counter::Calls
                && call(other.meeting) > call(from.meeting)
        };
        from.meeting.counter == Counter::Calls && self.whole.keys().chain(self.parts.keys()).any(is_later)
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

/// Whether this rank will read no more messages of `meeting`.
fn is_over(begun: &HashMap<Counter, u64>, running: &[Meeting], meeting: Meeting) -> bool {
    begun.get(&meeting.counter).is_some_and(|begun| meeting.number <= *begun) && !running.contains(&meeting)
}

/// Payload of [`frames::MAIL`](crate::group::frames::MAIL).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) meeting: Meeting,
    pub(super) group: u64,
    pub(super) tag: u64,
    pub(super) last: bool,
    pub(super) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(u8::from(self.meeting.counter == Counter::Generations)).u64(self.meeting.number);
        w.u64(self.group).u64(self.tag).u8(u8::from(self.last)).bytes(self.bytes);
        w.finish()
    }

    fn decode(payload: &'a [u8]) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let counter = if r.bool()? { Counter::Generations } else { Counter::Calls };
        let meeting = Meeting { counter, number: r.u64()? };
        let part = Self { meeting, group: r.u64()?, tag: r.u64()?, last: r.bool()?, bytes: r.bytes(PART)? };
        r.finish()?;
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Meeting = Meeting { counter: Counter::Calls, number: 1 };
    const SECOND: Meeting = Meeting { number: 2, ..FIRST };

    /// Meetings of one call come in any order, and generations are numbered apart.
    #[test]
    fn a_peer_that_writes_in_a_later_call_is_ahead() {
        let mut mail = Mail::default();
        mail.begin_call(0);
        let here = mail.begin_next(Counter::Calls);
        let from = Address { peer: 3, meeting: here, group: 7, tag: 1 };
        let mut comes = |peer, counter, number, last| {
            let meeting = Meeting { counter, number };
            let part = Part { meeting, group: 8, tag: 1, last, bytes: b"x" };
            mail.deliver(peer, &part.encode()).unwrap();
            mail.is_ahead(from)
        };
        assert!(!comes(3, Counter::Calls, here.number + 1, true));
        assert!(!comes(2, Counter::Calls, here.number + MEETINGS, true));
        assert!(!comes(3, Counter::Generations, here.number + MEETINGS, true));
        assert!(comes(3, Counter::Calls, here.number + MEETINGS, false));
        let generation = Meeting { counter: Counter::Generations, number: 1 };
        assert!(!mail.is_ahead(Address { meeting: generation, ..from }));
    }

    #[test]
    fn long_messages_come_whole_and_groups_do_not_mix() {
        let mut mail = Mail::default();
        let part = |meeting, group, last, bytes: &'static [u8]| {
            Part { meeting, group, tag: 1, last, bytes }.encode()
        };
        mail.begin(FIRST);
        for (meeting, group, last, bytes) in [
            (SECOND, 7, false, &b"one "[..]),
            (SECOND, 8, true, b"else"),
            (FIRST, 7, true, b"before"),
            (SECOND, 7, true, b"two "),
            (SECOND, 7, true, b"more"),
        ] {
            mail.deliver(3, &part(meeting, group, last, bytes)).unwrap();
        }
        let address = Address { peer: 3, meeting: SECOND, group: 7, tag: 1 };
        assert_eq!(mail.take(address).unwrap(), b"one two ");
        assert_eq!(mail.take(Address { tag: 2, ..address }), None);
        mail.end(FIRST);
        assert_eq!(mail.unread[&3], 4 + 4 + 2 * ENVELOPE);
        assert_eq!(mail.take(address).unwrap(), b"more");
        assert_eq!(mail.unread[&3], 4 + ENVELOPE);
        assert_eq!(mail.take(Address { group: 8, ..address }).unwrap(), b"else");
        assert_eq!((mail.take(address), mail.unread[&3]), (None, 0));
        assert!(mail.deliver(3, &part(SECOND, 7, true, b"x")[1..]).is_err());
    }

    #[test]
    fn empty_messages_are_not_free() {
        let mut mail = Mail::default();
        let part = |tag| Part { meeting: FIRST, group: 7, tag, last: tag % 2 == 0, bytes: b"" }.encode();
        let most = (MAX_UNREAD / ENVELOPE) as u64;
        (0..most).for_each(|tag| mail.deliver(3, &part(tag)).unwrap());
        let error = mail.deliver(3, &part(most)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(3)));
        mail.deliver(3, &Part { meeting: FIRST, group: 7, tag: 1, last: true, bytes: b"" }.encode()).unwrap();
        mail.deliver(4, &part(most)).expect("another peer has room of its own");
        mail.begin(FIRST);
        mail.end(FIRST);
        assert!(mail.unread.is_empty());
    }

    /// A message in two parts, one of which is late, for each of a thousand meetings that this rank has ended.
    #[test]
    fn late_messages_of_meetings_that_ended_here_cost_their_sender_nothing() {
        let mut mail = Mail::default();
        let part = |meeting, last| Part { meeting, group: 7, tag: 1, last, bytes: &[0; PART] }.encode();
        for _ in 0..1000 {
            let meeting = mail.begin_next(Counter::Calls);
            mail.deliver(3, &part(meeting, false)).unwrap();
            assert_eq!(mail.unread[&3], PART + ENVELOPE);
            mail.end(meeting);
            mail.deliver(3, &part(meeting, true)).expect("the peer has done nothing wrong");
            assert!(mail.unread.is_empty() && mail.parts.is_empty() && mail.whole.is_empty());
        }
    }

    #[test]
    fn messages_of_meetings_that_run_or_are_to_come_are_kept_and_counted() {
        let mut mail = Mail::default();
        let generation = |number| Meeting { counter: Counter::Generations, number };
        let (first, second) = (mail.begin_next(Counter::Calls), mail.begin_next(Counter::Calls));
        mail.begin(generation(5));
        mail.end(second);
        let kept = [first, Meeting { number: 3, ..second }, generation(5), generation(6)];
        // The fourth generation was agreed, and superseded before this rank heard of it.
        for meeting in kept.into_iter().chain([second, generation(4)]) {
            mail.deliver(3, &Part { meeting, group: 7, tag: 1, last: true, bytes: b"x" }.encode()).unwrap();
        }
        assert_eq!(mail.unread[&3], kept.len() * (1 + ENVELOPE));
        for meeting in kept {
            assert!(mail.take(Address { peer: 3, meeting, group: 7, tag: 1 }).is_some(), "{meeting:?}");
        }
        assert!(mail.whole.is_empty());
    }
}
