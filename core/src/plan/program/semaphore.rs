//! Semaphores between the blocks of a rank.

use super::blocks::SyncType;
use super::ir::Op;
use super::record::{Call, Recorder};

/// A count that blocks of one rank raise and take from.
#[derive(Clone, Copy, Debug)]
pub struct Semaphore<'p> {
    recorder: &'p Recorder,
    rank: u32,
    index: u32,
}

impl<'p> Semaphore<'p> {
    pub(super) fn new(call: Call, recorder: &'p Recorder, rank: u32, initial_value: u32) -> Self {
        let added = recorder.declare(call, rank, |plan| {
            plan.semaphores.push(initial_value);
            Ok(plan.semaphores.len() - 1)
        });
        let index = added.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
        Self { recorder, rank, index }
    }

    /// Waits until the count is positive and takes one.
    #[track_caller]
    pub fn acquire(&self, tb: u32, sync: SyncType) {
        let op = Op::Acquire { semaphore: self.index };
        self.recorder.op(Call::of("Semaphore::acquire"), (self.rank, tb), sync, Ok(op));
    }

    /// Adds one to the count and publishes what the block had synced before.
    #[track_caller]
    pub fn release(&self, tb: u32, sync: SyncType) {
        let op = Op::Release { semaphore: self.index };
        self.recorder.op(Call::of("Semaphore::release"), (self.rank, tb), sync, Ok(op));
    }
}
