//! Things with a socket of their own that a [`Reactor`](super::Reactor) serves beside its links.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::sys;
use crate::error::Error;

/// Something that makes progress when its descriptor is ready. Called on the service thread; must not wait.
pub trait Pollable: Send + Sync {
    /// The descriptor to watch; always the same.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Makes the progress that is possible now, and returns what to wait for.
    fn progress(&self) -> Next;

    /// Whether it still has something to send: a reactor that stops waits a little for that.
    fn lingers(&self) -> bool {
        false
    }

    /// The descriptor cannot be watched, or the service thread has failed: `progress` will not be called any more. Called on
    /// the service thread, or by [`Registration::serve`](super::Registration::serve) if that thread has ended.
    fn unserved(&self, why: &Error);
}

/// The condition on which the reactor calls [`Pollable::progress`] next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// These events of its descriptor.
    Wait(Interest),
    /// Interest was already set through [`Registration::watch`](super::Registration::watch), under the caller's own lock. If
    /// an instant is given, also calls `progress` then.
    Told(Option<Instant>),
    /// Work remains of which no descriptor tells: calls `progress` again at once.
    Again,
    /// Nothing: ends the service.
    Done,
}

/// Events of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read.
    pub read: bool,
    /// There is room to write.
    pub write: bool,
}

impl Interest {
    pub(super) fn bits(self) -> u32 {
        (if self.read { sys::READ } else { 0 }) | (if self.write { sys::WRITE } else { 0 })
    }
}
