//! The callback or queue that is registered for each kind of message.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::received::Message;
use crate::error::{Error, Result};
use crate::sync::{AtomicUsize, Mutex, OnceLock, Ordering, lock};

/// Kinds of one page of the table.
const PAGE: usize = 256;

/// Takes the messages of a kind.
pub(super) enum Handler {
    Callback(Box<dyn Fn(Message) + Send + Sync>),
    Queue(Arc<Waiting>),
}

/// Messages that wait for those who poll.
#[derive(Default)]
pub(super) struct Waiting {
    /// `None` while nobody polls.
    messages: Mutex<Option<VecDeque<Message>>>,
    /// How many wait, so that whoever polls in vain takes no lock. Written with `messages` locked.
    count: AtomicUsize,
    /// The callback that was registered after the last queue was dropped. Set with `messages` locked.
    then: OnceLock<Handler>,
}

impl Waiting {
    /// Adds the message that `make` makes. False if nobody takes messages any more.
    pub(super) fn add(&self, make: impl FnOnce() -> Message) -> bool {
        let mut messages = lock(&self.messages);
        let Some(waiting) = messages.as_mut() else { return false };
        waiting.push_back(make());
        self.count.store(waiting.len(), Ordering::Release);
        true
    }

    /// A new queue of these messages; `None` while there is one, or a callback.
    fn open(self: &Arc<Self>) -> Option<Queue> {
        let mut messages = lock(&self.messages);
        if messages.is_some() || self.then.get().is_some() {
            return None;
        }
        *messages = Some(VecDeque::new());
        Some(Queue { receiver: Arc::new(Receiver(self.clone())) })
    }

    /// Has `callback` take what follows; false while there is a queue, or another callback.
    fn follow(&self, callback: Handler) -> bool {
        let messages = lock(&self.messages);
        messages.is_none() && self.then.set(callback).is_ok()
    }
}

/// All kinds; looked up without a lock. A callback stays for good, a queue until it is dropped.
pub(super) struct Handlers {
    pages: Box<[OnceLock<Box<Page>>]>,
}

type Page = [OnceLock<Handler>; PAGE];

impl Default for Handlers {
    fn default() -> Self {
        Self { pages: (0..PAGE).map(|_| OnceLock::default()).collect() }
    }
}

impl Handlers {
    #[inline]
    pub(super) fn get(&self, kind: u16) -> Option<&Handler> {
        match self.pages[usize::from(kind) / PAGE].get()?[usize::from(kind) % PAGE].get()? {
            first @ Handler::Queue(waiting) => Some(waiting.then.get().unwrap_or(first)),
            callback @ Handler::Callback(_) => Some(callback),
        }
    }

    /// Registers `callback` for `kind`.
    pub(super) fn set_callback(
        &self,
        op: &'static str,
        kind: u16,
        callback: impl Fn(Message) + Send + Sync + 'static,
    ) -> Result<()> {
        let Some(slot) = self.slot(kind) else { return Err(taken(op, kind)) };
        let done = match (slot.set(Handler::Callback(Box::new(callback))), slot.get()) {
            (Ok(()), _) => true,
            (Err(callback), Some(Handler::Queue(waiting))) => waiting.follow(callback),
            _ => false,
        };
        if done { Ok(()) } else { Err(taken(op, kind)) }
    }

    /// Registers a queue for `kind`.
    pub(super) fn set_queue(&self, op: &'static str, kind: u16) -> Result<Queue> {
        let first = self.slot(kind).and_then(|slot| {
            // Fails if something was registered before.
            let _ = slot.set(Handler::Queue(Arc::default()));
            slot.get()
        });
        match first {
            Some(Handler::Queue(waiting)) => waiting.open().ok_or_else(|| taken(op, kind)),
            _ => Err(taken(op, kind)),
        }
    }

    fn slot(&self, kind: u16) -> Option<&OnceLock<Handler>> {
        let page = &self.pages[usize::from(kind) / PAGE];
        if page.get().is_none() {
            // Another thread may have been faster; one of the two pages is used.
            let _ = page.set(Box::new(std::array::from_fn(|_| OnceLock::default())));
        }
        page.get()?.get(usize::from(kind) % PAGE)
    }
}

fn taken(op: &'static str, kind: u16) -> Error {
    Error::usage(op, format!("something is registered for messages of kind {kind} already"))
}

/// Messages of one kind, in the order in which they arrived, for those who poll instead of registering a callback.
///
/// When the last clone is dropped, messages that wait are dropped, and later ones are answered like those of a kind that nothing
/// is registered for, until the kind is registered again: then a new queue, or a callback, gets those that follow.
#[derive(Clone)]
pub struct Queue {
    receiver: Arc<Receiver>,
}

/// Shared by the clones of a queue; its drop closes the queue.
struct Receiver(Arc<Waiting>);

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.messages);
        let messages = waiting.take();
        self.0.count.store(0, Ordering::Release);
        drop(waiting);
        let mut told = HashSet::new();
        for message in messages.into_iter().flatten() {
            // Their senders must not wait until they are taken, and learn that they never will be.
            message.peer.member.release(1, message.bytes().len());
            if told.insert(Arc::as_ptr(&message.peer.member)) {
                message.peer.member.tell_unknown(message.kind);
            }
        }
    }
}

impl Queue {
    /// The oldest message, if there is one; none in a forked child. Only progress brings new ones.
    pub fn try_recv(&self) -> Option<Message> {
        if self.is_empty() {
            return None;
        }
        let waiting = &self.receiver.0;
        let mut messages = lock(&waiting.messages);
        let all = messages.as_mut()?;
        // Those that wait are the parent's.
        let message = if all.front()?.peer.member.hub.forked() { None } else { all.pop_front() }?;
        waiting.count.store(all.len(), Ordering::Release);
        drop(messages);
        message.peer.member.release(1, message.bytes().len());
        Some(message)
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.receiver.0.count.load(Ordering::Acquire)
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("messages", &self.len()).finish()
    }
}
