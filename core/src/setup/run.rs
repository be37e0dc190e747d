//! `setup()`: every queued item makes its end, in whatever order the ends become ready.
//!
//! An item goes through at most four steps, each taken as soon as it can be:
//!
//! 1. blocked: what it is built on is not there yet;
//! 2. offered: the peer has been sent what it needs;
//! 3. built: the peer's offer came and our end exists; the peer has been told;
//! 4. ended: the peer's end exists too.
//!
//! A failure at any step is told to the peer's item of the same key and ends both; it reaches others only through what
//! they are built on.
#![forbid(unsafe_code)]

use super::mailbox::{Message, Offer, SetupMail};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::setup::key::Key;

/// Something that `setup()` makes together with a peer.
pub(crate) trait Item: Send {
    fn key(&self) -> Key;

    /// What the peer needs; `None` while something this is built on does not exist yet.
    fn offer(&mut self) -> Option<Result<Offer>>;

    /// Makes this end from the peer's offer, before `deadline`.
    fn build(&mut self, offer: Offer, deadline: Deadline) -> Result<()>;

    /// The peer will not build its end, so it never uses what it was offered.
    fn refused(&mut self) {}

    /// The end of it: gives out what was built, or the reason why not.
    fn finish(self: Box<Self>, result: Result<()>);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Blocked,
    Offered,
    Built,
}

struct Running {
    /// Place in the queue: of several failures the earliest queued is reported.
    place: usize,
    key: Key,
    attempt: u64,
    step: Step,
    item: Box<dyn Item>,
}

/// What one look at an item gave.
enum Progress {
    None,
    Some,
    Ended(Result<()>),
}

/// Runs `items` to their ends; the first error in queue order, if there is one.
pub(crate) fn run(
    group: &Group,
    mail: &SetupMail,
    items: Vec<Box<dyn Item>>,
    deadline: Deadline,
) -> Result<()> {
    let mut running: Vec<Running> = items
        .into_iter()
        .enumerate()
        .map(|(place, item)| {
            let key = item.key();
            let attempt = mail.with(|mailbox| mailbox.begin(key));
            Running { place, key, attempt, step: Step::Blocked, item }
        })
        .collect();
    let mut first: Option<(usize, Error)> = None;
    loop {
        let seen = mail.version();
        let expired = deadline.expired();
        let mut progress = false;
        let mut left = Vec::with_capacity(running.len());
        for mut one in running {
            let outcome = match one.advance(group, mail, deadline) {
                Progress::None if expired => Progress::Ended(Err(one.unmatched())),
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
                    if let Err(error) = &result
                        && first.as_ref().is_none_or(|(place, _)| one.place < *place)
                    {
                        first = Some((one.place, error.clone()));
                    }
                    one.end(group, mail, result);
                }
            }
        }
        running = left;
        if running.is_empty() {
            return first.map_or(Ok(()), |(_, error)| Err(error));
        }
        if !progress {
            mail.wait(seen, deadline);
        }
    }
}

impl Running {
    /// Takes the next step, if it can be taken.
    fn advance(&mut self, group: &Group, mail: &SetupMail, deadline: Deadline) -> Progress {
        match self.try_advance(group, mail, deadline) {
            Ok(progress) => progress,
            Err(error) => Progress::Ended(Err(error)),
        }
    }

    fn try_advance(&mut self, group: &Group, mail: &SetupMail, deadline: Deadline) -> Result<Progress> {
        let key = self.key;
        group.check(key.kind.op())?;
        match mail.with(|mailbox| mailbox.done(key, self.attempt)) {
            Some(Ok(())) if self.step == Step::Built => return Ok(Progress::Ended(Ok(()))),
            Some(Err(error)) => {
                self.item.refused();
                return Err(error);
            }
            _ => {}
        }
        group.check_peer(key.kind.op(), key.peer)?;
        match self.step {
            Step::Blocked => match self.item.offer() {
                None => return Ok(Progress::None),
                Some(offer) => {
                    let offer = offer?;
                    group.open_link(key.peer, deadline)?;
                    mail.say(group, key, self.attempt, Message::Offer(offer))?;
                    self.step = Step::Offered;
                }
            },
            Step::Offered => match mail.with(|mailbox| mailbox.take_offer(key, self.attempt)) {
                None => return Ok(Progress::None),
                Some(offer) => {
                    self.item.build(offer, deadline)?;
                    mail.say(group, key, self.attempt, Message::Done(Ok(())))?;
                    self.step = Step::Built;
                }
            },
            Step::Built => return Ok(Progress::None),
        }
        Ok(Progress::Some)
    }

    /// The error of an item that the deadline found waiting.
    fn unmatched(&self) -> Error {
        let Key { kind, peer, tag } = self.key;
        let theirs = kind.counterpart().op();
        let message = match self.step {
            Step::Blocked => format!(
                "{}: what it is built on was not made before the deadline; ask for that with this communicator, before or in the same setup()",
                self.key
            ),
            Step::Offered => format!(
                "{}: rank {peer} did not ask for its end before the deadline; it must call {theirs} with this rank and tag {tag}, then setup()",
                self.key
            ),
            Step::Built => format!("{}: rank {peer} did not finish its end before the deadline", self.key),
        };
        Error::timeout(kind.op(), message).with_peer(peer)
    }

    fn end(self, group: &Group, mail: &SetupMail, result: Result<()>) {
        if let Err(error) = &result {
            log::debug!("setup: {}: {error}", self.key);
            // The peer's item may be waiting for this one. If it cannot be told, it is gone or will see us go. Once our
            // end was built that has been said, and is not taken back.
            let reachable = self.key.peer == group.rank() || group.control().link(self.key.peer).is_some();
            if self.step != Step::Built && reachable {
                let told = mail.say(group, self.key, self.attempt, Message::Done(Err(error.clone())));
                if let Err(untold) = told {
                    log::debug!("setup: cannot tell rank {}: {untold}", self.key.peer);
                }
            }
        }
        mail.with(|mailbox| mailbox.end(self.key, self.attempt));
        self.item.finish(result);
    }
}
