//! What the process has allocated, registered and mapped.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use super::object::{Backing, Facts, Kind, Object};
use super::physical::Physical;
use super::{Rights, Space};
use crate::machine::{Device, Result};

/// One range that pointer queries know.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) origin: Origin,
    /// The device it belongs to; for host memory the one that was current.
    pub(crate) device: usize,
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) sync_memops: AtomicBool,
    pub(crate) backing: Arc<Backing>,
    /// Counts against the memory of the device.
    _charge: Option<Charge>,
}

/// Which call made an allocation, hence which one ends it.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Device,
    /// Variables of a module.
    Module,
    /// `cuMemHostAlloc`.
    Host,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuIpcOpenMemHandle`.
    Ipc,
    /// `cuMemMap`.
    Mapped(Arc<Physical>),
}

/// All allocations, and the space in which they are visible.
#[derive(Debug)]
pub(crate) struct Allocations {
    space: Arc<Space>,
    map: Mutex<BTreeMap<u64, Arc<Allocation>>>,
    next_id: AtomicU64,
}

/// Bytes of a device's memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.size
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.origin, Origin::Host | Origin::Registered)
    }
}

impl Charge {
    /// Takes bytes of the device's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` beyond `limit`.
    pub(crate) fn take(device: &Device, bytes: u64, limit: u64) -> Result<Self> {
        let add = |used: u64| used.checked_add(bytes).filter(|total| *total <= limit);
        device
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self { used: Arc::clone(&device.used), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Allocations {
    pub(crate) fn new(space: Arc<Space>) -> Self {
        Self { space, map: Mutex::default(), next_id: AtomicU64::new(1) }
    }

    /// New memory of a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn device(
        &self,
        device: &Device,
        size: u64,
        origin: Origin,
        limit: u64,
    ) -> Result<Arc<Allocation>> {
        let charge = Charge::take(device, round_up(size)?, limit)?;
        let facts = Facts { kind: Kind::Plain, device: device.ordinal, handle_types: 0 };
        let backing = create(size, facts)?;
        self.add(backing, size, origin, device.ordinal, Rights::Owned(device.ordinal), Some(charge))
    }

    /// Zeroed memory for the grid barrier of one launch, beside what the user may allocate.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn workspace(&self, device: &Device) -> Result<Arc<Allocation>> {
        self.device(device, WORKSPACE, Origin::Module, u64::MAX)
    }

    /// New pinned host memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn host(&self, device: usize, size: u64) -> Result<Arc<Allocation>> {
        let backing = create(size, Facts { kind: Kind::Host, device, handle_types: 0 })?;
        self.add(backing, size, Origin::Host, device, Rights::Host { writable: true }, None)
    }

    /// Makes memory visible that is mapped already.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for memory without an address.
    pub(crate) fn add(
        &self,
        backing: Backing,
        size: u64,
        origin: Origin,
        device: usize,
        rights: Rights,
        charge: Option<Charge>,
    ) -> Result<Arc<Allocation>> {
        let base = backing.base().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let allocation = self.record(base, size, origin, device, Arc::new(backing), charge);
        let mut map = self.map.lock();
        self.space.insert(base, size, rights, Arc::clone(&allocation.backing));
        map.insert(base, Arc::clone(&allocation));
        Ok(allocation)
    }

    /// Makes memory of the user's visible.
    ///
    /// # Errors
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` where it overlaps anything known.
    pub(crate) fn register(&self, base: u64, size: u64, device: usize, writable: bool) -> Result {
        let backing = Arc::new(Backing::borrowed());
        let allocation = self.record(base, size, Origin::Registered, device, backing, None);
        let mut map = self.map.lock();
        if map.range(..base + size).next_back().is_some_and(|(_, a)| a.end() > base) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.space.insert(base, size, Rights::Host { writable }, Arc::clone(&allocation.backing));
        map.insert(base, allocation);
        Ok(())
    }

    /// The allocation around an address.
    pub(crate) fn find(&self, addr: u64) -> Option<Arc<Allocation>> {
        let map = self.map.lock();
        map.range(..=addr).next_back().map(|(_, a)| a).filter(|a| addr < a.end()).cloned()
    }

    /// The allocations that `base..base + size` consists of, if they fill it exactly and in whole.
    pub(crate) fn exactly(&self, base: u64, size: u64) -> Option<Vec<Arc<Allocation>>> {
        let map = self.map.lock();
        let end = base.checked_add(size)?;
        let mut next = base;
        let mut found = Vec::new();
        for (at, allocation) in map.range(base..end) {
            if *at != next {
                return None;
            }
            next = allocation.end();
            found.push(Arc::clone(allocation));
        }
        (next == end).then_some(found)
    }

    /// Whether anything lies in the range.
    pub(crate) fn any_in(&self, base: u64, size: u64) -> bool {
        let map = self.map.lock();
        map.range(..base.saturating_add(size)).next_back().is_some_and(|(_, a)| a.end() > base)
    }

    /// Removes the allocation that begins at `base`, once nothing accesses it any more.
    pub(crate) fn remove(&self, base: u64) -> Option<Arc<Allocation>> {
        let mut map = self.map.lock();
        let allocation = map.remove(&base)?;
        self.space.remove(base);
        allocation.backing.unmap();
        Some(allocation)
    }

    /// The bases of all allocations that meet the condition.
    pub(crate) fn bases_where(&self, condition: impl Fn(&Allocation) -> bool) -> Vec<u64> {
        self.map.lock().values().filter(|a| condition(a)).map(|a| a.base).collect()
    }

    fn record(
        &self,
        base: u64,
        size: u64,
        origin: Origin,
        device: usize,
        backing: Arc<Backing>,
        charge: Option<Charge>,
    ) -> Arc<Allocation> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let sync_memops = AtomicBool::new(false);
        Arc::new(Allocation { base, size, origin, device, id, sync_memops, backing, _charge: charge })
    }
}

/// What `%envreg1` and `%envreg2` point to in a cooperative launch.
const WORKSPACE: u64 = 64;

/// The page size that sizes are rounded up to.
pub(crate) const PAGE: u64 = 64 << 10;

fn round_up(size: u64) -> Result<u64> {
    size.checked_next_multiple_of(PAGE).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// The error of a call that found no more memory; running out of descriptors has another cure, and is said.
pub(crate) fn out_of_memory(why: io::Error) -> CUresult {
    if matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        eprintln!("cuda-soft: out of file descriptors, of which every allocation takes one (see ulimit -n)");
    }
    CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

fn create(size: u64, facts: Facts) -> Result<Backing> {
    let size = usize::try_from(round_up(size)?).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let make = || -> io::Result<Backing> { Object::create(size, facts)?.map(size, None) };
    make().map_err(out_of_memory)
}
