//! `setup()`: every queued item makes its end, in whatever order the ends become ready.
//!
//! An item goes through these steps, each taken as soon as it can be; the messages are those of
//! [`message`](super::message):
//!
//! 1. blocked: something that it is built on does not exist yet;
//! 2. asked: this end can be built, and the peer knows;
//! 3. offered, if this end leads: the peer, which waits for it, has been sent what it needs;
//!    accepted, if it follows: this end is built, and the peer has been sent what it needs;
//! 4. ended: the leader has built its end, too, and committed both; or one end failed.
//!
//! A failure is told to the peer's item of the same key and ends both; it reaches others only through the objects that are
//! built on the failed one.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::attempts::Next;
use super::key::{Key, Namespace};
use super::mailbox::Post;
use super::message::{Message, Offer};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::receipt::{Hold, Receipt};

/// Something that `setup()` makes together with a peer.
pub(crate) trait Item: Send {
    fn key(&self) -> Key;

    /// Whether everything that this is built on exists; `None` while that is open, an error if it never will.
    fn ready(&mut self) -> Option<Result<()>> {
        Some(Ok(()))
    }

    /// The data that the peer, which has asked for it, needs to build its end. Called once, when this item is ready,
    /// before [`build`](Self::build).
    fn offer(&mut self) -> Result<Offer<Hold>>;

    /// Makes this end from the peer's offer, before `deadline`. Drops every part of the offer that it does not use.
    fn build(&mut self, offer: Offer<Receipt>, deadline: Deadline) -> Result<()>;

    /// Gives out what was built, or the reason why not.
    fn finish(self: Box<Self>, result: Result<()>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Blocked,
    Asked,
    Offered,
    Accepted,
}

struct Running {
    /// Place in the queue.
    place: usize,
    key: Key,
    attempt: u64,
    step: Step,
    /// The deadline has passed after this end had accepted: the leader decides how it ends.
    withdrawn: Option<Error>,
    item: Box<dyn Item>,
}

/// The result of one look at an item.
enum Progress {
    None,
    Some,
    Ended(Result<()>),
}

/// Of several failures, the one to report: this rank's own before those that it heard of from others, which often follow from
/// its own; then the earliest queued.
#[derive(Default)]
struct Worst(Option<((bool, usize), Error)>);

impl Worst {
    fn note(&mut self, place: usize, error: &Error) {
        let rank = (is_of_another(error), place);
        if self.0.as_ref().is_none_or(|(worst, _)| rank < *worst) {
            self.0 = Some((rank, error.clone()));
        }
    }
}

/// Whether another rank has failed, or ended the job.
fn is_of_another(error: &Error) -> bool {
    let reported = |peer: u32| error.message().starts_with(&format!("rank {peer} failed: "));
    matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Aborted) || error.peer().is_some_and(reported)
}

/// How often a wait is interrupted for `meanwhile`.
const MEANWHILE: Duration = Duration::from_millis(20);

/// Runs `items` to their ends; the [`Worst`] error, if there is one. After `deadline` it waits only for peers
/// whose service thread has to say whether they committed.
///
/// Calls `meanwhile` before and during every wait: the peer may be waiting for what that gives back.
pub(crate) fn run(
    post: &Post<'_>,
    items: Vec<Box<dyn Item>>,
    deadline: Deadline,
    meanwhile: impl Fn(),
) -> Result<()> {
    let mut running: Vec<Running> = items
        .into_iter()
        .enumerate()
        .map(|(place, item)| {
            let key = item.key();
            let attempt = post.mail.with(|attempts| attempts.begin(key));
            Running { place, key, attempt, step: Step::Blocked, withdrawn: None, item }
        })
        .collect();
    let mut worst = Worst::default();
    loop {
        let seen = post.mail.version();
        let expired = deadline.expired();
        let mut progress = false;
        let mut left = Vec::with_capacity(running.len());
        for mut one in running {
            let outcome = match one.advance(post, deadline) {
                Progress::None if expired => one.expire(post),
                outcome => outcome,
            };
            match outcome {
                Progress::None => left.push(one),
                Progress::Some => {
                    progress = true;
                    left.push(one);
                }
                Progress::Ended(result) => {
                    progress = true;
                    if let Err(error) = &result {
                        worst.note(one.place, error);
                    }
                    one.end(post, result);
                }
            }
        }
        running = left;
        if running.is_empty() {
            return worst.0.map_or(Ok(()), |(_, error)| Err(error));
        }
        if !progress {
            let deadline = if expired { Deadline::after(Duration::MAX) } else { deadline };
            meanwhile();
            while !post.mail.wait(seen, deadline.min(Deadline::after(MEANWHILE))) && !deadline.expired() {
                meanwhile();
            }
        }
    }
}

impl Running {
    /// Takes the next step, if it can be taken.
    fn advance(&mut self, post: &Post<'_>, deadline: Deadline) -> Progress {
        match self.try_advance(post, deadline) {
            Ok(progress) => progress,
            Err(error) => Progress::Ended(Err(error)),
        }
    }

