//! The callback or queue that is registered for each kind of message.

use std::collections::VecDeque;
use std::sync::Arc;

use super::received::Message;
use crate::error::{Error, Result};
use crate::sync::{Mutex, OnceLock, lock};

/// Kinds of one page of the table.
const PAGE: usize = 256;

/// Takes the messages of a kind.
pub(super) enum Handler {
    Callback(Box<dyn Fn(Message) + Send + Sync>),
    Queue(Arc<Waiting>),
}

/// Messages that wait for those who poll; `None` once nobody does any more.
pub(super) struct Waiting(Mutex<Option<VecDeque<Message>>>);

impl Waiting {
    /// Adds the message that `make` makes. False if nobody takes messages any more.
    pub(super) fn add(&self, make: impl FnOnce() -> Message) -> bool {
        lock(&self.0).as_mut().map(|messages| messages.push_back(make())).is_some()
    }
}

/// All kinds; looked up without a lock. A registration stays for good.
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
        self.pages[usize::from(kind) / PAGE].get()?[usize::from(kind) % PAGE].get()
    }

    /// Registers `handler` for `kind`.
    pub(super) fn set(&self, op: &'static str, kind: u16, handler: Handler) -> Result<()> {
        let page = &self.pages[usize::from(kind) / PAGE];
        if page.get().is_none() {
            // Another thread may have been faster; one of the two pages is used.
            let _ = page.set(Box::new(std::array::from_fn(|_| OnceLock::default())));
        }
        let slot = page.get().and_then(|page| page.get(usize::from(kind) % PAGE));
        match slot.map(|slot| slot.set(handler)) {
            Some(Ok(())) => Ok(()),
            _ => {
                Err(Error::usage(op, format!("something is registered for messages of kind {kind} already")))
            }
        }
    }
}

/// Messages of one kind, in the order in which they arrived, for those who poll instead of registering a callback.
///
/// When the last clone is dropped, messages that wait are dropped, and later ones are answered like those of a kind that nothing
/// is registered for.
#[derive(Clone)]
pub struct Queue {
    receiver: Arc<Receiver>,
}

/// Shared by the clones of a queue; its drop closes the queue.
struct Receiver(Arc<Waiting>);

impl Drop for Receiver {
    fn drop(&mut self) {
        let messages = lock(&self.0.0).take();
        for message in messages.into_iter().flatten() {
            // Their senders must not wait until they are taken.
            message.peer.member.release(1, message.bytes().len());
        }
    }
}

impl Queue {
    pub(super) fn new() -> (Self, Handler) {
        let waiting = Arc::new(Waiting(Mutex::new(Some(VecDeque::new()))));
        (Self { receiver: Arc::new(Receiver(waiting.clone())) }, Handler::Queue(waiting))
    }

    /// The oldest message, if there is one. Only progress brings new ones.
    pub fn try_recv(&self) -> Option<Message> {
        let message = lock(&self.receiver.0.0).as_mut()?.pop_front()?;
        message.peer.member.release(1, message.bytes().len());
        Some(message)
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        lock(&self.receiver.0.0).as_ref().map_or(0, VecDeque::len)
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
