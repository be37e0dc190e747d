//! What must outlive its owner because a peer still uses it: the exporter's half of every deregistration.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use crate::abort::Abort;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::fork::Creator;
use crate::gpu::KeepAlive;
use crate::group::subscriber::{Deferred, Subscriber};
use crate::group::{Group, frames};
use crate::sync::{Condvar, Mutex, lock, wait};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// What a peer gives back with a release frame. Part of the wire form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldId {
    /// Memory that was exported by a legacy handle, by allocation number: freeing it while a peer has it open is
    /// undefined (CUDA driver API, `cuIpcOpenMemHandle`).
    Memory(u64),
    /// A semaphore's words, by slot: reusing them while a peer may still signal would corrupt the next semaphore.
    Token(u64),
    /// Memory that a peer writes by message, by the number of the grant.
    Region(u64),
}

/// Payload of [`RELEASE`](crate::group::frames::RELEASE): `count` receipts of something that the receiver of this frame exported are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) id: HoldId,
    pub(crate) count: u64,
}

impl Release {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut w = Writer::new();
        match self.id {
            HoldId::Memory(id) => w.u8(1).u64(id),
            HoldId::Token(slot) => w.u8(2).u64(slot),
            HoldId::Region(number) => w.u8(3).u64(number),
        };
        w.u64(self.count);
        w.finish()
    }

    pub(crate) fn decode(payload: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let id = match r.u8()? {
            1 => HoldId::Memory(r.u64()?),
            2 => HoldId::Token(r.u64()?),
            3 => HoldId::Region(r.u64()?),
            _ => return Err(WireError::Invalid { what: "kind of release" }),
        };
        let release = Self { id, count: r.u64()? };
        r.finish()?;
        Ok(release)
    }
}

/// Held things, and how many receipts each peer has.
#[derive(Default)]
pub(crate) struct Holds {
    held: HashMap<HoldId, Hold>,
}

struct Hold {
    keep: KeepAlive,
    receipts: HashMap<u32, u64>,
}

impl Holds {
    /// Keeps `keep` until `peer` has given back one more receipt of it.
    pub(crate) fn hold(&mut self, id: HoldId, keep: KeepAlive, peer: u32) {
        let hold = self.held.entry(id).or_insert_with(|| Hold { keep, receipts: HashMap::new() });
        *hold.receipts.entry(peer).or_default() += 1;
    }

    /// Takes `count` receipts back; what nobody holds any more is returned, to be dropped outside any lock.
    pub(crate) fn release(&mut self, id: HoldId, peer: u32, count: u64) -> Option<KeepAlive> {
        let hold = self.held.get_mut(&id)?;
        let left = hold.receipts.get_mut(&peer)?;
        *left = left.saturating_sub(count);
        if *left == 0 {
            hold.receipts.remove(&peer);
        }
        if hold.receipts.is_empty() { self.held.remove(&id).map(|hold| hold.keep) } else { None }
    }

    /// Takes back everything of a peer that is gone.
    pub(crate) fn release_all(&mut self, peer: u32) -> Vec<KeepAlive> {
        for hold in self.held.values_mut() {
            hold.receipts.remove(&peer);
        }
        self.held.extract_if(|_, hold| hold.receipts.is_empty()).map(|(_, hold)| hold.keep).collect()
    }

    /// Whether a peer still has memory open.
    pub(crate) fn holds_memory(&self) -> bool {
        self.held.keys().any(|id| matches!(id, HoldId::Memory(_)))
    }

    /// The memory that peers still have open, taken out for good.
    pub(crate) fn take_memory(&mut self) -> Vec<KeepAlive> {
        self.held.extract_if(|id, _| matches!(id, HoldId::Memory(_))).map(|(_, hold)| hold.keep).collect()
    }
}

/// What peers hold of this rank's, and must give back.
pub(crate) struct Ledger {
    rank: u32,
    creator: Creator,
    holds: Mutex<Holds>,
    changed: Condvar,
}

impl Ledger {
    /// The ledger of `rank`.
    pub(crate) fn new(rank: u32) -> Self {
        Self { rank, creator: Creator::current(), holds: Mutex::default(), changed: Condvar::new() }
    }

