//! How far the attempts to make items have come, by what this rank did and what its peers said. No input or output.
//!
//! The n-th attempt for a key at one end belongs to the n-th at the other. One end leads ([`Key::leads`]); the messages are
//! those of [`message`](super::message). Every attempt that both ends have begun has one end, which both know: it succeeds
//! when the leader commits it, and fails otherwise. A follower that has accepted an offer cannot fail by itself any more: if its
//! time is up it says END, and the leader answers with END or has committed.
//!
//! A peer can make this rank keep only what this rank has asked it for:
//!
//! * an ASK takes one small entry, of which a peer can have [`MAX_AHEAD`] before this rank begins the same items; what is above
//!   that is refused, and its sender is not cut off;
//! * an offer is only sent to an end that has asked for it, at the most [`window`] to one peer at a time, so that bodies and
//!   descriptors that wait to be used are bounded; an offer without an ASK is a violation;
//! * an end that failed is remembered by the rank whose end it was, and told to a peer that asks later;
//! * a key of the library's own, whose tags are used once, is forgotten when both ends are made.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::key::{Key, Namespace};
use super::message::{Message, Offer};
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::holds::HoldId;

/// How many items one peer can have asked for before this rank has.
const MAX_AHEAD: usize = 1 << 16;

/// How many offers a leader may have under way to one peer, in a group of `size`. All peers on a host together then have at
/// most some hundreds of descriptors waiting at one rank, of the 1024 that a process usually has.
fn window(size: u32) -> usize {
    (256 / size.max(1) as usize).clamp(2, 32)
}

/// The attempts of one rank.
#[derive(Debug)]
pub(crate) struct Attempts {
    rank: u32,
    window: usize,
    names: HashMap<Key, Name>,
    peers: HashMap<u32, Counts>,
}

/// All attempts for one key.
#[derive(Debug, Default)]
struct Name {
    /// Attempts begun here; the last of them may be under way.
    begun: u64,
    current: Option<State>,
    /// For the leader: the attempt for which the follower waits.
    asked: Option<u64>,
    /// Why the last attempt here failed, for a peer that asks later.
    failure: Option<Error>,
}

/// Entries that one peer makes this rank keep.
#[derive(Debug, Default)]
struct Counts {
    /// Keys for which the peer has asked and this rank has not begun.
    ahead: usize,
    /// Leading: offers that the peer has not answered. Following: offers that this rank has not used.
    offers: usize,
}

/// The attempt that is under way for one key.
#[derive(Debug)]
enum State {
    /// Nothing was exchanged; `asked` if this rank has said ASK.
    Begun { asked: bool },
    /// Leading: the offer is at the peer.
    Offered,
    /// The peer's offer or acceptance has come.
    Arrived(Offer<HoldId>),
    /// It is being used to build this end.
    Building,
    /// Following: this end is built and the peer knows; the leader decides.
    Accepted,
    /// Both ends know how it ended.
    Ended(Result<()>),
}

/// The next step of this rank in an attempt.
#[derive(Debug)]
pub(crate) enum Next {
    /// Wait for the peer.
    Wait,
    /// Leading: send an offer, for which the peer waits.
    Offer,
    /// Build this end from what the peer sent. Returned once.
    Build(Offer<HoldId>),
    /// Both ends know that the attempt has ended with this result.
    Ended(Result<()>),
}

/// Consequences of a message.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// To send back about the same attempt.
    pub(crate) answer: Option<Message>,
    /// An offer that came too late: close its descriptors and return its receipts.
    pub(crate) unused: Option<Offer<HoldId>>,
}

impl Attempts {
    /// The attempts of `rank` in a group of `size`.
    pub(crate) fn new(rank: u32, size: u32) -> Self {
        Self { rank, window: window(size), names: HashMap::new(), peers: HashMap::new() }
    }

    /// Begins an attempt, after the one before has ended; its number.
    pub(crate) fn begin(&mut self, key: Key) -> u64 {
        self.count_ahead(key, |name| {
            debug_assert!(name.current.is_none(), "one attempt at a time");
            name.begun += 1;
            name.current = Some(State::Begun { asked: false });
            // An earlier ASK belongs to an attempt that is over.
            name.asked = name.asked.filter(|asked| *asked >= name.begun);
            name.begun
        })
    }

    /// This rank can build its end. Returns whether it has to say ASK.
    pub(crate) fn ask(&mut self, key: Key) -> bool {
        let leads = key.leads(self.rank);
        let name = self.names.entry(key).or_default();
        if let Some(State::Begun { asked }) = &mut name.current {
            *asked = true;
        }
        !(leads && name.asked == Some(name.begun))
    }

