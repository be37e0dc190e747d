//! One turn of the service thread for a connection, and the events that bring the next.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::super::super::idle::Activity;
use super::super::super::service::Delivery;
use super::super::request::Operation;
use super::super::send_queue::SendQueue;
use super::QueuePairSet;
use crate::error::Error;
use crate::net::{Interest, Next, Pollable};
use crate::sync::{Ordering, lock};

impl Pollable for QueuePairSet {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn progress(&self) -> Next {
        const IDLE: Next = Next::Wait(Interest { read: false, write: false });
        let closing = self.closing.load(Ordering::Acquire);
        if self.failure.has_failed() {
            return if closing { Next::Done } else { IDLE };
        }
        if let Some(cause) = self.abort.cause().filter(|_| closing) {
            // An abort gives up what is outstanding.
            self.give_up(&cause.to_error("connection"));
            return Next::Done;
        }
        // Asked for before looking: what completes after the look makes the channel readable.
        let armed = self.channel.clear().and_then(|_| self.completions.request_event());
        let mut state = lock(&self.state);
        let before = state.posted();
        let waits = match armed.and_then(|()| self.look(&mut state, true)) {
            Ok(waits) => waits,
            Err(error) => {
                drop(state);
                self.give_up(&error);
                return self.progress();
            }
        };
        let posted = state.posted();
        if posted != before {
            // The timer may have run out while they were held back, and perhaps no call follows that starts it again.
            state.idle.arm();
        }
        let activity = state.idle.look(posted, Instant::now);
        let covered = if activity == Activity::Idle || closing { state.cover() } else { Ok(true) };
        if let Ok(false) = covered {
            // There is room once some have completed.
            state.idle.arm();
        }
        state.settling = !state.is_idle() && (state.settling || activity == Activity::Idle);
        let idle = state.is_idle();
        let stuck = state.failed.has_failed()
            || matches!(state.waiting.front(), Some(Operation::After(_)))
            || state.queues.iter().any(SendQueue::has_unposted);
        let served = !state.marks.is_empty() && self.serviced.load(Ordering::Acquire);
        let read = waits || closing || served || state.settling || self.arrivals.is_some();
        let spent = std::mem::take(&mut state.spent);
        drop(state);
        if !spent.is_empty() {
            let (regions, remotes): (Vec<_>, Vec<_>) = spent.into_iter().unzip();
            self.disposer.free(Arc::new(regions));
            self.disposer.dispose(remotes);
        }
        if let Err(error) = covered {
            self.give_up(&error);
            return self.progress();
        }
        let interest = Interest { read, write: false };
        match activity {
            _ if closing && idle => Next::Done,
            _ if stuck => Next::Again,
            Activity::Busy(until) => {
                self.registration.watch(self.fd(), interest);
                Next::Told(Some(until))
            }
            // Requests that completed before one asked for a completion have made no event.
            Activity::Idle => Next::Again,
            Activity::Off => Next::Wait(interest),
        }
    }

    fn lingers(&self) -> bool {
        self.is_undelivered()
    }

    fn unserved(&self, why: &Error) {
        self.give_up(why);
    }
}
