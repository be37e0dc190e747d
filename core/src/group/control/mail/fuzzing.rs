//! Messages between ranks as they arrive, see [`crate::fuzzing`].

use std::collections::{BTreeMap, BTreeSet};

use super::{Address, Counter, Mail, Meeting, PART, Part};
use crate::wire::{Reader, Writer};

/// Parts of messages from one peer, each behind its length. The messages taken out are those that were sent, and what lies
/// unread is what is counted.
pub fn mail(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut r, mut again) = (Reader::new(bytes), Writer::new());
    let mut mail = Mail::default();
    // By meeting, group and tag: whole messages, and the beginning of the next one.
    let mut sent = BTreeMap::<(bool, u64, u64, u64), (Vec<Vec<u8>>, Vec<u8>)>::new();
    while r.remaining() > 0 {
        let payload = r.bytes(2 * PART).ok()?;
        mail.deliver(3, payload).ok()?;
        assert_eq!(mail.unread, mail.count());
        let part = Part::decode(payload).expect("was delivered");
        again.bytes(&part.encode());
        let (whole, next) = sent.entry(key(&part)).or_default();
        next.extend_from_slice(part.bytes);
        if part.last {
            whole.push(std::mem::take(next));
        }
    }
    for (&key, (whole, _)) in &sent {
        let taken: Vec<_> = std::iter::from_fn(|| mail.take(address(key))).collect();
        assert_eq!(taken, *whole);
        assert_eq!(mail.unread.get(&3).copied().unwrap_or(0), mail.count().get(&3).copied().unwrap_or(0));
    }
    let meetings: BTreeSet<_> = sent.keys().map(|(counter, number, ..)| (*counter, *number)).collect();
    for (counter, number) in meetings {
        let meeting = address((counter, number, 0, 0)).meeting;
        mail.begin(meeting);
        mail.end(meeting);
    }
    assert!(mail.unread.is_empty() && mail.count().is_empty());
    let mut r = Reader::new(bytes);
    while r.remaining() > 0 {
        mail.deliver(3, r.bytes(2 * PART).ok()?).expect("was delivered before");
        assert!(mail.unread.is_empty() && mail.count().is_empty(), "all meetings are over");
    }
    Some(again.finish())
}

fn key(part: &Part<'_>) -> (bool, u64, u64, u64) {
    (part.meeting.counter == Counter::Generations, part.meeting.number, part.group, part.tag)
}

fn address((generations, number, group, tag): (bool, u64, u64, u64)) -> Address {
    let counter = if generations { Counter::Generations } else { Counter::Calls };
    Address { peer: 3, meeting: Meeting { counter, number }, group, tag }
}

pub(crate) fn sent() -> Vec<(&'static str, Vec<u8>)> {
    let call = Meeting { counter: Counter::Calls, number: 3 };
    let generation = Meeting { counter: Counter::Generations, number: u64::MAX };
    let part = |meeting, group, tag, last, bytes: &[u8]| Part { meeting, group, tag, last, bytes }.encode();
    let parts = [
        part(call, 7, 1, false, b"one "),
        part(generation, 8, 1, true, b""),
        part(call, 7, 2, true, b"else"),
        part(call, 7, 1, true, b"two"),
        part(call, 7, 1, true, b"more"),
        part(generation, 9, u64::MAX, false, b"unfinished"),
    ];
    let stream = |parts: &[Vec<u8>]| {
        let mut w = Writer::new();
        for part in parts {
            w.bytes(part);
        }
        w.finish()
    };
    vec![("mail", stream(&parts[1..2])), ("mail", stream(&parts))]
}
