//! Keeps objects alive while a peer still uses them: both halves of every deregistration.
//!
//! The exporter counts a receipt for each object that it offers a peer ([`Hold`]); the importer keeps the receipt
//! ([`Receipt`]) for as long as it uses the object, and gives it back by dropping it. Every receipt that was sent
//! comes back in this way, whatever became of the offer, or ends when the peer is gone; nothing else ends it.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::holds::{HoldId, Holds, Release};
use crate::abort::Abort;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::fork::Creator;
use crate::gpu::KeepAlive;
use crate::group::subscriber::{Deferred, Reaction, Subscriber};
use crate::group::{Group, frames};
use crate::sync::{Condvar, Mutex, lock, wait};

/// The one record of this rank's objects that peers hold and must give back.
pub(crate) struct Ledger {
    rank: u32,
    creator: Creator,
    holds: Mutex<Holds>,
    changed: Condvar,
}

/// A receipt on its way to a peer. Dropped before [`sent`](Self::sent), it is taken back.
#[derive(Debug)]
#[must_use = "the receipt is taken back when it is dropped"]
pub(crate) struct Hold {
    ledger: Arc<Ledger>,
    id: HoldId,
    peer: u32,
    sent: bool,
}

/// A receipt of something that `peer` holds back for this rank. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Receipt {
    ledger: Arc<Ledger>,
    group: Group,
    id: HoldId,
    peer: u32,
}

impl Ledger {
    /// The ledger of `rank`.
    pub(crate) fn new(rank: u32) -> Self {
        Self { rank, creator: Creator::current(), holds: Mutex::default(), changed: Condvar::new() }
    }

    /// Keeps `keep` alive until `peer` gives it back or is gone, or until the result is dropped unsent.
    pub(crate) fn hold(self: &Arc<Self>, id: HoldId, keep: KeepAlive, peer: u32) -> Hold {
        lock(&self.holds).add(id, keep, peer);
        Hold { ledger: self.clone(), id, peer, sent: false }
    }

    /// How many things are held.
    pub(crate) fn len(&self) -> usize {
        lock(&self.holds).len()
    }

    /// The receipt that `peer` has sent for `id`, a thing of its own.
    pub(crate) fn receipt(self: &Arc<Self>, group: &Group, peer: u32, id: HoldId) -> Receipt {
        Receipt { ledger: self.clone(), group: group.clone(), id, peer }
    }

    /// Waits until no peer has any of our memory open by a legacy handle; at the deadline, returns a peer that still
    /// has. Stops waiting once the communicator has failed, because then nobody may be left to give it back.
    pub(crate) fn wait_released(&self, abort: &Abort, deadline: Deadline) -> Option<u32> {
        let mut holds = lock(&self.holds);
        while holds.memory_holder().is_some() && !abort.is_aborted() && !deadline.expired() {
            holds = wait(&self.changed, holds, deadline);
        }
        holds.memory_holder()
    }

    /// Takes a receipt back that `peer`, this rank or one that has not been told, does not use. It has none if it is gone.
    fn take_back(&self, id: HoldId, peer: u32) {
        let freed = lock(&self.holds).take_back(id, peer, 1);
        drop(freed);
        self.wake();
    }

    fn wake(&self) {
        // With the lock, so that a thread that has looked and does not wait yet is not missed.
        let _holds = lock(&self.holds);
        self.changed.notify_all();
    }
}

impl Hold {
    pub(crate) fn id(&self) -> HoldId {
        self.id
    }

    /// The peer has been sent the receipt: only it ends this now.
    pub(crate) fn sent(mut self) {
        self.sent = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.sent && !self.ledger.creator.forked() {
            self.ledger.take_back(self.id, self.peer);
        }
    }
}

impl Receipt {
    pub(crate) fn id(&self) -> HoldId {
        self.id
    }
}