    /// The next step of the current attempt.
    pub(crate) fn next(&mut self, key: Key) -> Next {
        let leads = key.leads(self.rank);
        let Some(name) = self.names.get_mut(&key) else { return Next::Wait };
        let counts = self.peers.entry(key.peer).or_default();
        match &mut name.current {
            Some(State::Begun { asked: true })
                if leads && name.asked == Some(name.begun) && counts.offers < self.window =>
            {
                Next::Offer
            }
            Some(state @ State::Arrived(_)) => {
                if !leads {
                    counts.offers -= 1;
                }
                match std::mem::replace(state, State::Building) {
                    State::Arrived(offer) => Next::Build(offer),
                    _ => Next::Wait,
                }
            }
            Some(State::Ended(Ok(()))) => Next::Ended(Ok(())),
            Some(State::Ended(Err(error))) => Next::Ended(Err(error.clone())),
            _ => Next::Wait,
        }
    }

    /// Leading: this rank is about to send its offer. False if the follower has withdrawn: then it must not be sent.
    pub(crate) fn offer(&mut self, key: Key) -> bool {
        let offered = self.advance(key, |state| matches!(state, State::Begun { .. }), State::Offered);
        self.peers.entry(key.peer).or_default().offers += usize::from(offered);
        offered
    }

    /// Following: this end is built, and this rank is about to say ACCEPT.
    pub(crate) fn accept(&mut self, key: Key) {
        self.advance(key, |state| matches!(state, State::Building), State::Accepted);
    }

    /// Leading: both ends are built. False if the follower has withdrawn; otherwise the attempt has succeeded, for both.
    pub(crate) fn commit(&mut self, key: Key) -> bool {
        self.advance(key, |state| matches!(state, State::Building), State::Ended(Ok(())))
    }

    fn advance(&mut self, key: Key, from: impl Fn(&State) -> bool, to: State) -> bool {
        match self.names.get_mut(&key).and_then(|name| name.current.as_mut()) {
            Some(state) if from(state) => {
                *state = to;
                true
            }
            _ => false,
        }
    }

    /// This rank has done with the attempt that is under way; `failure` if its end failed.
    pub(crate) fn end(&mut self, key: Key, failure: Option<&Error>) -> Heard {
        let leads = key.leads(self.rank);
        let name = self.names.entry(key).or_default();
        let state = name.current.take();
        name.asked = name.asked.filter(|asked| *asked > name.begun);
        name.failure = failure.cloned();
        // The library uses a tag once, and neither end says any more about an attempt that has succeeded. After a
        // failure the peer may still speak, or ask why.
        if key.space == Namespace::Library && failure.is_none() && name.asked.is_none() {
            self.names.remove(&key);
        }
        let counts = self.peers.entry(key.peer).or_default();
        counts.leave(leads, state.as_ref());
        match (state, failure) {
            // The peer knows.
            (Some(State::Ended(_)) | None, _) | (_, None) => Heard::default(),
            (state, Some(failure)) => {
                let answer = Some(Message::End(failure.clone()));
                Heard { answer, unused: state.and_then(State::offer) }
            }
        }
    }

    /// `message` from the peer of `key` about attempt number `attempt`.
    ///
    /// # Errors
    /// It breaks the protocol.
    pub(crate) fn hear(&mut self, key: Key, attempt: u64, message: Message) -> Result<Heard> {
        let leads = key.leads(self.rank);
        let (begun, under_way) =
            self.names.get(&key).map_or((0, false), |name| (name.begun, name.current.is_some()));
        let over = attempt < begun || (attempt == begun && !under_way);
        match message {
            Message::Ask if over => {
                Ok(Heard { answer: Some(Message::End(self.failure(key, attempt))), unused: None })
            }
            Message::Ask if leads => Ok(self.asked(key, attempt)),
            Message::Ask => Ok(Heard::default()),
            Message::End(_) if attempt > begun => {
                // The follower has withdrawn its ASK; it will say so again if it is asked.
                self.count_ahead(key, |name| name.asked = name.asked.filter(|asked| *asked != attempt));
                Ok(Heard::default())
            }
            _ if attempt > begun => Err(violation(key, "spoke of an attempt that was not asked for")),
            Message::End(_) if over => Ok(Heard::default()),
            Message::End(error) => Ok(self.ended(key, error)),
            Message::Offer(offer) if !leads => self.arrived(key, over, offer),
            Message::Accept(offer) if leads => self.arrived(key, over, offer),
            Message::Commit if !leads && over => Ok(Heard::default()),
            Message::Commit if !leads => {
                let done = State::Ended(Ok(()));
                match self.advance(key, |state| matches!(state, State::Accepted), done) {
                    true => Ok(Heard::default()),
                    false => Err(violation(key, "committed what was not accepted")),
                }
            }
            _ => Err(violation(key, "spoke as the other end of an exchange")),
        }
    }

