//! Registrations of shared memory, kept from one exposure to the next.
//!
//! They belong to allocations, whose numbers are never used again: memory that is freed and allocated again at the same address is
//! another allocation. A registration ends before the memory of its allocation is freed. Others than the library's own allocations are
//! not kept, because nobody would tell when they are freed.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::Result;
use crate::message::shared::{Holder, SharedMemory};
use crate::rdma::MemoryRegion;
use crate::sync::{Mutex, lock};

/// Registrations that are kept; beyond it, those that were not used for longest end.
pub(super) const MAX_REGIONS: usize = 256;
/// Bytes of them, unless one alone has more: registered memory is locked.
pub(super) const MAX_BYTES: u64 = 1 << 30;
/// Errors of a device that has no room for another registration.
const NO_ROOM: [i32; 5] = [libc::ENOMEM, libc::EAGAIN, libc::ENOBUFS, libc::ENOSPC, libc::EDQUOT];
/// How long nothing is tried after a refusal.
const RETRY: Duration = Duration::from_secs(1);

/// The registrations of one device, the latest used first.
#[derive(Debug, Default)]
pub(super) struct Regions {
    all: Mutex<Vec<(u64, MemoryRegion)>>,
    /// Until when nothing is [tried](Self::try_get), because something was refused.
    refused: Mutex<Option<Deadline>>,
}

impl Regions {
    /// The registration of `memory`; made with `register` if there is none.
    pub(super) fn get(
        self: &Arc<Self>,
        memory: &SharedMemory,
        register: impl FnOnce() -> Result<MemoryRegion>,
    ) -> Result<MemoryRegion> {
        let number = memory.allocation();
        if let Some(region) = Self::find(&mut lock(&self.all), number) {
            return Ok(region);
        }
        // Without the lock: it takes its time.
        let made = register()?;
        let holder: Arc<dyn Holder> = self.clone();
        memory.add_holder(&holder);
        let mut all = lock(&self.all);
        if let Some(region) = Self::find(&mut all, number) {
            drop(all);
            return Ok(region);
        }
        all.insert(0, (number, made.clone()));
        let mut bytes = 0;
        let kept = all.iter().take(MAX_REGIONS).take_while(|(_, region)| {
            bytes += region.len();
            bytes <= MAX_BYTES
        });
        let kept = kept.count().max(1);
        let evicted = all.split_off(kept);
        drop(all);
        // Windows may still be bound to some: these end with them.
        drop(evicted);
        Ok(made)
    }

    /// As [`get`](Self::get), where that is no need: others do not make room, and after a refusal nothing is tried for a moment.
    pub(super) fn try_get(
        self: &Arc<Self>,
        memory: &SharedMemory,
        register: impl FnOnce() -> Result<MemoryRegion>,
    ) -> Option<MemoryRegion> {
        let known = Self::find(&mut lock(&self.all), memory.allocation());
        if known.is_some() || lock(&self.refused).is_some_and(|until| !until.expired()) {
            return known;
        }
        let made = self.get(memory, register);
        if let Err(error) = &made {
            log::info!("what is read into shared memory is copied there: {error}");
            *lock(&self.refused) = Some(Deadline::after(RETRY));
        }
        made.ok()
    }

    /// Registers memory with `register`. If the device has no room, for instance because too little memory may be locked, those that are only
    /// kept for later make room. Those that windows show end with these. Whatever else the device refuses costs none of them.
    pub(super) fn making_room(&self, register: impl Fn() -> Result<MemoryRegion>) -> Result<MemoryRegion> {
        register().or_else(|error| {
            if !NO_ROOM.contains(&error.code()) {
                return Err(error);
            }
            let kept = std::mem::take(&mut *lock(&self.all));
            if kept.is_empty() {
                return Err(error);
            }
            drop(kept);
            register()
        })
    }

    fn find(all: &mut [(u64, MemoryRegion)], number: u64) -> Option<MemoryRegion> {
        let index = all.iter().position(|(known, _)| *known == number)?;
        all[..=index].rotate_right(1);
        Some(all[0].1.clone())
    }
}

impl Holder for Regions {
    fn forget(&self, allocation: u64) {
        let mut all = lock(&self.all);
        let index = all.iter().position(|(known, _)| *known == allocation);
        let gone = index.map(|index| all.remove(index));
        drop(all);
        drop(gone);
    }
}
