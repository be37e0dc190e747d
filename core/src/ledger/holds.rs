//! Objects of this rank that peers hold, by id, with the number of receipts that each peer has.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::gpu::KeepAlive;
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Names something that a peer holds and gives back with a release frame. Part of the wire form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldId {
    /// Memory that was exported by a legacy handle, by allocation number: freeing it while a peer has it open is
    /// undefined (CUDA driver API, `cuIpcOpenMemHandle`).
    Memory(u64),
    /// A semaphore's words, by slot: reusing them while a peer may still signal would corrupt the next semaphore.
    Token(u64),
    /// Memory that a peer writes by message, by the number of the grant.
    Region(u64),
    /// Memory that is bound to a multicast object, by the number of the binding: kernels of peers access it until they have given
    /// it back.
    Binding(u64),
}

impl HoldId {
    /// Bytes on the wire.
    pub(crate) const BYTES: usize = 9;

    pub(crate) fn encode(&self, w: &mut Writer) {
        match self {
            Self::Memory(id) => w.u8(1).u64(*id),
            Self::Token(slot) => w.u8(2).u64(*slot),
            Self::Region(number) => w.u8(3).u64(*number),
            Self::Binding(number) => w.u8(4).u64(*number),
        };
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        match r.u8()? {
            1 => Ok(Self::Memory(r.u64()?)),
            2 => Ok(Self::Token(r.u64()?)),
            3 => Ok(Self::Region(r.u64()?)),
            4 => Ok(Self::Binding(r.u64()?)),
            _ => Err(WireError::Invalid { what: "kind of release" }),
        }
    }
}

/// Payload of [`RELEASE`](crate::group::frames::RELEASE): the sender gives `count` receipts of `id` back to the receiver, which
/// exported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) id: HoldId,
    pub(crate) count: u64,
}

impl Release {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut w = Writer::new();
        self.id.encode(&mut w);
        w.u64(self.count);
        w.finish()
    }

    pub(crate) fn decode(payload: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(payload);
        let release = Self { id: HoldId::decode(&mut r)?, count: r.u64()? };
        r.finish()?;
        Ok(release)
    }
}

/// Held things, and how many receipts each peer has.
#[derive(Default)]
pub(super) struct Holds {
    held: HashMap<HoldId, Held>,
}

struct Held {
    keep: KeepAlive,
    receipts: HashMap<u32, u64>,
}

/// A peer gave back what it does not hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotHeld;

impl Holds {
    /// Keeps `keep` until `peer` has given back one more receipt of it.
    pub(super) fn add(&mut self, id: HoldId, keep: KeepAlive, peer: u32) {
        let held = self.held.entry(id).or_insert_with(|| Held { keep, receipts: HashMap::new() });
        *held.receipts.entry(peer).or_default() += 1;
    }

    /// Takes `count` receipts back. Returns what no peer holds any more, to be dropped outside any lock.
    pub(super) fn take_back(
        &mut self,
        id: HoldId,
        peer: u32,
        count: u64,
    ) -> Result<Option<KeepAlive>, NotHeld> {
        let held = self.held.get_mut(&id).ok_or(NotHeld)?;
        let receipts = held.receipts.get_mut(&peer).ok_or(NotHeld)?;
        *receipts = receipts.checked_sub(count).ok_or(NotHeld)?;
        if *receipts == 0 {
            held.receipts.remove(&peer);
        }
        Ok(if held.receipts.is_empty() { self.held.remove(&id).map(|held| held.keep) } else { None })
    }

    /// Takes back everything of a peer that is gone.
    pub(super) fn take_back_all(&mut self, peer: u32) -> Vec<KeepAlive> {
        for held in self.held.values_mut() {
            held.receipts.remove(&peer);
        }
        self.held.extract_if(|_, held| held.receipts.is_empty()).map(|(_, held)| held.keep).collect()
    }

    /// How many things are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// The lowest peer that still has memory open.
    pub(super) fn memory_holder(&self) -> Option<u32> {
        let memory = self.held.iter().filter(|(id, _)| matches!(id, HoldId::Memory(_)));
        memory.flat_map(|(_, held)| held.receipts.keys().copied()).min()
    }

    /// The memory that peers still have open, taken out for good.
    pub(super) fn take_memory(&mut self) -> Vec<KeepAlive> {
        self.held.extract_if(|id, _| matches!(id, HoldId::Memory(_))).map(|(_, held)| held.keep).collect()
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
        for peer in [1, 1, 2] {
            holds.add(id, thing.clone(), peer);
        }
        let stays = |back: Result<Option<KeepAlive>, NotHeld>| back.is_ok_and(|free| free.is_none());
        assert!(stays(holds.take_back(id, 1, 1)));
        assert_eq!(holds.take_back(id, 3, 9).err(), Some(NotHeld));
        assert_eq!(holds.take_back(id, 1, 2).err(), Some(NotHeld), "it has one left");
        assert!(stays(holds.take_back(id, 1, 1)));
        assert!(holds.take_back_all(1).is_empty() && holds.memory_holder() == Some(2));
        assert_eq!(holds.take_back_all(2).len(), 1);
        assert_eq!(holds.memory_holder(), None);
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    #[test]
    fn releases_round_trip() {
        for id in [HoldId::Memory(u64::MAX), HoldId::Token(3), HoldId::Region(8), HoldId::Binding(5)] {
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
