//! Virtual memory management, which allocates addresses and memory separately.
//!
//! The granularity is 2 MiB, as on hardware. Memory is freed when it has no handle and no mapping left and no other
//! process holds a descriptor of it. `cuMemUnmap` waits for all work of the contexts that may access the range.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use cuda_driver_sys::{
    CUdeviceptr, CUmemAccess_flags as Access, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

use super::{INVALID_VALUE, context, device, entries};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::mem::Rights;
use crate::mem::allocation::Origin;
use crate::mem::backing::Backing;
use crate::mem::mapping::Mapping;
use crate::mem::multicast::Team;
use crate::mem::object::{Facts, Kind, Object, lacks_descriptors, refused};
use crate::mem::physical::{Physical, Properties};

entries! {
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize => out,
        prop: *const CUmemAllocationProp => input,
        option: CUmemAllocationGranularity_flags,
    ) {
        properties(machine()?, &prop)?;
        if option.0 > CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.0 {
            return Err(INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize);
        Ok(())
    }

    fn cuMemAddressReserve(
        ptr: *mut CUdeviceptr => out,
        size: usize,
        alignment: usize,
        hint: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        let machine = machine()?;
        let align = alignment.max(GRANULARITY as usize);
        if !granular(size as u64) || !align.is_power_of_two() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = Mapping::reserve(size, align, Some(hint)).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let base = mapping.address();
        machine.reservations.lock().insert(base, (size as u64, mapping));
        ptr.set(base);
        Ok(())
    }

    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) {
        let machine = machine()?;
        let mut reservations = machine.reservations.lock();
        let known = reservations.get(&ptr).is_some_and(|(len, _)| *len == size as u64);
        if !known || machine.allocations.any_in(ptr, size as u64) {
            return Err(INVALID_VALUE);
        }
        reservations.remove(&ptr);
        Ok(())
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle => out,
        size: usize,
        prop: *const CUmemAllocationProp => input,
        flags: c_ulonglong,
    ) {
        let machine = machine()?;
        let prop = properties(machine, &prop)?;
        if !granular(size as u64) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let charge = machine.devices[prop.device].memory.charge(size as u64)?;
        let facts = Facts { kind: Kind::Physical, device: prop.device, handle_types: prop.handle_types };
        let object = Object::create(size, facts).map_err(refused)?;
        object.spoil().map_err(refused)?;
        handle.set(add(machine, |handle| Physical::new(handle, object, prop, None, Some(charge))));
        Ok(())
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let machine = machine()?;
        let physical = find(machine, handle)?;
        let mut references = physical.references.lock();
        *references = references.checked_sub(1).ok_or(INVALID_VALUE)?;
        if *references == 0 {
            machine.physical.remove_number(handle)?;
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle => out, addr: *mut c_void) {
        let machine = machine()?;
        let found = machine.allocations.find(addr as u64).ok_or(INVALID_VALUE)?;
        let Origin::Mapped(physical) = &found.origin else { return Err(INVALID_VALUE) };
        let mut references = physical.references.lock();
        *references += 1;
        if *references == 1 {
            machine.physical.insert(physical.handle, Arc::clone(physical));
        }
        handle.set(physical.handle);
        Ok(())
    }

    fn cuMemMap(
        ptr: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        let machine = machine()?;
        let physical = find(machine, handle)?;
        let fits = granular(size as u64) && granular_address(ptr) && size <= physical.size();
        if !fits || offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(team) = &physical.team {
            team.wait_for_devices();
        }
        // Holds the lock until the mapping is visible, so that no other call maps or frees the range in between.
        let reservations = machine.reservations.lock();
        let end = ptr.checked_add(size as u64).ok_or(INVALID_VALUE)?;
        let inside = reservations.range(..=ptr).next_back().is_some_and(|(base, (len, _))| end <= base + len);
        if !inside || machine.allocations.any_in(ptr, size as u64) {
            return Err(INVALID_VALUE);
        }
        let backing = match &physical.team {
            Some(team) => Backing::Multicast { base: ptr, team: Arc::clone(team) },
            None => {
                let backing = Backing::of(&physical.object, size, NonNull::new(ptr as *mut u8));
                backing.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?
            }
        };
        let (device, rights) = (physical.prop.device, Rights::Granted { read: 0, write: 0 });
        machine.allocations.add(backing, size as u64, Origin::Mapped(physical), device, rights, None)?;
        Ok(())
    }

    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) {
        let machine = machine()?;
        machine.captures.permit_unsafe_call()?;
        let bases = mapped(machine, ptr, size)?;
        for device in machine.devices.iter().filter(|d| d.is_active() && may_use(machine, &bases, d.ordinal)) {
            context::wait_idle(device);
        }
        let _reservations = machine.reservations.lock();
        for base in mapped(machine, ptr, size)? {
            machine.allocations.remove(base);
        }
        Ok(())
    }

    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        let machine = machine()?;
        if desc.is_null() || count == 0 || count > machine.devices.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and an array of `count` by contract.
        let descs = unsafe { std::slice::from_raw_parts(desc, count) };
        let found = machine.allocations.find(ptr).ok_or(INVALID_VALUE)?;
        let may_access = |device: usize| match found.backing.team() {
            Some(team) => team.has(device),
            None => device == found.device || device::can_access(machine, device, found.device),
        };
        let mut changes = Vec::with_capacity(count);
        for desc in descs {
            let device = located(machine, &desc.location)?;
            if !may_access(device) {
                return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
            }
            let (read, write) = match desc.flags {
                Access::CU_MEM_ACCESS_FLAGS_PROT_NONE => (false, false),
                Access::CU_MEM_ACCESS_FLAGS_PROT_READ => (true, false),
                Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => (true, true),
                _ => return Err(INVALID_VALUE),
            };
            changes.push((device, read, write));
        }
        let _reservations = machine.reservations.lock();
        for base in mapped(machine, ptr, size)? {
            let Some(Rights::Granted { mut read, mut write }) = machine.space.rights(base) else {
                return Err(INVALID_VALUE);
            };
            for (device, may_read, may_write) in &changes {
                read = read & !(1 << device) | u64::from(*may_read) << device;
                write = write & !(1 << device) | u64::from(*may_write) << device;
            }
            machine.space.set_rights(base, Rights::Granted { read, write });
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut c_ulonglong => out, location: *const CUmemLocation => input, ptr: CUdeviceptr) {
        let machine = machine()?;
        let device = located(machine, &location)?;
        let found = machine.allocations.find(ptr).ok_or(INVALID_VALUE)?;
        let Some(Rights::Granted { read, write }) = machine.space.rights(found.base) else {
            return Err(INVALID_VALUE);
        };
        let access = match (read & 1 << device != 0, write & 1 << device != 0) {
            (_, true) => Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            (true, false) => Access::CU_MEM_ACCESS_FLAGS_PROT_READ,
            (false, false) => Access::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        };
        flags.set(access.0.into());
        Ok(())
    }

    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        handle_type: HandleType,
        flags: c_ulonglong,
    ) {
        let machine = machine()?;
        let physical = find(machine, handle)?;
        posix_fd(machine, handle_type)?;
        if shareable.is_null() || flags != 0 || physical.prop.handle_types & POSIX_FD == 0 {
            return Err(INVALID_VALUE);
        }
        let fd = physical.object.fd().try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: not null, and for this handle type valid for one descriptor number.
        unsafe { shareable.cast::<c_int>().write(fd.into_raw_fd()) };
        Ok(())
    }

    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle => out,
        shareable: *mut c_void,
        handle_type: HandleType,
    ) {
        let machine = machine()?;
        posix_fd(machine, handle_type)?;
        // For this type the argument is the descriptor number itself. The caller keeps the descriptor.
        let number = c_int::try_from(shareable as usize).map_err(|_| INVALID_VALUE)?;
        let object = Object::open(duplicate(number)?).map_err(|_| INVALID_VALUE)?;
        let facts = object.facts();
        if facts.handle_types & POSIX_FD == 0 {
            return Err(INVALID_VALUE);
        }
        if facts.kind == Kind::Multicast && machine.config.has_multicast() {
            let team = Team::open(object)?;
            handle.set(add(machine, team_handle(team, facts.handle_types)));
            return Ok(());
        }
        if facts.kind != Kind::Physical {
            return Err(INVALID_VALUE);
        }
        machine.devices.get(facts.device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        let prop = Properties { device: facts.device, handle_types: facts.handle_types, rdma: true };
        handle.set(add(machine, |handle| Physical::new(handle, object, prop, None, None)));
        Ok(())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        prop: *mut CUmemAllocationProp => out,
        handle: CUmemGenericAllocationHandle,
    ) {
        let physical = find(machine()?, handle)?;
        if physical.team.is_some() {
            return Err(INVALID_VALUE);
        }
        prop.set(physical.prop.to_c());
        Ok(())
    }
}

