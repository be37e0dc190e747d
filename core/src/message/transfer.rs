//! One read into memory that is no vector, a device's or the program's shared memory: in parts that are read into other memory and copied from
//! there, or brought to their places; or by copies of the device itself from memory of the owner's device that it has mapped.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::device::{DeviceMapping, ReadTarget, Underway};
use super::mappings::Mapping;
use super::placing::Placing;
use super::reading::{Completion, Finished};
use super::revocation::after_copying;
use super::tokens::Token;
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// Bytes that a device copies from mapped memory at a time.
const COPIED: usize = 8 << 20;
/// How many such copies of one read may be under way.
const MAX_COPIES: usize = 2;
/// How many of all reads of a link.
const MAX_OF_LINK: usize = 16;

/// A read into the memory of a device, or into shared memory.
pub(super) struct Transfer {
    pub(super) id: u64,
    pub(super) token: Token,
    pub(super) offset: u64,
    pub(super) deadline: Deadline,
    pub(super) completion: Completion,
    pub(super) target: Box<dyn ReadTarget>,
    /// The target, if this side's RDMA device may write there.
    pub(super) place: Option<Placing>,
}

/// One that is under way.
pub(super) struct Open {
    pub(super) transfer: Transfer,
    pub(super) length: usize,
    pub(super) way: Way,
    /// Bytes for which parts, or copies from mapped memory, were begun.
    pub(super) begun: usize,
    /// Its owner has checked the token, or is about to.
    pub(super) asked: bool,
    /// Its parts in the queue of reads: the number of each, and the place of its bytes.
    pub(super) parts: Vec<(u64, usize)>,
    /// Parts that have come, for which no staging memory was free.
    pub(super) come: VecDeque<(usize, Vec<u8>)>,
    pub(super) copies: VecDeque<Box<dyn Underway>>,
    /// It ends with this error as soon as the device writes nothing more.
    pub(super) failed: Option<Error>,
    pub(super) failed_at: Option<Instant>,
    /// It was cancelled or is too late, so that it does not wait for its turn.
    pub(super) early: bool,
}

/// How the bytes come.
pub(super) enum Way {
    Undecided,
    /// The owner was asked for a handle.
    Asking,
    Mapped(Arc<Mapped>),
    Parts,
}

/// Memory of a peer's device, mapped for one of this side's.
pub(super) struct Mapped {
    pub(super) token: Token,
    pub(super) device: Option<usize>,
    /// The page with the word of the exposure.
    pub(super) word: Mapping,
    pub(super) memory: Arc<dyn DeviceMapping>,
}

/// The outcome of [`Transfers::step`](super::transfers::Transfers::step).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// How much has happened.
    pub(super) moved: usize,
    /// Copies that are under way.
    pub(super) copies: usize,
    /// Another turn is needed, and no descriptor tells of it: a device copies, or staging memory is short.
    pub(super) waits: bool,
}

impl Open {
    /// Whether a part is to be asked for. One without bytes is, too: its owner checks the token.
    pub(super) fn wants_part(&self) -> bool {
        self.begun < self.length || !self.asked
    }

    /// Whether nothing is left to do.
    pub(super) fn is_over(&self) -> bool {
        let is_done = !self.wants_part() && self.parts.is_empty() && self.come.is_empty();
        let is_decided = !matches!(self.way, Way::Undecided | Way::Asking);
        self.copies.is_empty() && (self.failed.is_some() || is_decided && is_done)
    }

    /// Keeps why it failed, if it had not; returns the numbers of its parts.
    pub(super) fn fail(&mut self, why: Error) -> Vec<u64> {
        if self.failed.is_none() {
            (self.failed, self.failed_at) = (Some(why), Some(Instant::now()));
        }
        self.come.clear();
        std::mem::take(&mut self.parts).into_iter().map(|(id, _)| id).collect()
    }

    pub(super) fn end(self) -> Finished {
        let Transfer { id, completion, target, place, .. } = self.transfer;
        let outcome = self.failed.map_or(Ok(Vec::new()), Err);
        Finished { id, completion, outcome, transfer: None, target: Some((target, place)) }
    }

    /// Looks which copies have ended, and begins others.
    pub(super) fn advance(
        &mut self,
        revoked: &dyn Fn() -> Error,
        spare: &mut Vec<u8>,
        turn: &mut Turn,
    ) -> Result<()> {
        while let Some(copy) = self.copies.front_mut() {
            let done = copy.is_done();
            if matches!(done, Ok(false)) {
                break;
            }
            self.copies.pop_front();
            turn.moved += 1;
            turn.copies -= 1;
            done?;
        }
        if self.failed.is_some() {
            turn.waits |= !self.copies.is_empty();
            return Ok(());
        }
        if let Way::Mapped(mapped) = &self.way {
            // Looked at after the copies, too: what the owner writes after it has revoked is never taken for data.
            after_copying();
            if mapped.word.is_revoked() {
                return Err(revoked());
            }
            let mapped = mapped.clone();
            self.asked = true;
            while self.begun < self.length && self.copies.len() < MAX_COPIES && turn.copies < MAX_OF_LINK {
                let length = COPIED.min(self.length - self.begun);
                let from = self.transfer.offset + self.begun as u64;
                let copy = self.transfer.target.copy(self.begun, &mapped.memory, from, length)?;
                let Some(copy) = copy else { break };
                self.copies.push_back(copy);
                self.begun += length;
                turn.moved += 1;
                turn.copies += 1;
            }
            turn.waits |= self.begun < self.length;
        }
        while let Some((at, bytes)) = self.come.front() {
            if !bytes.is_empty() {
                let Some(copy) = self.transfer.target.put(*at, bytes)? else { break };
                self.copies.push_back(copy);
                turn.copies += 1;
            }
            turn.moved += 1;
            if let Some((_, bytes)) = self.come.pop_front()
                && bytes.capacity() > spare.capacity()
            {
                *spare = bytes;
            }
        }
        turn.waits |= self.copies.iter().any(|copy| !copy.is_told()) || !self.come.is_empty();
        Ok(())
    }
}
