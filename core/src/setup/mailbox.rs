//! The attempts of a communicator, where the service thread and `setup()` meet.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::attempts::{Attempts, Heard};
use super::key::Key;
use super::message::{Message, Offer, Setup};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::group::subscriber::{Deferred, Reaction, Subscriber};
use crate::group::{Group, frames};
use crate::ledger::holds::{HoldId, Release};
use crate::ledger::receipt::{Hold, Ledger, Receipt};
use crate::sync::{Condvar, Mutex, lock, wait};

/// The attempts of a communicator. The service thread writes down what peers say, `setup()` waits for it.
pub(crate) struct SetupMail {
    rank: u32,
    state: Mutex<Mail>,
    changed: Condvar,
}

struct Mail {
    attempts: Attempts,
    /// Counts changes that a waiter may care about.
    version: u64,
}

impl SetupMail {
    /// The attempts of `rank` in a group of `size`.
    pub(crate) fn new(rank: u32, size: u32) -> Self {
        let attempts = Attempts::new(rank, size);
        Self { rank, state: Mutex::new(Mail { attempts, version: 0 }), changed: Condvar::new() }
    }

    /// Runs `f` on the attempts.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Attempts) -> T) -> T {
        f(&mut lock(&self.state).attempts)
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

    /// Takes `message` about `key`, as this rank calls the item.
    pub(super) fn hear(&self, key: Key, attempt: u64, message: Message) -> Result<Heard> {
        let mut state = lock(&self.state);
        let heard = state.attempts.hear(key, attempt, message)?;
        self.wake(&mut state);
        Ok(heard)
    }

    fn wake(&self, state: &mut Mail) {
        state.version += 1;
        self.changed.notify_all();
    }
}

impl std::fmt::Debug for SetupMail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetupMail").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Subscriber for SetupMail {
    fn frame(&self, peer: u32, payload: &[u8], fds: Vec<OwnedFd>, reaction: &mut Reaction) -> Result<()> {
        let setup = Setup::decode(peer, payload, fds)?;
        let (key, attempt) = (setup.key(peer), setup.attempt);
        let Heard { answer, unused } = self.hear(key, attempt, setup.message)?;
        if let Some(answer) = answer {
            reaction.answers.push((frames::SETUP, Setup::new(key, attempt, answer).encode().0));
        }
        for id in unused.into_iter().flat_map(|offer| offer.holds) {
            reaction.answers.push((frames::RELEASE, Release { id, count: 1 }.encode()));
        }
        Ok(())
    }

    fn gone(&self, _: u32, _: &mut Vec<Deferred>) {}

    fn changed(&self) {
        self.wake(&mut lock(&self.state));
    }
}

/// References that `setup()` needs to exchange messages with peers.
pub(crate) struct Post<'a> {
    pub(crate) group: &'a Group,
    pub(crate) mail: &'a SetupMail,
    pub(crate) ledger: &'a Arc<Ledger>,
}

