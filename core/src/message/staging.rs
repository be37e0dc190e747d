//! Memory of a device on its way to a peer: staged in the host's memory, some parts ahead of what is sent.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::device::{DeviceMemory, STAGED, Staged};
use super::lent::Lent;
use crate::error::Result;

/// Parts of one read that are staged beside the one that is sent.
const AHEAD: usize = 2;

/// The parts of one read that are staged.
#[derive(Default)]
pub(super) struct Staging {
    /// Bytes that were not sent, and of which copies were begun.
    begun: u64,
    copies: VecDeque<Box<dyn Staged>>,
    /// The parts that have come, in order; the first one as far as it was not sent.
    come: VecDeque<Lent>,
}

/// The next bytes of a read.
pub(super) enum Next {
    Bytes(Lent),
    /// They have not come yet, or no staging memory is free: another turn is needed, and no descriptor tells of it.
    Later,
}

impl Staging {
    /// The next bytes of the `left` that are still to be sent from `offset` on, at most `most`.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn next(
        &mut self,
        memory: &dyn DeviceMemory,
        (offset, left): (u64, u64),
        most: usize,
    ) -> Result<Next> {
        if left == 0 {
            return Ok(Next::Bytes(Lent::of(Vec::new())));
        }
        while self.copies.len() + self.come.len().saturating_sub(1) < AHEAD && self.begun < left {
            // Within the memory: the caller has checked the range.
            let length = (STAGED as u64).min(left - self.begun);
            match memory.stage((offset + self.begun) as usize, length as usize)? {
                Some(copy) => self.copies.push_back(copy),
                None => break,
            }
            self.begun += length;
        }
        // Also those that cannot be sent yet: others wait for the staging memory, and the peer may never read.
        while let Some(copy) = self.copies.front_mut()
            && let Some(bytes) = copy.poll()?
        {
            self.copies.pop_front();
            self.come.push_back(Lent::of(bytes));
        }
        let Some(come) = self.come.front() else { return Ok(Next::Later) };
        let bytes = come.slice(0, most.min(come.len())).expect("within");
        Ok(Next::Bytes(bytes))
    }

    /// Whether a device copies, so that staging memory is taken.
    pub(super) fn is_copying(&self) -> bool {
        !self.copies.is_empty()
    }

    /// `length` of the bytes that came last were sent.
    pub(super) fn sent(&mut self, length: u64) {
        self.begun = self.begun.saturating_sub(length);
        if let Some(come) = self.come.pop_front()
            && let Some(rest) = come.len().checked_sub(length as usize).filter(|rest| *rest > 0)
            && let Some(rest) = come.slice(length as usize, rest)
        {
            self.come.push_front(rest);
        }
    }
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staging").field("begun", &self.begun).field("copies", &self.copies.len()).finish()
    }
}