pub(super) const GRANULARITY: u64 = 2 << 20;
pub(super) const POSIX_FD: u32 = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

pub(super) fn granular(size: u64) -> bool {
    size != 0 && granular_address(size)
}

fn granular_address(addr: u64) -> bool {
    addr.is_multiple_of(GRANULARITY)
}

/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for handle types that this machine does not have.
fn posix_fd(machine: &Machine, handle_type: HandleType) -> Result {
    match handle_type {
        HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if !machine.config.lacks.posix_fd => Ok(()),
        HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        | HandleType::CU_MEM_HANDLE_TYPE_FABRIC
        | HandleType::CU_MEM_HANDLE_TYPE_WIN32
        | HandleType::CU_MEM_HANDLE_TYPE_WIN32_KMT => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

fn properties(machine: &Machine, prop: &CUmemAllocationProp) -> Result<Properties> {
    if prop.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED || !prop.win32HandleMetaData.is_null()
    {
        return Err(INVALID_VALUE);
    }
    let device = located(machine, &prop.location)?;
    let handle_types = prop.requestedHandleTypes.0;
    handle_types_exist(machine, handle_types)?;
    if prop.allocFlags.usage != 0 || prop.allocFlags.compressionType != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(Properties { device, handle_types, rdma: prop.allocFlags.gpuDirectRDMACapable != 0 })
}

/// # Errors
/// The errors of [`posix_fd`], for each handle type of the mask.
pub(super) fn handle_types_exist(machine: &Machine, mask: u32) -> Result {
    (0..32).map(|b| 1 << b).filter(|b| mask & b != 0).try_for_each(|bit| posix_fd(machine, HandleType(bit)))
}

fn located(machine: &Machine, location: &CUmemLocation) -> Result<usize> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Ok(machine.device(location.id)?.ordinal),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Adds what `make` returns for a new handle.
pub(super) fn add(machine: &Machine, make: impl FnOnce(u64) -> Physical) -> u64 {
    let handle = machine.physical.fresh();
    machine.physical.insert(handle, Arc::new(make(handle)));
    handle
}

/// The handle of a multicast object, as one of memory that no device owns.
pub(super) fn team_handle(team: Arc<Team>, handle_types: u32) -> impl FnOnce(u64) -> Physical {
    move |handle| {
        let prop = Properties { device: 0, handle_types, rdma: false };
        Physical::new(handle, Arc::clone(team.object()), prop, Some(team), None)
    }
}

pub(super) fn find(machine: &Machine, handle: u64) -> Result<Arc<Physical>> {
    machine.physical.get_number(handle).map_err(|_| INVALID_VALUE)
}

/// The bases of the mappings that together cover exactly this range.
fn mapped(machine: &Machine, ptr: u64, size: usize) -> Result<Vec<u64>> {
    let found =
        machine.allocations.exactly(ptr, size as u64).filter(|f| !f.is_empty()).ok_or(INVALID_VALUE)?;
    if found.iter().any(|a| !matches!(a.origin, Origin::Mapped(_))) {
        return Err(INVALID_VALUE);
    }
    Ok(found.iter().map(|a| a.base).collect())
}

/// Whether the device has a right to any of these mappings. Work of other devices cannot use them, and waiting for it
/// could deadlock if it waits for the unmapping thread.
fn may_use(machine: &Machine, bases: &[u64], device: usize) -> bool {
    bases.iter().any(|base| {
        matches!(machine.space.rights(*base), Some(Rights::Granted { read, write }) if (read | write) & 1 << device != 0)
    })
}

fn duplicate(number: c_int) -> Result<OwnedFd> {
    if number < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: borrowed only for the next call, which fails with EBADF if the number is not a descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().map_err(|why| {
        if lacks_descriptors(&why) { CUresult::CUDA_ERROR_OPERATING_SYSTEM } else { INVALID_VALUE }
    })
}
