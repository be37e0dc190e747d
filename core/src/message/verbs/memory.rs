//! The registered memory of a link, in slots of one size.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use super::regions::Regions;
use crate::error::{Error, Result};
use crate::rdma::{Access, LocalRange, MemoryRegion, ProtectionDomain};
use crate::volatile::VolatileSlice;

/// Slots for packets, or for pieces of a peer's memory, which the device reads and writes.
#[derive(Debug)]
pub(super) struct Slots {
    /// Given up before `memory`, of which it keeps a share.
    region: MemoryRegion,
    memory: Arc<MmapRaw>,
    count: u32,
    size: usize,
}

impl Slots {
    /// `count` slots of `size` bytes each, registered with `domain`; registrations in `kept` may make room. They begin on a page of their own.
    pub(super) fn new(domain: &ProtectionDomain, kept: &Regions, count: u32, size: usize) -> Result<Self> {
        let length = count as usize * size;
        let failed = |error| Error::system("connect", "no memory for a queue pair", error);
        let memory = Arc::new(MmapRaw::from(MmapMut::map_anon(length).map_err(failed)?));
        let region = kept.making_room(|| {
            // SAFETY: the mapping stays as long as the share in it that the region keeps. Slots are accessed through raw pointers,
            // and through references only between the completion of a request that writes there and the next one (`bytes`).
            unsafe { domain.register(memory.as_mut_ptr(), length, Access::LOCAL_WRITE, memory.clone()) }
        })?;
        Ok(Self { region, memory, count, size })
    }

    /// The first `length` bytes of a slot, for a request.
    pub(super) fn range(&self, slot: u32, length: usize) -> Result<LocalRange> {
        self.region.range(slot as u64 * self.size as u64, length as u64)
    }

    /// A slot, which the device may read or write meanwhile.
    pub(super) fn slot(&self, slot: u32) -> VolatileSlice<'_> {
        assert!(slot < self.count, "slots are numbered by the link itself");
        let start = NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is not at address 0");
        // SAFETY: the mapping has `count` slots.
        let start = unsafe { start.add(slot as usize * self.size) };
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { VolatileSlice::new(start, self.size) }
    }

    /// The first `length` bytes of a slot, at most all.
    ///
    /// # Safety
    /// Nothing writes to the slot as long as the result lives: the request that wrote there has completed, and none is posted
    /// again.
    pub(super) unsafe fn bytes(&self, slot: u32, length: usize) -> &[u8] {
        let slot = self.slot(slot);
        // SAFETY: the slot is as long; the caller vouches that nothing writes to it.
        unsafe { std::slice::from_raw_parts(slot.as_ptr(), length.min(self.size)) }
    }
}
