//! The calls that register callbacks, make progress and dispatch.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::dispatch::{PeerEvent, dispatch, poll};
use super::exposed::Exposed;
use super::handlers::Queue;
use super::memory::Memory;
use super::messenger::Messenger;
use super::received::Message;
use super::thread::Runner;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::lock;

/// How long a thread of the messenger's own sleeps at most; whatever happens wakes it sooner.
const NAP: Duration = Duration::from_secs(60);
/// How long a thread sleeps at most that waits for something which another thread may bring about.
const GLANCE: Duration = Duration::from_millis(10);

impl Messenger {
    /// Runs `callback` for each message of `kind`, in [`dispatch`](Self::dispatch). Several threads may dispatch: messages of
    /// one peer come one after the other, in order, those of different peers may come at the same time. A callback may send, read and
    /// connect; while it runs, other messages of its peer wait, and nothing else. One that panics is logged; what follows is
    /// dispatched all the same. A callback stays registered as long as the messenger.
    ///
    /// # Errors
    /// `InvalidUsage` if something is registered for `kind` already; a queue only until its last clone is dropped.
    pub fn on(&self, kind: u16, callback: impl Fn(Message) + Send + Sync + 'static) -> Result<()> {
        self.core.engine.handlers.set_callback("on", kind, callback)
    }

    /// Collects messages of `kind` for those who poll. Once the last clone of the queue is dropped, `kind` can be registered
    /// again.
    ///
    /// # Errors
    /// `InvalidUsage` if something is registered for `kind` already.
    pub fn queue(&self, kind: u16) -> Result<Queue> {
        self.core.engine.handlers.set_queue("queue", kind)
    }

    /// Runs `callback`, in [`dispatch`](Self::dispatch), when a peer has connected to this messenger, before the messages that it
    /// sends there, and when any peer is gone, after its last message.
    ///
    /// # Errors
    /// `InvalidUsage` the second time.
    pub fn on_peer(&self, callback: impl Fn(PeerEvent) + Send + Sync + 'static) -> Result<()> {
        let set = self.core.watcher.set(Box::new(callback));
        set.map_err(|_| Error::usage("on_peer", "a callback for peers is registered already"))
    }

    /// Lets peers that have its token read `memory`, until the result is dropped.
    ///
    /// # Errors
    /// `Exhausted` if a million pieces are exposed already; `InvalidUsage` in a forked child; for device memory also a driver error, for
    /// instance that no more host memory can be locked.
    pub fn expose(&self, memory: impl Into<Memory>) -> Result<Exposed> {
        self.core.engine.hub.check_process("expose")?;
        self.core.engine.hub.exposures.expose(memory.into())
    }

    /// Moves bytes that can be moved now; runs no code of the user's. Returns how much has happened, 0 if nothing, or if
    /// another thread is at it.
    ///
    /// # Errors
    /// `System` if the operating system does not let it wait for events. What goes wrong with a peer ends that peer only.
    pub fn progress(&self) -> Result<usize> {
        self.core.engine.hub.check_process("progress")?;
        self.core.engine.advance(None)
    }

    /// Runs at most `max` callbacks and completions; returns how many ran, none in a forked child.
    pub fn dispatch(&self, max: usize) -> usize {
        if self.core.engine.hub.forked() {
            return 0;
        }
        dispatch(&self.core.engine, self.core.watcher.get().map(|watcher| &**watcher), max)
    }

    /// Makes progress and dispatches; returns how much has happened.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn poll(&self) -> Result<usize> {
        self.core.engine.hub.check_process("progress")?;
        poll(&self.core.engine, self.core.watcher.get().map(|watcher| &**watcher))
    }

    /// Makes progress and dispatches on a thread of its own from now on, until the messenger is closed. Each call adds a thread: with
    /// `n` of them, `n - 1` peers whose callbacks take long hold up no other peer, see [`on`](Self::on). Other threads may poll all the same.
    ///
    /// # Errors
    /// `System` if there are no more threads.
    pub fn start_thread(&self) -> Result<()> {
        self.core.engine.hub.check_process("start_thread")?;
        let core = self.core.clone();
        let turn = move || {
            let moved = poll(&core.engine, core.watcher.get().map(|watcher| &**watcher))?;
            if moved > 0 { Ok(()) } else { core.engine.sleep_until(Deadline::after(NAP)) }
        };
        lock(&self.runners).push(Runner::start(turn)?);
        Ok(())
    }

    /// Sleeps until there is something to [`poll`](Self::poll) for, a send or read of any thread that was refused may be tried again, or
    /// `deadline`. False at the deadline. It may return early.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn wait(&self, deadline: impl Into<Deadline>) -> Result<bool> {
        let deadline = deadline.into();
        let engine = &self.core.engine;
        engine.hub.check_process("wait")?;
        engine.sleep_until(deadline)?;
        Ok(!deadline.expired())
    }

    /// [Polls](Self::poll), asleep while there is nothing to do, until `done` gives something: the message of a queue, for example, or what
    /// a completion has sent to a channel. If other threads poll, too, it looks again every 10 ms at the latest. Callbacks should not wait here:
    /// they hold up the other messages of their peer.
    ///
    /// # Errors
    /// `Timeout`; as [`progress`](Self::progress).
    pub fn wait_for<T>(
        &self,
        deadline: impl Into<Deadline>,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let deadline = deadline.into();
        loop {
            let polled = self.poll()?;
            if let Some(value) = done() {
                return Ok(value);
            }
            deadline.check("wait_for", "what the caller waits for")?;
            if polled == 0 {
                // Another thread may take what would wake this one.
                self.core.engine.sleep_until(deadline.min(Deadline::after(GLANCE)))?;
            }
        }
    }

    /// Has [`as_fd`](AsFd::as_fd) become readable as [`wait`](Self::wait) would wake, until this thread makes progress, or any thread arms
    /// again: other threads that make progress leave it armed, and wake it for what it should see. One event loop is armed at a time.
    /// True if there is something already; then nothing was armed.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn arm(&self) -> Result<bool> {
        self.core.engine.hub.check_process("arm")?;
        self.core.engine.arm()
    }

    /// When an outer event loop calls [`poll`](Self::poll) at the latest, even if the descriptor tells nothing: the first operation under
    /// way is too late then, or the messenger has to look whether its peers' hosts answer, once a second as long as it has peers, or whether a
    /// device has ended with memory that is to be freed.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.core.engine.next_deadline()
    }
}

impl AsFd for Messenger {
    /// For an outer event loop; see [`Messenger::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.engine.fd()
    }
}
