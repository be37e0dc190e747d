//! What must outlive its owner because a peer still uses it: the exporter's half of every deregistration.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::gpu::KeepAlive;
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
