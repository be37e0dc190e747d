//! How other threads reach a service thread: a list of commands, and an eventfd that wakes it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::frame::Decoder;
use super::link::Link;
use super::listener::Listener;
use super::pollable::{Acceptor, Pollable};
use super::sys::{self, Epoll, EventFd};
use crate::sync::{Mutex, lock};

/// The epoll token of the bell itself; what is served has others.
pub(super) const BELL: u64 = 0;

/// What a service thread waits for, and what it has been asked to do.
pub(super) struct Bell {
    epoll: Epoll,
    event: EventFd,
    commands: Mutex<Vec<Command>>,
}

/// What other threads ask of the service thread. Numbers are those that its clients reserved.
pub(super) enum Command {
    Add(Link, Decoder),
    Listen(Box<Listener>),
    Accept(u64, Box<Listener>, Acceptor),
    Serve(u64, Arc<dyn Pollable>),
    Nudge(u64),
    Forget(u64),
    StopListening { unix: bool },
    Close(u64),
    Failed(u64),
    Rest(u64),
    Stop,
}

impl Bell {
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = Self { epoll: Epoll::new()?, event: EventFd::new()?, commands: Mutex::default() };
        bell.epoll.add(bell.event.as_fd(), sys::READ, BELL)?;
        Ok(bell)
    }

    /// Asks for something.
    pub(super) fn ring(&self, command: Command) {
        lock(&self.commands).push(command);
        self.event.notify();
    }

    /// Waits for events: token and what is ready of each. For the service thread.
    pub(super) fn wait(&self, timeout_ms: i32, events: &mut Vec<(u64, u32)>) -> std::io::Result<()> {
        self.epoll.wait(timeout_ms, events)
    }

    /// Silences the bell, before [`take`](Self::take).
    pub(super) fn heard(&self) {
        self.event.clear();
    }

    /// What was asked for since the last call.
    pub(super) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *lock(&self.commands))
    }

    /// Has the service thread serve a socket under the number `id`.
    pub(super) fn register(&self, fd: BorrowedFd<'_>, events: u32, id: u64) -> std::io::Result<()> {
        self.epoll.add(fd, events, id)
    }

    /// Ends the service of a descriptor; does nothing for one that is not served.
    pub(super) fn unregister(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.remove(fd);
    }

    /// Has the service thread close the link `id` in an orderly way.
    pub(super) fn close(&self, id: u64) {
        self.ring(Command::Close(id));
    }

    /// Has the service thread serve `thing` under the number `id`.
    pub(super) fn serve(&self, id: u64, thing: Arc<dyn Pollable>) {
        self.ring(Command::Serve(id, thing));
    }

    /// Has the service thread look at what it serves under `id`.
    pub(super) fn nudge(&self, id: u64) {
        self.ring(Command::Nudge(id));
    }

    /// Ends the service of what has the number `id`.
    pub(super) fn forget(&self, id: u64) {
        self.ring(Command::Forget(id));
    }

    /// Tells the service thread that the link `id` has failed.
    pub(super) fn failed(&self, id: u64) {
        self.ring(Command::Failed(id));
    }

    /// Has the service thread leave the link `id` alone for a while, because it needs descriptors that nobody has.
    pub(super) fn rest(&self, id: u64) {
        self.ring(Command::Rest(id));
    }

    /// Changes what the service thread waits for on a link; does nothing for one it does not serve.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, events: u32, id: u64) {
        let _ = self.epoll.modify(fd, events, id);
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}