    /// Keeps `keep` alive until `peer` gives it back or is gone.
    pub(crate) fn hold(&self, id: HoldId, keep: KeepAlive, peer: u32) {
        lock(&self.holds).hold(id, keep, peer);
    }

    /// How many things are held.
    pub(crate) fn len(&self) -> usize {
        lock(&self.holds).held.len()
    }

    /// Takes one receipt back that `peer` is known not to use.
    pub(crate) fn unhold(&self, id: HoldId, peer: u32) {
        let released = lock(&self.holds).release(id, peer, 1);
        drop(released);
        self.changed();
    }

    /// Gives `count` receipts back of something that `peer` exported. Never waits; says nothing to a peer that is gone: it has
    /// them back already.
    pub(crate) fn give_back(&self, group: &Group, peer: u32, id: HoldId, count: u64) {
        if self.creator.forked() {
            // The lock may have been held by a thread that the child does not have.
        } else if peer == self.rank {
            let released = lock(&self.holds).release(id, peer, count);
            drop(released);
            self.changed();
        } else {
            group.post_quietly(peer, frames::RELEASE, &Release { id, count }.encode());
        }
    }

    /// Waits until no peer has any of our memory open by a legacy handle; not any longer once the communicator has
    /// failed, because then nobody may be left to give it back.
    pub(crate) fn wait_released(&self, abort: &Abort, deadline: Deadline) -> bool {
        let mut holds = lock(&self.holds);
        while holds.holds_memory() && !abort.is_aborted() && !deadline.expired() {
            holds = wait(&self.changed, holds, deadline);
        }
        !holds.holds_memory()
    }
}

impl Subscriber for Ledger {
    fn frame(&self, peer: u32, payload: &[u8], _: Vec<OwnedFd>, later: &mut Vec<Deferred>) -> Result<()> {
        let Release { id, count } = Release::decode(payload)?;
        later.extend(lock(&self.holds).release(id, peer, count));
        self.changed();
        Ok(())
    }

    fn gone(&self, peer: u32, later: &mut Vec<Deferred>) {
        later.extend(lock(&self.holds).release_all(peer));
        self.changed();
    }

    fn changed(&self) {
        // With the lock, so that a thread that has looked and does not wait yet is not missed.
        let _holds = lock(&self.holds);
        self.changed.notify_all();
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

impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.held.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn close_waits_until_peers_gave_back_or_are_gone() {
        let (ledger, abort, mut later) = (Ledger::new(0), Abort::new(), Vec::new());
        let soon = || Deadline::after(std::time::Duration::from_millis(5));
        for peer in [1, 2] {
            ledger.hold(HoldId::Memory(9), Arc::new(()), peer);
        }
        assert!(!ledger.wait_released(&abort, soon()));
        let release = Release { id: HoldId::Memory(9), count: 1 }.encode();
        ledger.frame(1, &release, Vec::new(), &mut later).unwrap();
        assert!(!ledger.wait_released(&abort, soon()));
        ledger.gone(2, &mut later);
        assert!(ledger.wait_released(&abort, soon()));
        assert_eq!(later.len(), 1, "dropped by the service thread");
    }

    #[test]
    fn freed_when_the_last_peer_gave_back_the_last_receipt() {
        let mut holds = Holds::default();
        let thing = Arc::new(5_u8);
        let id = HoldId::Memory(1);
        holds.hold(id, thing.clone(), 1);
        holds.hold(id, thing.clone(), 1);
        holds.hold(id, thing.clone(), 2);
        assert!(holds.release(id, 1, 1).is_none());
        assert!(holds.release(id, 3, 9).is_none(), "a peer that holds nothing gives nothing back");
        assert!(holds.release(id, 1, 1).is_none());
        assert!(holds.release_all(1).is_empty() && holds.holds_memory());
        assert_eq!(holds.release_all(2).len(), 1);
        assert!(!holds.holds_memory());
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    #[test]
    fn releases_round_trip() {
        for id in [HoldId::Memory(u64::MAX), HoldId::Token(3), HoldId::Region(8)] {
            let release = Release { id, count: 9 };
            assert_eq!(Release::decode(&release.encode()), Ok(release));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes: Vec<u8>) {
            let _ = Release::decode(&bytes);
        }
    }
}