    fn try_advance(&mut self, post: &Post<'_>, deadline: Deadline) -> Result<Progress> {
        let key = self.key;
        post.group.check(key.op())?;
        if self.step == Step::Blocked {
            return self.unblock(post, deadline);
        }
        match post.mail.with(|attempts| attempts.next(key)) {
            Next::Ended(Ok(())) => return Ok(Progress::Ended(Ok(()))),
            // A rank that gave up by itself says why itself.
            Next::Ended(Err(error)) => return Err(self.withdrawn.take().unwrap_or(error)),
            Next::Build(offer) => {
                let theirs = offer.map(|id| post.ledger.receipt(post.group, key.peer, id));
                return self.build(post, theirs, deadline);
            }
            Next::Offer => {
                let offer = self.item.offer()?;
                if !post.mail.with(|attempts| attempts.offer(key)) {
                    // The follower has withdrawn meanwhile: the next look says why.
                    return Ok(Progress::Some);
                }
                post.say_offer(key, self.attempt, offer, Message::Offer)?;
                self.step = Step::Offered;
                return Ok(Progress::Some);
            }
            Next::Wait => {}
        }
        post.group.check_peer(key.op(), key.peer)?;
        Ok(Progress::None)
    }

    fn unblock(&mut self, post: &Post<'_>, deadline: Deadline) -> Result<Progress> {
        let key = self.key;
        post.group.check_peer(key.op(), key.peer)?;
        match self.item.ready() {
            None => return Ok(Progress::None),
            Some(ready) => ready?,
        }
        if key.is_own_peer(post.group.rank()) {
            // Both ends are this one.
            let offer = self.item.offer()?;
            let received = offer.map(|hold| {
                let id = hold.id();
                hold.sent();
                post.ledger.receipt(post.group, key.peer, id)
            });
            self.item.build(received, deadline)?;
            return Ok(Progress::Ended(Ok(())));
        }
        post.group.open_link(key.peer, deadline)?;
        if post.mail.with(|attempts| attempts.ask(key)) {
            post.say(key, self.attempt, Message::Ask)?;
        }
        self.step = Step::Asked;
        Ok(Progress::Some)
    }

    /// Builds this end from what the peer sent.
    fn build(&mut self, post: &Post<'_>, theirs: Offer<Receipt>, deadline: Deadline) -> Result<Progress> {
        let key = self.key;
        if !key.leads(post.group.rank()) {
            let mine = self.item.offer()?;
            self.item.build(theirs, deadline)?;
            post.mail.with(|attempts| attempts.accept(key));
            post.say_offer(key, self.attempt, mine, Message::Accept)?;
            self.step = Step::Accepted;
            return Ok(Progress::Some);
        }
        self.item.build(theirs, deadline)?;
        if !post.mail.with(|attempts| attempts.commit(key)) {
            // The follower has withdrawn meanwhile: the next look says why.
            return Ok(Progress::Some);
        }
        post.say(key, self.attempt, Message::Commit)?;
        Ok(Progress::Ended(Ok(())))
    }

    /// The deadline has found this item waiting.
    fn expire(&mut self, post: &Post<'_>) -> Progress {
        if self.step != Step::Accepted {
            return Progress::Ended(Err(self.unmatched(post.group.rank())));
        }
        // The peer may have committed: it says so, or that it has not and never will.
        if self.withdrawn.is_none() {
            let error = self.unmatched(post.group.rank());
            if let Err(error) = post.say(self.key, self.attempt, Message::End(error.clone())) {
                return Progress::Ended(Err(error));
            }
            self.withdrawn = Some(error);
        }
        Progress::None
    }

    /// The error of an item that the deadline found waiting.
    fn unmatched(&self, rank: u32) -> Error {
        let Key { kind, peer, space, tag } = self.key;
        let call = match space {
            Namespace::Exchange { count, .. } => {
                format!("exchange_memory with {count} buffers and tag {tag}")
            }
            _ => format!("{} with rank {rank} and tag {tag}", kind.counterpart().op()),
        };
        let message = match self.step {
            Step::Blocked => format!(
                "{}: what it is built on was not made before the deadline; ask for that with this communicator, before or in the same setup()",
                self.key
            ),
            Step::Asked if space == Namespace::Library => format!(
                "rank {peer} did not come to the same exchange before the deadline; make the same calls that prepare \
                 collectives, plans and buffers on all ranks, in the same order, and a new communicator if only some ranks made \
                 one of them"
            ),
            Step::Asked => format!(
                "{}: rank {peer} did not ask for its end before the deadline; it must call {call}, then setup()",
                self.key
            ),
            Step::Offered | Step::Accepted => {
                format!("{}: rank {peer} did not finish its end before the deadline", self.key)
            }
        };
        Error::timeout(self.key.op(), message).with_peer(peer)
    }

    fn end(self, post: &Post<'_>, result: Result<()>) {
        if let Err(error) = &result {
            log::debug!("setup: {}: {error}", self.key);
        }
        let heard = post.mail.with(|attempts| attempts.end(self.key, result.as_ref().err()));
        drop(heard.unused.map(|offer| post.receipts(self.key.peer, offer)));
        // If the peer cannot be told, it is gone or will see this rank go.
        let reachable =
            self.key.peer == post.group.rank() || post.group.control().link(self.key.peer).is_some();
        if let Some(answer) = heard.answer.filter(|_| reachable)
            && let Err(untold) = post.say(self.key, self.attempt, answer)
        {
            log::debug!("setup: cannot tell rank {}: {untold}", self.key.peer);
        }
        self.item.finish(result);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
