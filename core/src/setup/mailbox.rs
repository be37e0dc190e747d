//! What peers have said about setup items, sorted by what they speak of and never by when they arrived.
#![forbid(unsafe_code)]

use super::wire::Setup;
use crate::deadline::Deadline;
use crate::group::subscriber::{Deferred, Subscriber};
use crate::group::{Group, frames};
use crate::sync::{Condvar, Mutex, lock, wait};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

use crate::error::{Error, Result};
use crate::setup::key::Key;

/// The first half of an item's exchange: what the peer needs in order to build its end.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// One message about one item.
#[derive(Debug)]
pub(crate) enum Message {
    Offer(Offer),
    /// The peer has built its end, or will not.
    Done(Result<()>),
}

#[derive(Debug, Default)]
struct Slot {
    offer: Option<Offer>,
    done: Option<Result<()>>,
}

/// More items than this in flight from one peer is a protocol violation, not a program.
const MAX_SLOTS: usize = 1 << 20;

/// Messages by (kind, peer, tag, attempt).
///
/// The n-th attempt for a key at one end belongs to the n-th at the other: an attempt that one end gave up is
/// given up at the other end too, and the next attempts meet again. What arrives for an attempt that has ended here is
/// dropped, and file descriptors in it are closed.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    slots: HashMap<(Key, u64), Slot>,
    /// Attempts begun here, by key.
    begun: HashMap<Key, u64>,
    /// Attempts ended here, by key.
    ended: HashMap<Key, u64>,
}

impl Mailbox {
    /// Begins an attempt; its number.
    pub(crate) fn begin(&mut self, key: Key) -> u64 {
        let attempt = self.begun.entry(key).or_default();
        *attempt += 1;
        *attempt
    }

    /// Stores a message that concerns `key` as this end names it.
    pub(crate) fn deliver(&mut self, key: Key, attempt: u64, message: Message) -> Result<()> {
        if attempt <= self.ended.get(&key).copied().unwrap_or(0) {
            return Ok(());
        }
        if self.slots.len() >= MAX_SLOTS {
            return Err(Error::new(
                crate::ErrorKind::Remote,
                "setup",
                format!("rank {} has more than {MAX_SLOTS} setup items in flight", key.peer),
            )
            .with_peer(key.peer));
        }
        let slot = self.slots.entry((key, attempt)).or_default();
        match message {
            Message::Offer(offer) if slot.offer.is_none() => slot.offer = Some(offer),
            Message::Done(result) if slot.done.is_none() => slot.done = Some(result),
            _ => {
                return Err(Error::new(
                    crate::ErrorKind::Remote,
                    "setup",
                    format!("rank {} said the same thing twice about {key}", key.peer),
                )
                .with_peer(key.peer));
            }
        }
        Ok(())
    }

    /// The peer's offer, once.
    pub(crate) fn take_offer(&mut self, key: Key, attempt: u64) -> Option<Offer> {
        self.slots.get_mut(&(key, attempt)).and_then(|slot| slot.offer.take())
    }

    /// How the peer's end went, if it has ended.
    pub(crate) fn done(&self, key: Key, attempt: u64) -> Option<Result<()>> {
        self.slots.get(&(key, attempt)).and_then(|slot| slot.done.as_ref()).map(|done| match done {
            Ok(()) => Ok(()),
            Err(error) => Err(error.clone()),
        })
    }

    /// Ends an attempt begun here, and forgets what the peer said about it.
    pub(crate) fn end(&mut self, key: Key, attempt: u64) {
        self.slots.remove(&(key, attempt));
        let ended = self.ended.entry(key).or_default();
        *ended = attempt.max(*ended);
    }
}

/// The mailbox of a communicator: the service thread fills it, `setup()` waits for it.
pub(crate) struct SetupMail {
    state: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    mailbox: Mailbox,
    /// Counts changes that a waiter may care about.
    version: u64,
}

impl Default for SetupMail {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new() }
    }
}

