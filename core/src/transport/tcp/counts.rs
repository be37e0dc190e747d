//! How far frames of one connection have come: counted, asked about, sent, acknowledged.
//!
//! Both ends number the frames that have an effect, each in its own direction, from 1. An acknowledgement names a number: that
//! frame and all before it have landed. One may overtake another, because several threads send them; the higher number holds.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Counted frames after which an acknowledgement is asked for, so that what they hold is released in time.
const ASK_EVERY: u64 = 1024;

/// The counts of a sending half, under its lock.
pub(super) struct Counts {
    peer: u32,
    /// The count behind each operation that the peer has not acknowledged.
    unacknowledged: VecDeque<u64>,
    /// Counted frames of all operations so far.
    count: u64,
    /// The count behind the latest request for an acknowledgement.
    asked: u64,
    /// Counted frames that the socket has taken.
    sent: u64,
    /// Counted frames that the peer has acknowledged.
    acknowledged: u64,
    /// So many of the peer's counted frames it was told that they have landed.
    told: u64,
}

impl Counts {
    pub(super) fn new(peer: u32) -> Self {
        let unacknowledged = VecDeque::new();
        Self { peer, unacknowledged, count: 0, asked: 0, sent: 0, acknowledged: 0, told: 0 }
    }

    /// Counts `frames` more.
    #[inline]
    pub(super) fn add(&mut self, frames: u64) {
        self.count += frames;
    }

    /// Counted frames of all operations so far.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The latest frame was the last one of an operation. Whether it is time to ask for an acknowledgement.
    #[inline]
    pub(super) fn end_operation(&mut self) -> bool {
        self.unacknowledged.push_back(self.count);
        self.count - self.asked >= ASK_EVERY
    }

    /// Whether frames were counted behind the latest request for an acknowledgement.
    #[inline]
    pub(super) fn is_unasked(&self) -> bool {
        self.asked != self.count
    }

    /// The latest frame asks for an acknowledgement.
    pub(super) fn ask(&mut self) {
        self.asked = self.count;
    }

    /// The count that the latest request for an acknowledgement names.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// The socket has taken `frames` more.
    #[inline]
    pub(super) fn send(&mut self, frames: u64) {
        self.sent += frames;
    }

    /// The peer says that `count` counted frames have landed, of those that were sent and `begun` of which the socket has taken a
    /// part.
    ///
    /// # Errors
    /// `Remote` if it cannot have received so many.
    pub(super) fn acknowledge(&mut self, count: u64, begun: u64) -> Result<()> {
        if count > self.sent + begun {
            let (peer, sent) = (self.peer, self.sent);
            let message = format!("rank {peer} acknowledged {count} messages of {sent} that were sent");
            return Err(Error::new(ErrorKind::Remote, "recv", message).with_peer(peer));
        }
        self.acknowledged = self.acknowledged.max(count);
        while self.unacknowledged.front().is_some_and(|last| *last <= count) {
            self.unacknowledged.pop_front();
        }
        Ok(())
    }

    /// Operations that the peer has not acknowledged.
    pub(super) fn outstanding(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Whether the peer has acknowledged everything, requests for acknowledgements included.
    pub(super) fn is_settled(&self) -> bool {
        self.acknowledged == self.count
    }

    /// The number to tell the peer now that `landed` of its frames have landed here; none if it was told. The threads that call
    /// this may have overtaken each other.
    pub(super) fn tell(&mut self, landed: u64) -> Option<u64> {
        if landed <= self.told {
            return None;
        }
        self.told = landed;
        Some(landed)
    }
}

/// How many frames the peer has acknowledged, for threads that wait without a lock.
#[derive(Debug, Default)]
pub(super) struct Acknowledged(AtomicU64);

impl Acknowledged {
    /// The peer says that `count` frames have landed. Calls `acknowledge` with the sending half first: it refuses a lie, and a
    /// waiter that sees the count also sees what the sending half made of it. Acknowledgements may overtake each other.
    pub(super) fn note<O>(
        &self,
        outbox: &Mutex<O>,
        count: u64,
        acknowledge: impl FnOnce(&mut O, u64) -> Result<()>,
    ) -> Result<()> {
        acknowledge(&mut lock(outbox), count)?;
        self.0.fetch_max(count, Ordering::AcqRel);
        Ok(())
    }

    /// So many frames are acknowledged; this thread sees what came before that.
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Counts after `operations` of one frame each, all of which the socket has taken.
    fn sent(operations: u64) -> Counts {
        let mut counts = Counts::new(1);
        for _ in 0..operations {
            counts.add(1);
            counts.end_operation();
        }
        counts.send(operations);
        counts
    }

    #[test]
    fn an_acknowledgement_is_due_after_so_many_frames_since_the_last_request() {
        let mut counts = Counts::new(1);
        let mut is_due_after = |frames| {
            counts.add(frames);
            let due = counts.end_operation();
            if due {
                counts.ask();
                assert_eq!((counts.asked(), counts.is_unasked()), (counts.count(), false));
            }
            due
        };
        assert!(!is_due_after(ASK_EVERY - 1) && is_due_after(1));
        assert!(!is_due_after(ASK_EVERY - 1) && is_due_after(1));
        assert!(is_due_after(ASK_EVERY + 1));
    }

    #[test]
    fn only_what_the_socket_has_begun_to_take_can_be_acknowledged() {
        let mut counts = sent(2);
        counts.add(2);
        counts.end_operation();
        assert_eq!(counts.acknowledge(3, 0).unwrap_err().peer(), Some(1));
        assert_eq!(counts.acknowledge(4, 1).unwrap_err().kind(), ErrorKind::Remote);
        assert_eq!(counts.outstanding(), 3, "a lie acknowledges nothing");
        counts.acknowledge(3, 1).unwrap();
        assert_eq!((counts.outstanding(), counts.is_settled()), (1, false), "half of an operation");
        counts.send(2);
        counts.acknowledge(4, 0).unwrap();
        assert_eq!((counts.outstanding(), counts.is_settled()), (0, true));
    }

    #[test]
    fn an_acknowledgement_that_was_overtaken_changes_nothing() {
        let mut counts = sent(3);
        counts.acknowledge(3, 0).unwrap();
        counts.acknowledge(1, 0).unwrap();
        assert!(counts.is_settled() && counts.outstanding() == 0);
    }

    #[test]
    fn the_peer_is_told_of_each_count_once_and_never_of_fewer() {
        let mut counts = Counts::new(1);
        let told = [0, 2, 2, 1, 3].map(|landed| counts.tell(landed));
        assert_eq!(told, [None, Some(2), None, None, Some(3)]);
    }

    #[test]
    fn waiters_are_not_told_of_a_lie() {
        let (outbox, acknowledged) = (Mutex::new(sent(2)), Acknowledged::default());
        let note = |count| acknowledged.note(&outbox, count, |counts, count| counts.acknowledge(count, 0));
        note(3).unwrap_err();
        assert_eq!(acknowledged.get(), 0);
        note(2).unwrap();
        note(1).unwrap();
        assert_eq!(acknowledged.get(), 2);
    }
}