impl Drop for Receipt {
    /// Never waits. Says nothing to a peer that is gone: it has taken everything back.
    fn drop(&mut self) {
        if self.ledger.creator.forked() {
            // The lock may have been held by a thread that the child does not have.
        } else if self.peer == self.ledger.rank {
            self.ledger.take_back(self.id, self.peer);
        } else {
            let release = Release { id: self.id, count: 1 };
            self.group.post_quietly(self.peer, frames::RELEASE, &release.encode());
        }
    }
}

impl Subscriber for Ledger {
    fn frame(&self, peer: u32, payload: &[u8], _: Vec<OwnedFd>, reaction: &mut Reaction) -> Result<()> {
        let Release { id, count } = Release::decode(payload)?;
        let freed = lock(&self.holds).take_back(id, peer, count).map_err(|_| {
            let message = format!("rank {peer} gave back {count} receipts of {id:?}, more than it has");
            Error::new(ErrorKind::Remote, "release", message).with_peer(peer)
        })?;
        reaction.later.extend(freed);
        self.wake();
        Ok(())
    }

    fn gone(&self, peer: u32, later: &mut Vec<Deferred>) {
        later.extend(lock(&self.holds).take_back_all(peer));
        self.wake();
    }

    fn changed(&self) {
        self.wake();
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if self.creator.forked() {
            return;
        }
        // No peer can tell this rank any more; freeing what a peer has open by a legacy handle is undefined.
        let held = lock(&self.holds).take_memory();
        if !held.is_empty() {
            log::warn!(
                "rank {}: {} buffers are still open at peers by legacy handles and stay allocated until this process \
                 ends; drop memory at its receivers first, then call Communicator::close()",
                self.rank,
                held.len()
            );
            std::mem::forget(held);
        }
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ledger").field(&*lock(&self.holds)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: HoldId = HoldId::Memory(9);

    fn release(count: u64) -> Vec<u8> {
        Release { id: ID, count }.encode()
    }

    #[test]
    fn close_waits_until_peers_gave_back_or_are_gone() {
        let (ledger, abort) = (Arc::new(Ledger::new(0)), Abort::new());
        let mut reaction = Reaction::default();
        let soon = || Deadline::after(std::time::Duration::from_millis(5));
        for peer in [1, 2] {
            ledger.hold(ID, Arc::new(()), peer).sent();
        }
        assert_eq!(ledger.wait_released(&abort, soon()), Some(1));
        ledger.frame(1, &release(1), Vec::new(), &mut reaction).unwrap();
        assert_eq!(ledger.wait_released(&abort, soon()), Some(2));
        ledger.gone(2, &mut reaction.later);
        assert_eq!(ledger.wait_released(&abort, soon()), None);
        assert_eq!(reaction.later.len(), 1, "dropped by the service thread");
    }

    #[test]
    fn giving_back_more_than_was_given_is_the_peers_error_and_frees_nothing() {
        let ledger = Arc::new(Ledger::new(0));
        ledger.hold(ID, Arc::new(()), 1).sent();
        let give = |peer, count| ledger.frame(peer, &release(count), Vec::new(), &mut Reaction::default());
        for (peer, count) in [(1, 2), (2, 1), (1, u64::MAX)] {
            assert_eq!(give(peer, count).unwrap_err().peer(), Some(peer));
        }
        assert!(lock(&ledger.holds).memory_holder().is_some());
        give(1, 1).unwrap();
        assert!(give(1, 1).is_err() && lock(&ledger.holds).memory_holder().is_none());
    }

    #[test]
    fn a_receipt_that_was_not_sent_is_taken_back_once_and_leaves_others() {
        let ledger = Arc::new(Ledger::new(0));
        let thing = Arc::new(());
        let unsent = ledger.hold(ID, thing.clone(), 1);
        ledger.hold(ID, thing.clone(), 1).sent();
        drop(unsent);
        assert_eq!(Arc::strong_count(&thing), 2, "the peer has one");
        let late = ledger.hold(ID, thing.clone(), 1);
        ledger.gone(1, &mut Vec::new());
        drop(late);
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}