impl SetupMail {
    /// Runs `f` on the mailbox.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Mailbox) -> T) -> T {
        f(&mut lock(&self.state).mailbox)
    }

    /// Number of the latest change; pass it to [`wait`](Self::wait).
    pub(crate) fn version(&self) -> u64 {
        lock(&self.state).version
    }

    /// Waits for a change after `seen`. False if the deadline passed first.
    pub(crate) fn wait(&self, seen: u64, deadline: Deadline) -> bool {
        let mut state = lock(&self.state);
        while state.version == seen {
            if deadline.expired() {
                return false;
            }
            state = wait(&self.changed, state, deadline);
        }
        true
    }

    /// Sends `message` about `key` to its peer, to which there must be a link unless it is this rank.
    pub(crate) fn say(&self, group: &Group, key: Key, attempt: u64, message: Message) -> Result<()> {
        if key.peer == group.rank() {
            let mirrored = Key { kind: key.kind.counterpart(), ..key };
            return self.deliver(mirrored, attempt, message);
        }
        let (payload, fds) = Setup { kind: key.kind, tag: key.tag, attempt, message }.encode();
        group.post(key.kind.op(), key.peer, frames::SETUP, &payload, fds)
    }

    pub(crate) fn deliver(&self, key: Key, attempt: u64, message: Message) -> Result<()> {
        let mut state = lock(&self.state);
        state.mailbox.deliver(key, attempt, message)?;
        self.wake(&mut state);
        Ok(())
    }

    fn wake(&self, state: &mut Mail) {
        state.version += 1;
        self.changed.notify_all();
    }
}

impl std::fmt::Debug for SetupMail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetupMail").finish_non_exhaustive()
    }
}

impl Subscriber for SetupMail {
    fn frame(&self, peer: u32, payload: &[u8], fds: Vec<OwnedFd>, _: &mut Vec<Deferred>) -> Result<()> {
        let Setup { kind, tag, attempt, message } = Setup::decode(peer, payload, fds)?;
        self.deliver(Key { kind: kind.counterpart(), peer, tag }, attempt, message)
    }

    fn gone(&self, _: u32, _: &mut Vec<Deferred>) {}

    fn changed(&self) {
        self.wake(&mut lock(&self.state));
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Kind;
    use super::*;

    const KEY: Key = Key { kind: Kind::MemoryRecv, peer: 1, tag: 9 };

    fn offer(byte: u8) -> Message {
        Message::Offer(Offer { body: vec![byte], fds: Vec::new() })
    }

    #[test]
    fn attempts_meet_whatever_the_order_of_arrival() {
        let mut mailbox = Mailbox::default();
        mailbox.deliver(KEY, 2, offer(2)).unwrap();
        mailbox.deliver(KEY, 1, offer(1)).unwrap();
        assert_eq!(mailbox.begin(KEY), 1);
        assert_eq!(mailbox.take_offer(KEY, 1).unwrap().body, [1]);
        assert!(mailbox.take_offer(KEY, 1).is_none());
        mailbox.end(KEY, 1);
        assert_eq!(mailbox.begin(KEY), 2);
        assert_eq!(mailbox.take_offer(KEY, 2).unwrap().body, [2]);
    }

    #[test]
    fn what_comes_late_is_dropped_and_what_comes_twice_is_refused() {
        let mut mailbox = Mailbox::default();
        mailbox.begin(KEY);
        mailbox.end(KEY, 1);
        mailbox.deliver(KEY, 1, offer(1)).unwrap();
        assert!(mailbox.slots.is_empty());
        mailbox.deliver(KEY, 2, offer(1)).unwrap();
        let twice = mailbox.deliver(KEY, 2, offer(1)).unwrap_err();
        assert_eq!(twice.peer(), Some(1));
    }

    #[test]
    fn a_failure_is_seen_by_the_attempt_it_belongs_to_only() {
        let mut mailbox = Mailbox::default();
        mailbox.deliver(KEY, 1, Message::Done(Err(Error::usage("connect", "no")))).unwrap();
        let attempt = mailbox.begin(KEY);
        assert!(mailbox.done(KEY, attempt).unwrap().is_err());
        mailbox.end(KEY, attempt);
        let attempt = mailbox.begin(KEY);
        assert!(mailbox.done(KEY, attempt).is_none());
    }
}
