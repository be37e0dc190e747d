//! Memory of a device on its way to a peer: staged in the host's memory, some parts ahead of what is sent.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::device::{DeviceMemory, STAGED, Staged};
use super::lent::Lent;
use crate::error::Result;

/// Parts of one read that are staged at a time: the device copies one while another is sent.
const AHEAD: usize = 2;

/// The parts of one read that are staged.
#[derive(Default)]
pub(super) struct Staging {
    /// Bytes that were not sent, and of which copies were begun.
    begun: u64,
    copies: VecDeque<Box<dyn Staged>>,
    /// The part that has come, as far as it was not sent.
    come: Option<Lent>,
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
        memory: &Arc<dyn DeviceMemory>,
        (offset, left): (u64, u64),
        most: usize,
    ) -> Result<Next> {
        if left == 0 {
            return Ok(Next::Bytes(Lent::of(Vec::new())));
        }
        while self.copies.len() < AHEAD && self.begun < left {
            // Within the memory: the caller has checked the range.
            let length = (STAGED as u64).min(left - self.begun);
            match memory.stage((offset + self.begun) as usize, length as usize)? {
                Some(copy) => self.copies.push_back(copy),
                None => break,
            }
            self.begun += length;
        }
        if self.come.is_none() {
            let Some(copy) = self.copies.front_mut() else { return Ok(Next::Later) };
            let Some(bytes) = copy.poll()? else { return Ok(Next::Later) };
            self.copies.pop_front();
            self.come = Some(Lent::of(bytes));
        }
        let come = self.come.as_ref().expect("it has come");
        let bytes = come.slice(0, most.min(come.len())).expect("within");
        Ok(Next::Bytes(bytes))
    }

    /// `length` of the bytes that came last were sent.
    pub(super) fn sent(&mut self, length: u64) {
        self.begun = self.begun.saturating_sub(length);
        self.come = self.come.take().and_then(|come| {
            let rest = come.len().checked_sub(length as usize)?;
            come.slice(length as usize, rest).filter(|_| rest > 0)
        });
    }
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staging").field("begun", &self.begun).field("copies", &self.copies.len()).finish()
    }
}
