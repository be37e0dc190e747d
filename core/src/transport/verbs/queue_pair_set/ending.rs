//! The end of a connection whose owner has gone, and what an abort or an event of its NIC makes of it.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::super::super::service::Delivery;
use super::super::nics::Watcher;
use super::QueuePairSet;
use crate::abort::{AbortCause, AbortListener};
use crate::error::Error;
use crate::rdma::{About, AsyncEvent};
use crate::sync::{Ordering, lock};

impl QueuePairSet {
    /// The owner has gone: the service thread goes on until what was taken is done.
    pub(in super::super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(lost) = self.lost() {
            self.outstanding.report(lost);
        }
        self.registration.nudge();
    }
}

impl Delivery for QueuePairSet {
    fn peer(&self) -> u32 {
        self.peer
    }

    fn is_delivered(&self) -> bool {
        // Polls, and makes sure that the latest requests are known to have completed. Failures are found by the next call.
        let mut state = lock(&self.state);
        let looked = if self.failure.has_failed() {
            Ok(())
        } else {
            self.look(&mut state, true).and_then(|_| state.cover()).map(drop)
        };
        let (idle, spent) = (state.is_idle(), std::mem::take(&mut state.spent));
        drop(state);
        drop(spent);
        if let Err(error) = looked {
            self.give_up(&error);
        }
        idle || self.failure.has_failed()
    }

    fn lost(&self) -> Option<Error> {
        self.failure.untold().filter(|_| self.lost.load(Ordering::Acquire))
    }

    fn is_undelivered(&self) -> bool {
        !self.failure.has_failed() && self.closing.load(Ordering::Acquire) && !lock(&self.state).is_idle()
    }
}

impl AbortListener for QueuePairSet {
    fn aborted(&self, _: &AbortCause) {
        // A stream must not wait for a peer that may not answer any more.
        self.completion.release();
        if self.closing.load(Ordering::Acquire) {
            self.registration.nudge();
        }
    }
}

impl Watcher for QueuePairSet {
    fn heard(&self, event: &AsyncEvent) {
        let concerned = match event.about {
            About::QueuePair(number) => {
                lock(&self.state).queues.iter().any(|l| l.queue_pair.number() == number)
            }
            About::CompletionQueue(number) => self.completions.number() == number,
            About::Device | About::Port(_) => true,
            About::Other => false,
        };
        if let Some(error) = event.error().filter(|_| concerned) {
            self.give_up(&error);
        }
    }
}

impl Drop for QueuePairSet {
    fn drop(&mut self) {
        let (rest, landing) = lock(&self.state).dismantle();
        // SAFETY: taken once, here, and not used after.
        let completion = unsafe { ManuallyDrop::take(&mut self.completion) };
        // This may be the service thread, and the drop may block: it may be the last that keeps the group.
        self.disposer.dispose(rest);
        self.disposer.free(Arc::new((completion, landing)));
    }
}
