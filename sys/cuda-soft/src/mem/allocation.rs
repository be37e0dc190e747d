//! All memory that the process has allocated, registered or mapped.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_driver_sys::CUresult;
use parking_lot::Mutex;

use super::backing::Backing;
use super::budget::{Budget, Charge};
use super::object::{Facts, Kind, Object, refused};
use super::physical::Physical;
use super::{Rights, Space};
use crate::abi::Result;

/// One range of memory, as pointer queries see it.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) origin: Origin,
    /// The device that owns it; for host memory, the device that was current when it was allocated.
    pub(crate) device: usize,
    /// A number that is unique in the process.
    pub(crate) id: u64,
    pub(crate) sync_memops: AtomicBool,
    pub(crate) backing: Arc<Backing>,
    /// Its share of the device's memory.
    _charge: Option<Charge>,
}

/// The call that created an allocation, which decides the call that frees it.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Device,
    /// `cuModuleLoadData`, for variables, or a cooperative launch, for its workspace.
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

/// All allocations of the process. Each is visible in the address space while it is here.
#[derive(Debug)]
pub(crate) struct Allocations {
    space: Arc<Space>,
    map: Mutex<BTreeMap<u64, Arc<Allocation>>>,
    next_id: AtomicU64,
}

/// An allocation that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Owned {
    allocations: Arc<Allocations>,
    allocation: Arc<Allocation>,
}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.size
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.origin, Origin::Host | Origin::Registered)
    }
}

impl Owned {
    pub(crate) fn base(&self) -> u64 {
        self.allocation.base
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // If the context has been destroyed the allocation is gone already, and another may have its address.
        self.allocations.remove_if(self.allocation.base, |found| Arc::ptr_eq(found, &self.allocation));
    }
}

impl Allocations {
    pub(crate) fn new(space: Arc<Space>) -> Self {
        Self { space, map: Mutex::default(), next_id: AtomicU64::new(1) }
    }

    /// Allocates memory of a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn device(
        &self,
        device: usize,
        memory: &Budget,
        size: u64,
        origin: Origin,
    ) -> Result<Arc<Allocation>> {
        let charge = memory.charge(round_up(size)?)?;
        let spoiled = matches!(origin, Origin::Device);
        let allocation = self.device_memory(device, size, origin, Some(charge))?;
        if spoiled {
            spoil(&allocation)?;
        }
        Ok(allocation)
    }

    /// Allocates memory for the variables of a module; with `constant`, kernels cannot write it.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn variables(
        self: &Arc<Self>,
        device: usize,
        memory: &Budget,
        size: u64,
        constant: bool,
    ) -> Result<Owned> {
        let allocation = self.device(device, memory, size, Origin::Module)?;
        if constant {
            self.space.set_rights(allocation.base, Rights::Constant(device));
        }
        Ok(Owned { allocations: Arc::clone(self), allocation })
    }

    /// Allocates zeroed memory for the grid barrier of one launch. It does not count against the device's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn workspace(self: &Arc<Self>, device: usize) -> Result<Owned> {
        let allocation = self.device_memory(device, WORKSPACE, Origin::Module, None)?;
        Ok(Owned { allocations: Arc::clone(self), allocation })
    }

    fn device_memory(
        &self,
        device: usize,
        size: u64,
        origin: Origin,
        charge: Option<Charge>,
    ) -> Result<Arc<Allocation>> {
        let backing = create(size, Facts { kind: Kind::Plain, device, handle_types: 0 })?;
        self.add(backing, size, origin, device, Rights::Owned(device), charge)
    }

    /// Allocates pinned host memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn host(&self, device: usize, size: u64) -> Result<Arc<Allocation>> {
        let backing = create(size, Facts { kind: Kind::Host, device, handle_types: 0 })?;
        let rights = Rights::Host { writable: true };
        let allocation = self.add(backing, size, Origin::Host, device, rights, None)?;
        spoil(&allocation)?;
        Ok(allocation)
    }

    /// Adds memory that is already mapped.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if this driver did not map the memory.
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

    /// Adds memory of the user.
    ///
    /// # Errors
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if it overlaps another allocation.
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

    /// The allocations that together cover exactly `base..base + size`; `None` if there are gaps or overhangs.
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

    /// Whether an allocation overlaps the range.
    pub(crate) fn any_in(&self, base: u64, size: u64) -> bool {
        let map = self.map.lock();
        map.range(..base.saturating_add(size)).next_back().is_some_and(|(_, a)| a.end() > base)
    }

    /// Removes the allocation that begins at `base`. Waits until no view of the address space is alive.
    pub(crate) fn remove(&self, base: u64) -> Option<Arc<Allocation>> {
        self.remove_if(base, |_| true)
    }

    fn remove_if(&self, base: u64, condition: impl Fn(&Arc<Allocation>) -> bool) -> Option<Arc<Allocation>> {
        let mut map = self.map.lock();
        map.get(&base).filter(|found| condition(found))?;
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

/// Size of the workspace of a cooperative launch, whose address is in `%envreg1` and `%envreg2`.
const WORKSPACE: u64 = 64;

/// The granularity of allocations.
pub(crate) const PAGE: u64 = 64 << 10;

fn round_up(size: u64) -> Result<u64> {
    size.checked_next_multiple_of(PAGE).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// [`Object::spoil`], before the caller learns the address.
fn spoil(allocation: &Allocation) -> Result {
    allocation.backing.object().map_or(Ok(()), |object| object.spoil()).map_err(refused)
}

fn create(size: u64, facts: Facts) -> Result<Backing> {
    let size = usize::try_from(round_up(size)?).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let make = || -> io::Result<Backing> { Backing::of(&Object::create(size, facts)?, size, None) };
    make().map_err(refused)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::mem::mapping::Mapping;

    #[test]
    fn an_owner_does_not_remove_a_later_allocation_at_its_address() {
        let allocations = Arc::new(Allocations::new(Arc::new(Space::new())));
        let place = Mapping::reserve(PAGE as usize, PAGE as usize, None).expect("reserve");
        let add = || {
            let facts = Facts { kind: Kind::Plain, device: 0, handle_types: 0 };
            let object = Object::create(PAGE as usize, facts).expect("create");
            let backing =
                Backing::of(&object, PAGE as usize, NonNull::new(place.address() as *mut u8)).expect("map");
            allocations.add(backing, PAGE, Origin::Module, 0, Rights::Owned(0), None).expect("add")
        };
        let owned = Owned { allocations: Arc::clone(&allocations), allocation: add() };
        allocations.remove(place.address()).expect("the first allocation");
        let later = add();
        drop(owned);
        assert!(allocations.find(place.address()).is_some_and(|found| Arc::ptr_eq(&found, &later)));
        let owned = Owned { allocations: Arc::clone(&allocations), allocation: later };
        drop(owned);
        assert!(allocations.find(place.address()).is_none());
    }
}
