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

use std::sync::Arc;

use crate::comm::core::Core;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::setup::key::Key;
use crate::setup::mailbox::{Message, Offer};

/// Something that `setup()` makes together with a peer.
pub(crate) trait Item: Send {
    fn key(&self) -> Key;

    /// What the peer needs; `None` while something this is built on does not exist yet.
    fn offer(&mut self, core: &Arc<Core>) -> Option<Result<Offer>>;

    /// Makes this end from the peer's offer.
    fn build(&mut self, core: &Arc<Core>, offer: Offer) -> Result<()>;

    /// The peer will not build its end, so it never uses what it was offered.
    fn refused(&mut self, core: &Arc<Core>) {
        let _ = core;
    }

    /// The end of it: gives out what was built, or the reason why not.
    fn finish(self: Box<Self>, core: &Arc<Core>, result: Result<()>);
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
pub(crate) fn run(core: &Arc<Core>, items: Vec<Box<dyn Item>>, deadline: Deadline) -> Result<()> {
    let mut running: Vec<Running> = items
        .into_iter()
        .enumerate()
        .map(|(place, item)| {
            let key = item.key();
            let attempt = core.control().with_mailbox(|mailbox| mailbox.begin(key));
            Running { place, key, attempt, step: Step::Blocked, item }
        })
        .collect();
    let mut first: Option<(usize, Error)> = None;
    loop {
        let seen = core.control().version();
        let expired = deadline.expired();
        let mut progress = false;
        let mut left = Vec::with_capacity(running.len());
        for mut one in running {
            let outcome = match one.advance(core, deadline) {
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
                        first = Some((one.place, error.duplicate()));
                    }
                    one.end(core, result);
                }
            }
        }
        running = left;
        if running.is_empty() {
            return first.map_or(Ok(()), |(_, error)| Err(error));
        }
        if !progress {
            core.control().wait(seen, deadline);
        }
    }
}

impl Running {
    /// Takes the next step, if it can be taken.
    fn advance(&mut self, core: &Arc<Core>, deadline: Deadline) -> Progress {
        match self.try_advance(core, deadline) {
            Ok(progress) => progress,
            Err(error) => Progress::Ended(Err(error)),
        }
    }

    fn try_advance(&mut self, core: &Arc<Core>, deadline: Deadline) -> Result<Progress> {
        let (control, key) = (core.control(), self.key);
        control.check(key.kind.op())?;
        match control.with_mailbox(|mailbox| mailbox.done(key, self.attempt)) {
            Some(Ok(())) if self.step == Step::Built => return Ok(Progress::Ended(Ok(()))),
            Some(Err(error)) => {
                self.item.refused(core);
                return Err(error);
            }
            _ => {}
        }
        if key.peer != core.rank() {
            control.check_peer(key.kind.op(), key.peer)?;
        }
        match self.step {
            Step::Blocked => match self.item.offer(core) {
                None => return Ok(Progress::None),
                Some(offer) => {
                    let offer = offer?;
                    core.open_link(key.peer, deadline)?;
                    control.say(key, self.attempt, Message::Offer(offer))?;
                    self.step = Step::Offered;
                }
            },
            Step::Offered => match control.with_mailbox(|mailbox| mailbox.take_offer(key, self.attempt)) {
                None => return Ok(Progress::None),
                Some(offer) => {
                    self.item.build(core, offer)?;
                    control.say(key, self.attempt, Message::Done(Ok(())))?;
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

    fn end(self, core: &Arc<Core>, result: Result<()>) {
        let control = core.control();
        if let Err(error) = &result {
            log::debug!("setup: {}: {error}", self.key);
            // The peer's item may be waiting for this one. If it cannot be told, it is gone or will see us go. Once our
            // end was built that has been said, and is not taken back.
            let reachable = self.key.peer == core.rank() || control.link(self.key.peer).is_some();
            if self.step != Step::Built && reachable {
                let told = control.say(self.key, self.attempt, Message::Done(Err(error.duplicate())));
                if let Err(untold) = told {
                    log::debug!("setup: cannot tell rank {}: {untold}", self.key.peer);
                }
            }
        }
        control.with_mailbox(|mailbox| mailbox.end(self.key, self.attempt));
        self.item.finish(core, result);
    }
}
