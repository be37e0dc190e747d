//! How other threads reach a service thread: a queue of commands, and an eventfd that wakes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::frame::Decoder;
use super::link::{Link, LinkService};
use super::listener::Listener;
use super::pollable::Pollable;
use super::stream::Stream;
use super::sys::{self, Epoll, EventFd};
use crate::error::Error;
use crate::sync::{Mutex, lock};

/// The epoll token of the queue itself. Links, listeners and other sockets have higher ones.
pub(super) const WAKE: u64 = 0;

/// Takes the connections of a listener; false once it wants no more.
pub type Acceptor = Box<dyn FnMut(Stream) -> bool + Send>;

/// Queue of commands for a service thread, and the epoll instance on which that thread waits.
pub(super) struct Commands {
    epoll: Epoll,
    event: EventFd,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    commands: Vec<Command>,
    /// Why the service thread has ended and obeys no more.
    ended: Option<Error>,
}

/// A request of another thread to the service thread. Clients reserve the ids it contains.
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

impl Commands {
    pub(super) fn new() -> io::Result<Self> {
        let commands = Self { epoll: Epoll::new()?, event: EventFd::new()?, queue: Mutex::default() };
        commands.epoll.add(commands.event.as_fd(), sys::READ, WAKE)?;
        Ok(commands)
    }

    /// Adds a command and wakes the service thread; refuses the command here if that thread has ended. Call without locks
    /// that a pollable takes when it hears that it is not served.
    pub(super) fn push(&self, command: Command) {
        let mut queue = lock(&self.queue);
        if let Some(why) = queue.ended.clone() {
            drop(queue);
            return command.refuse(&why);
        }
        queue.commands.push(command);
        drop(queue);
        self.event.notify();
    }

    /// Waits for events: token and what is ready of each. For the service thread.
    pub(super) fn wait(&self, timeout_ms: i32, events: &mut Vec<(u64, u32)>) -> io::Result<()> {
        self.epoll.wait(timeout_ms, events)
    }

    /// Ends the event [`WAKE`]. To be called before [`take`](Self::take), or a command could be missed.
    pub(super) fn clear_wake(&self) {
        self.event.clear();
    }

    /// The commands since the last call.
    pub(super) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut lock(&self.queue).commands)
    }

    /// Has every later command refused because of `why`. Returns those that nobody has taken.
    pub(super) fn end(&self, why: &Error) -> Vec<Command> {
        let mut queue = lock(&self.queue);
        queue.ended = Some(why.clone());
        std::mem::take(&mut queue.commands)
    }
}

impl Command {
    /// Tells those whom the command would have served that the service thread has ended.
    pub(super) fn refuse(self, why: &Error) {
        match self {
            Self::Add(link, _) => link.inner.fail(why.clone()),
            Self::Serve(_, thing) => unserved(&*thing, why),
            _ => {}
        }
    }
}

/// Tells a pollable that it is not served. It may panic, which must not keep others from being told.
pub(super) fn unserved(thing: &dyn Pollable, why: &Error) {
    drop(catch_unwind(AssertUnwindSafe(|| thing.unserved(why))));
}

impl LinkService for Commands {
    fn register(&self, fd: BorrowedFd<'_>, events: u32, id: u64) -> io::Result<()> {
        self.epoll.add(fd, events, id)
    }

    fn unregister(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.remove(fd);
    }

    fn watch(&self, fd: BorrowedFd<'_>, events: u32, id: u64) {
        let _ = self.epoll.modify(fd, events, id);
    }

    fn close(&self, id: u64) {
        self.push(Command::Close(id));
    }

    fn failed(&self, id: u64) {
        self.push(Command::Failed(id));
    }

    fn rest(&self, id: u64) {
        self.push(Command::Rest(id));
    }
}

impl std::fmt::Debug for Commands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commands").finish_non_exhaustive()
    }
}