    /// The follower waits for an offer.
    fn asked(&mut self, key: Key, attempt: u64) -> Heard {
        let known = self.names.get(&key).is_some_and(|name| name.begun >= attempt || name.is_ahead());
        if !known && self.peers.get(&key.peer).is_some_and(|counts| counts.ahead >= MAX_AHEAD) {
            let message = format!(
                "rank {} has asked for {MAX_AHEAD} items that rank {} has not; set up fewer at a time",
                key.peer, self.rank
            );
            let refused = Error::new(ErrorKind::Exhausted, key.op(), message);
            return Heard { answer: Some(Message::End(refused)), unused: None };
        }
        self.count_ahead(key, |name| name.asked = name.asked.max(Some(attempt)));
        Heard::default()
    }

    /// An offer or an acceptance has come for an attempt that was begun here.
    fn arrived(&mut self, key: Key, over: bool, offer: Offer<HoldId>) -> Result<Heard> {
        let leads = key.leads(self.rank);
        let counts = self.peers.entry(key.peer).or_default();
        let state = self.names.get_mut(&key).and_then(|name| name.current.as_mut());
        match state {
            _ if over => Ok(Heard { answer: None, unused: Some(offer) }),
            None | Some(State::Ended(_)) => Ok(Heard { answer: None, unused: Some(offer) }),
            Some(state @ State::Offered) => {
                counts.offers -= 1;
                *state = State::Arrived(offer);
                Ok(Heard::default())
            }
            Some(state @ State::Begun { asked: true }) if !leads => {
                if counts.offers >= self.window {
                    return Err(violation(key, "sent more offers at a time than it may"));
                }
                counts.offers += 1;
                *state = State::Arrived(offer);
                Ok(Heard::default())
            }
            Some(_) => Err(violation(key, "sent an offer that was not asked for, or the same one twice")),
        }
    }

    /// The peer's end of an attempt that is under way here has failed.
    fn ended(&mut self, key: Key, error: Error) -> Heard {
        let leads = key.leads(self.rank);
        let Some(state) = self.names.get_mut(&key).and_then(|name| name.current.as_mut()) else {
            return Heard::default();
        };
        if matches!(state, State::Ended(_)) {
            // Committed, or told before: the peer hears it, or has heard it.
            return Heard::default();
        }
        // A follower that has withdrawn waits for the decision.
        let answer = leads.then(|| Message::End(error.clone()));
        let before = std::mem::replace(state, State::Ended(Err(error)));
        self.peers.entry(key.peer).or_default().leave(leads, Some(&before));
        Heard { answer, unused: before.offer() }
    }

    /// Why `attempt`, which is over here, failed.
    fn failure(&self, key: Key, attempt: u64) -> Error {
        match self.names.get(&key) {
            Some(Name { begun, failure: Some(failure), .. }) if *begun == attempt => failure.clone(),
            _ => {
                let message = format!(
                    "rank {} gave this attempt up at its deadline and has gone on to a later one; ask for it again and call \
                     setup() once more to meet that one",
                    self.rank
                );
                Error::timeout(key.op(), message)
            }
        }
    }

    /// Runs `f` on the attempts for `key`, counts its peer anew if that changed, and keeps no entry that says nothing.
    fn count_ahead<T>(&mut self, key: Key, f: impl FnOnce(&mut Name) -> T) -> T {
        let name = self.names.entry(key).or_default();
        let before = name.is_ahead();
        let result = f(name);
        let after = name.is_ahead();
        if name.begun == 0 && name.asked.is_none() {
            self.names.remove(&key);
        }
        let counts = self.peers.entry(key.peer).or_default();
        counts.ahead = counts.ahead + usize::from(after) - usize::from(before);
        result
    }
}

impl Name {
    /// Whether only the peer has begun the attempt for which it waits.
    fn is_ahead(&self) -> bool {
        self.asked.is_some_and(|asked| asked > self.begun)
    }
}

impl Counts {
    /// An attempt has left `state` without an answer.
    fn leave(&mut self, leads: bool, state: Option<&State>) {
        let counted = match state {
            Some(State::Offered) => true,
            Some(State::Arrived(_)) => !leads,
            _ => false,
        };
        self.offers -= usize::from(counted);
    }
}

impl State {
    fn offer(self) -> Option<Offer<HoldId>> {
        match self {
            Self::Arrived(offer) => Some(offer),
            _ => None,
        }
    }
}

#[cold]
fn violation(key: Key, what: &str) -> Error {
    let message = format!("rank {} {what} ({key}); use one version of aqueduct everywhere", key.peer);
    Error::new(ErrorKind::Remote, "setup", message).with_peer(key.peer)
}

#[cfg(test)]
mod tests;
