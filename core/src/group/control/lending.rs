//! What peers have of ours is kept for them until they give it back, and what is done with is dropped where that may wait.
#![forbid(unsafe_code)]

use super::{Control, State};
use crate::deadline::Deadline;
use crate::gpu::KeepAlive;
use crate::group::frames;
use crate::memory::ledger::{HoldId, Release};
use crate::sync::{Ordering, lock};

impl Control {
    /// Keeps what a service thread has done with until a call of the user's drops it: a drop may wait for the device, and
    /// the device for the service thread.
    pub(crate) fn drop_elsewhere(&self, what: KeepAlive) {
        if !self.forked() {
            let mut state = lock(&self.state);
            state.released.push(what);
            self.untidy.store(true, Ordering::Release);
        }
    }

    #[inline]
    pub(super) fn drop_released(&self) {
        if self.untidy.load(Ordering::Acquire) {
            self.tidy();
        }
    }

    #[cold]
    fn tidy(&self) {
        let released = {
            let mut state = lock(&self.state);
            self.untidy.store(false, Ordering::Release);
            std::mem::take(&mut state.released)
        };
        drop(released);
    }

    /// Gives back receipts of something that `peer` exported. Quiet if the peer is gone: it has them back already.
    pub(crate) fn give_back(&self, peer: u32, id: HoldId, count: u64) {
        if self.forked() {
            // The lock may have been held by a thread that the child does not have.
        } else if peer == self.rank {
            let released = lock(&self.state).holds.release(id, peer, count);
            drop(released);
            self.wake(&mut lock(&self.state));
        } else if let Err(error) =
            self.post(peer, frames::RELEASE, &Release { id, count }.encode(), Vec::new())
        {
            log::debug!("cannot give {id:?} back to rank {peer}: {error}");
        }
    }

    /// Keeps `keep` alive until `peer` gives it back or is gone.
    pub(crate) fn hold(&self, id: HoldId, keep: KeepAlive, peer: u32) {
        lock(&self.state).holds.hold(id, keep, peer);
    }

    /// Takes one receipt back that `peer` is known not to use.
    pub(crate) fn unhold(&self, id: HoldId, peer: u32) {
        let released = lock(&self.state).holds.release(id, peer, 1);
        drop(released);
    }

    /// The memory that peers still have open, taken out for good.
    pub(crate) fn take_held_memory(&self) -> Vec<KeepAlive> {
        lock(&self.state).holds.take_memory()
    }

    /// Waits until no peer has any of our memory open by a legacy handle; not any longer once the communicator has
    /// failed, because then nobody may be left to give it back.
    pub(crate) fn wait_released(&self, deadline: Deadline) -> bool {
        self.wait_until(deadline, |state| self.abort.is_aborted() || !state.holds.holds_memory());
        self.drop_released();
        !lock(&self.state).holds.holds_memory()
    }
}

impl State {
    pub(super) fn release_all(&mut self, peer: u32) {
        let released = self.holds.release_all(peer);
        self.released.extend(released);
    }
}
