//! Control of a [`Reactor`](super::Reactor)'s pollables from other threads.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::commands::{Command, Commands};
use super::link::LinkService as _;
use super::pollable::{Interest, Pollable};

/// Handle to a pollable that a reactor serves, for other threads. Dropping it does not end the service.
#[derive(Clone)]
pub struct Registration {
    commands: Arc<Commands>,
    id: u64,
}

impl Registration {
    pub(super) fn new(commands: Arc<Commands>, id: u64) -> Self {
        Self { commands, id }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Serves `thing` here from now on.
    pub fn serve(&self, thing: Arc<dyn Pollable>) {
        self.commands.push(Command::Serve(self.id, thing));
    }

    /// Has [`Pollable::progress`] called soon.
    pub fn nudge(&self) {
        self.commands.push(Command::Nudge(self.id));
    }

    /// Changes what the service thread waits for on `fd`, the descriptor of this, until the next progress.
    pub fn watch(&self, fd: BorrowedFd<'_>, interest: Interest) {
        self.commands.watch(fd, interest.bits(), self.id);
    }

    /// Ends the service.
    pub fn forget(&self) {
        self.commands.push(Command::Forget(self.id));
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.id)
    }
}
