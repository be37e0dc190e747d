//! Messages that have arrived and nobody has asked for yet, and the peers that will send no more.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex, lock, wait};

/// Bytes that may lie here unread. Beyond it the sender is broken or hostile, and its link is closed.
const MAX_UNREAD: usize = 256 << 20;
/// Approximate memory of a message beside its bytes, so that empty messages count, too.
const ENVELOPE: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<(u32, u64), VecDeque<Vec<u8>>>,
    lost: HashMap<u32, Error>,
    unread: usize,
}

impl Mailbox {
    /// Adds a message. An error if too much lies unread.
    pub(super) fn deliver(&self, from: u32, tag: u64, message: Vec<u8>) -> Result<()> {
        let mut state = lock(&self.state);
        let size = message.len() + ENVELOPE;
        if state.unread + size > MAX_UNREAD {
            return Err(Error::usage(
                "recv",
                format!(
                    "more than {MAX_UNREAD} bytes lie unreceived; rank {from} sends what nobody receives"
                ),
            ));
        }
        state.unread += size;
        state.queues.entry((from, tag)).or_default().push_back(message);
        drop(state);
        self.arrived.notify_all();
        Ok(())
    }

    /// Records that `peer` sends no more. The first reason stands; what arrived before can still be received.
    pub(super) fn lose(&self, peer: u32, why: Error) {
        lock(&self.state).lost.entry(peer).or_insert(why);
        self.arrived.notify_all();
    }

    /// Why `peer` sends no more, if so.
    pub(super) fn lost(&self, peer: u32) -> Option<Error> {
        lock(&self.state).lost.get(&peer).cloned()
    }

    /// The next message of (`from`, `tag`).
    pub(super) fn take(&self, from: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(queue) = state.queues.get_mut(&(from, tag))
                && let Some(message) = queue.pop_front()
            {
                if queue.is_empty() {
                    state.queues.remove(&(from, tag));
                }
                state.unread -= message.len() + ENVELOPE;
                return Ok(message);
            }
            if let Some(why) = state.lost.get(&from) {
                return Err(why.clone());
            }
            if deadline.expired() {
                return Err(Error::timeout(
                    "recv",
                    format!("rank {from} sent no message with tag {tag:#x} in time"),
                )
                .with_peer(from));
            }
            state = wait(&self.arrived, state, deadline);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn empty_messages_are_not_free() {
        let mailbox = Mailbox::default();
        let most = (MAX_UNREAD / ENVELOPE) as u64;
        (0..most).for_each(|tag| mailbox.deliver(1, tag / 8, Vec::new()).unwrap());
        assert!(mailbox.deliver(1, 0, Vec::new()).unwrap_err().message().contains("rank 1"));
        mailbox.take(1, 7, Deadline::after(Duration::ZERO)).unwrap();
        mailbox.deliver(1, 0, Vec::new()).unwrap();
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// A message delivered before the peer was lost can still be taken, and both the message and the loss wake a
    /// waiter.
    #[test]
    fn loom_a_message_and_a_loss_both_wake_the_receiver() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let service = mailbox.clone();
            let thread = loom::thread::spawn(move || {
                service.deliver(1, 7, vec![5]).unwrap();
                service.lose(1, Error::peer_lost("recv", 1, "gone"));
            });
            let deadline = Deadline::after(Duration::MAX);
            assert_eq!(mailbox.take(1, 7, deadline).unwrap(), [5]);
            assert_eq!(mailbox.take(1, 7, deadline).unwrap_err().peer(), Some(1));
            thread.join().unwrap();
        });
    }

    /// Two receivers of different messages: each gets its own, in whatever order they come.
    #[test]
    fn loom_no_receiver_takes_the_wake_up_of_another() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::default());
            let deadline = Deadline::after(Duration::MAX);
            let receivers: Vec<_> = (0..2)
                .map(|tag| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || mailbox.take(1, tag, deadline).unwrap())
                })
                .collect();
            mailbox.deliver(1, 1, vec![1]).unwrap();
            mailbox.deliver(1, 0, vec![0]).unwrap();
            for (tag, receiver) in receivers.into_iter().enumerate() {
                assert_eq!(receiver.join().unwrap(), [tag as u8]);
            }
        });
    }
}
