//! Messages between ranks as they arrive, see [`crate::fuzzing`].

use std::collections::{BTreeMap, BTreeSet};

use super::{Address, Mail, PART, Part};
use crate::wire::{Reader, Writer};

/// Parts of messages from one peer, each behind its length. The messages taken out are those that were sent, and what lies
/// unread is what is counted.
pub fn mail(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut r, mut again) = (Reader::new(bytes), Writer::new());
    let mut mail = Mail::default();
    // By group and tag: whole messages, and the beginning of the next one.
    let mut sent = BTreeMap::<(u64, u64), (Vec<Vec<u8>>, Vec<u8>)>::new();
    while r.remaining() > 0 {
        let payload = r.bytes(2 * PART).ok()?;
        mail.deliver(3, payload).ok()?;
        assert_eq!(mail.unread, mail.count());
        let part = Part::decode(payload).expect("was delivered");
        again.bytes(&part.encode());
        let (whole, next) = sent.entry((part.group, part.tag)).or_default();
        next.extend_from_slice(part.bytes);
        if part.last {
            whole.push(std::mem::take(next));
        }
    }
    for (&(group, tag), (whole, _)) in &sent {
        let address = Address { peer: 3, group, tag };
        let taken: Vec<_> = std::iter::from_fn(|| mail.take(address)).collect();
        assert_eq!(taken, *whole);
        assert_eq!(mail.unread.get(&3).copied().unwrap_or(0), mail.count().get(&3).copied().unwrap_or(0));
    }
    let groups: BTreeSet<u64> = sent.keys().map(|(group, _)| *group).collect();
    groups.into_iter().for_each(|group| mail.forget(group));
    assert!(mail.unread.is_empty() && mail.count().is_empty());
    Some(again.finish())
}

pub(crate) fn sent() -> Vec<(&'static str, Vec<u8>)> {
    let part = |group, tag, last, bytes: &[u8]| Part { group, tag, last, bytes }.encode();
    let parts = [
        part(7, 1, false, b"one "),
        part(8, 1, true, b""),
        part(7, 2, true, b"else"),
        part(7, 1, true, b"two"),
        part(7, 1, true, b"more"),
        part(9, u64::MAX, false, b"unfinished"),
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
