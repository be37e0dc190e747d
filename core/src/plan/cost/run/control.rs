//! Signals, waits, semaphores and barriers.

use super::super::ir::{Barrier, Channel};
use super::links::{Time, micros};
use super::state::{Run, Waited};

impl Waited {
    /// Notes an arrival; returns the block that waited for it.
    fn give(&mut self, at: Time) -> Option<u32> {
        self.arrivals.push_back(at);
        self.waiters.pop_front()
    }
}

impl Run<'_, '_> {
    pub(super) fn signal(&mut self, index: u32, channel: Channel, relaxed: bool) -> Time {
        let costs = self.costs;
        let state = &mut self.blocks[index as usize];
        // Lanes of a warp signal at once, so that one release is paid for signals in a row.
        let release = if relaxed || state.signalled { 0 } else { costs.release };
        state.control += costs.step + release;
        let (rank, until) = (state.rank, state.control);
        self.arrive(rank, channel, until + costs.signal);
        until
    }

    /// Notes a signal of a rank's channel at its other end.
    pub(super) fn arrive(&mut self, rank: u32, channel: Channel, at: Time) {
        let Some(other) = self.ends_of.other(self.ends_of.end(rank, channel)) else { return };
        if let Some(waiter) = self.signals[other].give(at) {
            self.wake(waiter, at);
        }
    }

    pub(super) fn wait(&mut self, index: u32, channel: Channel) -> Option<Time> {
        let end = self.ends_of.end(self.blocks[index as usize].rank, channel);
        let step = self.costs.step;
        let waited = &mut self.signals[end];
        take(waited, &mut self.blocks[index as usize].control, index, step)
    }

    pub(super) fn acquire(&mut self, index: u32, semaphore: u32) -> Option<Time> {
        let rank = self.blocks[index as usize].rank;
        let waited = &mut self.ranks[rank as usize].semaphores[semaphore as usize];
        take(waited, &mut self.blocks[index as usize].control, index, self.costs.step)
    }

    pub(super) fn release(&mut self, index: u32, semaphore: u32) -> Time {
        let state = &mut self.blocks[index as usize];
        state.control += self.costs.step;
        let (rank, until) = (state.rank, state.control);
        let at = until + micros(self.machine.semaphore_us);
        let waiter = self.ranks[rank as usize].semaphores[semaphore as usize].give(at);
        if let Some(waiter) = waiter {
            self.wake(waiter, at);
        }
        until
    }

    /// The last of the blocks that meet ends the operation for all.
    pub(super) fn meet(&mut self, index: u32, barrier: Barrier) -> Option<Time> {
        let now = self.now(index);
        let rank = self.blocks[index as usize].rank;
        let barriers = &mut self.ranks[rank as usize].barriers;
        let (came, last) = barriers.entry(barrier.id).or_default();
        came.push(index);
        *last = now.max(*last);
        if came.len() < barrier.blocks as usize {
            return None;
        }
        let until = *last + micros(self.machine.barrier_us);
        let came = std::mem::take(came);
        barriers.remove(&barrier.id);
        for other in came {
            let state = &mut self.blocks[other as usize];
            (state.threads, state.control) = (until, until);
            if other != index {
                let since = state.since.unwrap_or(until);
                // A barrier that is too long for a timeline is noticed by the block that came last.
                let _ = self.done(other, since, until);
                self.wake(other, until);
            }
        }
        Some(until)
    }
}

/// Takes what has arrived first, or notes the block.
fn take(waited: &mut Waited, control: &mut Time, index: u32, step: Time) -> Option<Time> {
    let Some(at) = waited.arrivals.pop_front() else {
        waited.waiters.push_back(index);
        return None;
    };
    *control = (*control).max(at) + step;
    Some(*control)
}
