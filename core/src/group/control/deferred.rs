//! Drops that may block are deferred to a thread that may wait: the service thread must not, because waiting kernels rely on
//! it to be told to leave.
#![forbid(unsafe_code)]

use super::{Control, State};
use crate::group::subscriber::Deferred;
use crate::sync::{Ordering, lock};

impl Control {
    /// Keeps `what` until a call of the user's drops it.
    pub(crate) fn drop_elsewhere(&self, what: Deferred) {
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

    /// Tells the subscribers that `peer` is gone.
    pub(super) fn tell_gone(&self, state: &mut State, peer: u32) {
        self.subscribers.gone(peer, &mut state.released);
    }
}