impl Post<'_> {
    /// Sends `message` about an attempt of this rank's `key` to its peer, to which there must be a link unless it is this
    /// rank.
    pub(super) fn say(&self, key: Key, attempt: u64, message: Message) -> Result<()> {
        if key.peer != self.group.rank() {
            let (payload, fds) = Setup::new(key, attempt, message).encode();
            return self.group.post(key.op(), key.peer, frames::SETUP, &payload, fds);
        }
        let (mut to, mut message) = (key.mirrored(key.peer), message);
        loop {
            let Heard { answer, unused } = self.mail.hear(to, attempt, message)?;
            drop(unused.map(|offer| self.receipts(key.peer, offer)));
            match answer {
                Some(answer) => (to, message) = (to.mirrored(key.peer), answer),
                None => return Ok(()),
            }
        }
    }

    /// [`say`](Self::say) with an offer: from then on only the peer ends what is held for it.
    pub(super) fn say_offer(
        &self,
        key: Key,
        attempt: u64,
        offer: Offer<Hold>,
        message: fn(Offer<HoldId>) -> Message,
    ) -> Result<()> {
        let mut holds = Vec::new();
        let offer = offer.map(|hold| {
            let id = hold.id();
            holds.push(hold);
            id
        });
        self.say(key, attempt, message(offer))?;
        holds.into_iter().for_each(Hold::sent);
        Ok(())
    }

    /// The receipts of what `peer` has offered: from here on they are given back when they are dropped.
    pub(super) fn receipts(&self, peer: u32, offer: Offer<HoldId>) -> Offer<Receipt> {
        offer.map(|id| self.ledger.receipt(self.group, peer, id))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};
    use std::time::Duration;

    use super::super::key::Kind;
    use super::*;
    use crate::error::Error;

    const SEND: Key =
        Key { kind: Kind::MemorySend, peer: 0, space: super::super::key::Namespace::User, tag: 5 };

    /// Nothing that a test waits for takes so long.
    /// Longer than a busy machine stalls, and shorter than a lane of tests may take.
    const STALL: Duration = Duration::from_secs(600);

    /// A descriptor, and a pipe whose end shows that it was closed.
    fn traced() -> (PipeReader, OwnedFd) {
        let (reader, writer) = std::io::pipe().unwrap();
        (reader, writer.into())
    }

    fn is_closed(mut reader: PipeReader) -> bool {
        let (send, closed) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(reader.read(&mut [0]).ok()));
        closed.recv_timeout(STALL) == Ok(Some(0))
    }

    fn offer(fds: Vec<OwnedFd>) -> Message {
        Message::Offer(Offer { body: vec![1], fds, holds: vec![HoldId::Memory(3)] })
    }

    /// Delivers `message` of rank 1 to rank 0, about the first attempt of its `SEND`.
    fn frame(mail: &SetupMail, message: Message) -> (Result<()>, Reaction) {
        let (payload, fds) = Setup::new(SEND, 1, message).encode();
        let mut reaction = Reaction::default();
        (mail.frame(1, &payload, fds, &mut reaction), reaction)
    }

    #[test]
    fn an_offer_nobody_asked_for_ends_its_sender_and_its_descriptors_are_closed_at_once() {
        let mail = SetupMail::new(0, 2);
        let (seen, fd) = traced();
        let error = frame(&mail, offer(vec![fd])).0.unwrap_err();
        assert_eq!(error.peer(), Some(1), "{error}");
        assert!(is_closed(seen));
        // Begun here, but without an ASK.
        mail.with(|attempts| attempts.begin(SEND.mirrored(1)));
        let (seen, fd) = traced();
        frame(&mail, offer(vec![fd])).0.unwrap_err();
        assert!(is_closed(seen));
    }

    #[test]
    fn an_offer_that_comes_too_late_is_given_back_at_once() {
        let mail = SetupMail::new(0, 2);
        let key = SEND.mirrored(1);
        let late = Error::timeout("recv_memory", "late");
        mail.with(|attempts| {
            attempts.begin(key);
            assert!(attempts.ask(key));
            assert!(matches!(attempts.end(key, Some(&late)).answer, Some(Message::End(_))));
        });
        let (seen, fd) = traced();
        let (heard, reaction) = frame(&mail, offer(vec![fd]));
        heard.unwrap();
        assert!(is_closed(seen));
        let release = Release { id: HoldId::Memory(3), count: 1 }.encode();
        assert_eq!(reaction.answers, [(frames::RELEASE, release)]);
    }

    #[test]
    fn who_asks_for_an_attempt_that_is_over_is_told_why() {
        let mail = SetupMail::new(0, 2);
        let key = SEND.mirrored(1);
        mail.with(|attempts| {
            attempts.begin(key);
            attempts.end(key, Some(&Error::timeout("recv_memory", "nobody came")));
        });
        let (heard, reaction) = frame(&mail, Message::Ask);
        heard.unwrap();
        let [(frames::SETUP, payload)] = &reaction.answers[..] else { panic!("{:?}", reaction.answers) };
        let Message::End(error) = Setup::decode(0, payload, Vec::new()).unwrap().message else {
            panic!("no END")
        };
        assert!(error.message().contains("nobody came"), "{error}");
    }

    #[test]
    fn a_wait_ends_with_a_change_or_with_its_time() {
        let mail = SetupMail::new(0, 2);
        let over = || Deadline::after(Duration::ZERO);
        for _ in 0..3 {
            let seen = mail.version();
            assert!(!mail.wait(seen, over()));
            mail.changed();
            assert!(mail.wait(seen, over()));
            assert_ne!(mail.version(), seen);
        }
    }
}
