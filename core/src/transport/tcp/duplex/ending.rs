//! The end of a connection whose owner has gone, and what an abort makes of it.

use std::sync::Arc;

use super::super::super::service::Delivery;
use super::Duplex;
use crate::abort::{AbortCause, AbortListener};
use crate::error::Error;
use crate::sync::{Ordering, lock};

impl Duplex {
    /// The owner has gone. Delivers what was taken.
    pub(in super::super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(lost) = self.lost() {
            self.outstanding.report(lost);
        }
        // Tells the peer what has landed before the caller can end the process, and the service thread with it. In a forked
        // child the socket is the parent's.
        if !self.creator.forked() {
            let (_, _, spent) = self.turn(true);
            spent.dispose(&self.disposer);
        }
        self.go_on_closing();
    }

    /// Lets the service thread go on with a connection whose owner has gone; gives it up where that cannot.
    fn go_on_closing(&self) {
        if self.is_attached() {
            self.registration.nudge();
        } else if let Some(cause) = self.abort.cause() {
            // No peer will connect any more.
            self.fail(&cause.to_error("connect"), false);
        }
    }
}

impl Delivery for Duplex {
    fn peer(&self) -> u32 {
        self.peer
    }

    fn is_delivered(&self) -> bool {
        let settled = {
            let mut outbox = lock(&self.outbox);
            outbox.ask();
            outbox.is_settled()
        };
        if !settled {
            // The service thread sends it.
            self.registration.nudge();
        }
        settled || self.failure.has_failed()
    }

    fn lost(&self) -> Option<Error> {
        self.failure.untold().filter(|_| self.lost.load(Ordering::Acquire))
    }

    fn is_undelivered(&self) -> bool {
        if self.failure.has_failed() || !self.closing.load(Ordering::Acquire) {
            return false;
        }
        let outbox = lock(&self.outbox);
        let gone = outbox.is_empty() && (self.said_bye.load(Ordering::Acquire) || !self.is_attached());
        !(outbox.is_settled() && gone)
    }
}

impl AbortListener for Duplex {
    fn aborted(&self, _: &AbortCause) {
        // A stream must not wait for a peer that may not answer any more.
        self.completion.release();
        if self.closing.load(Ordering::Acquire) {
            self.go_on_closing();
        }
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        let (outbox, inbox, completion) = (self.outbox.clone(), self.inbox.clone(), self.completion.clone());
        // Operations in flight, if there are any, hold the group.
        let spent = {
            lock(&inbox).close();
            let mut outbox = lock(&outbox);
            outbox.close();
            outbox.take_spent()
        };
        spent.dispose(&self.disposer);
        self.disposer.free(Arc::new((outbox, inbox, completion)));
    }
}
