//! Things with a socket of their own that a [`Reactor`](super::Reactor) serves beside its links.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::sys;
use crate::error::Error;

/// Something that makes progress when its descriptor is ready. Called on the service thread; must not wait.
pub trait Pollable: Send + Sync {
    /// What to watch; the same for ever.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Does what can be done now, and says what to wait for.
    fn progress(&self) -> Next;

    /// Whether it has something to send yet: a reactor that stops waits for that a little while.
    fn lingers(&self) -> bool {
        false
    }

    /// It cannot be served.
    fn unserved(&self, why: &Error);
}

/// What a [`Pollable`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// These events of its descriptor.
    Wait(Interest),
    /// What it has told [`Registration::watch`] itself, under a lock of its own that orders this with other threads; and, if
    /// a time is given, that time.
    Told(Option<Instant>),
    /// Something that no descriptor tells of: it is asked again at once.
    Again,
    /// Nothing: it is no longer served.
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
