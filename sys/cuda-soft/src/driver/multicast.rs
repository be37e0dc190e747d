//! Multicast objects: addresses that stand for the memory of several devices at once, which `multimem` instructions access.
//!
//! They are off unless the configuration has them (`AQUEDUCT_SOFT_MULTICAST`), as on machines without NVSwitch. Handles
//! of multicast objects are mapped, shared and released by the calls of virtual memory management.

use std::ffi::c_ulonglong;

use cuda_driver_sys::{
    CUdevice, CUdeviceptr, CUmemGenericAllocationHandle, CUmulticastGranularity_flags, CUmulticastObjectProp,
    CUresult,
};

use super::vmm::{self, GRANULARITY, POSIX_FD, find, granular};
use super::{INVALID_VALUE, entries};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::mem::MAX_DEVICES;
use crate::mem::allocation::Origin;
use crate::mem::multicast::Team;
use crate::mem::physical::Physical;

entries! {
    fn cuMulticastGetGranularity(
        granularity: *mut usize => out,
        prop: *const CUmulticastObjectProp => input,
        option: CUmulticastGranularity_flags,
    ) {
        properties(supported()?, &prop)?;
        if option.0 > CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED.0 {
            return Err(INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize);
        Ok(())
    }

    fn cuMulticastCreate(
        handle: *mut CUmemGenericAllocationHandle => out,
        prop: *const CUmulticastObjectProp => input,
    ) {
        let machine = supported()?;
        let handle_types = properties(machine, &prop)?;
        if !granular(prop.size as u64) {
            return Err(INVALID_VALUE);
        }
        let team = Team::create(prop.numDevices, prop.size as u64, handle_types)?;
        handle.set(vmm::add(machine, vmm::team_handle(team, handle_types)));
        Ok(())
    }

    fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, dev: CUdevice) {
        let machine = supported()?;
        let device = machine.device(dev)?.ordinal;
        team_of(&*find(machine, handle)?)?.add(device)
    }

    fn cuMulticastBindMem(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        memory_offset: usize,
        size: usize,
        flags: c_ulonglong,
    ) {
        let machine = supported()?;
        let (object, memory) = (find(machine, handle)?, find(machine, memory)?);
        bind(&object, &memory, [offset, memory_offset, size].map(|n| n as u64), flags)
    }

    fn cuMulticastBindAddr(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        pointer: CUdeviceptr,
        size: usize,
        flags: c_ulonglong,
    ) {
        let machine = supported()?;
        let object = find(machine, handle)?;
        let found = machine.allocations.find(pointer).ok_or(INVALID_VALUE)?;
        let Origin::Mapped(memory) = &found.origin else { return Err(INVALID_VALUE) };
        // Mappings begin at the start of their memory.
        let memory_offset = pointer - found.base;
        if memory_offset.checked_add(size as u64).is_none_or(|end| end > found.size) {
            return Err(INVALID_VALUE);
        }
        bind(&object, memory, [offset as u64, memory_offset, size as u64], flags)
    }

    fn cuMulticastUnbind(handle: CUmemGenericAllocationHandle, dev: CUdevice, offset: usize, size: usize) {
        let machine = supported()?;
        let device = machine.device(dev)?.ordinal;
        team_of(&*find(machine, handle)?)?.unbind(device, offset as u64, size as u64)
    }
}

/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` unless this machine has multicast.
fn supported() -> Result<&'static Machine> {
    let machine = machine()?;
    if machine.config.has_multicast() { Ok(machine) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
}

/// Checks the properties of a multicast object. Returns its handle types.
fn properties(machine: &Machine, prop: &CUmulticastObjectProp) -> Result<u32> {
    let handle_types = u32::try_from(prop.handleTypes).map_err(|_| INVALID_VALUE)?;
    if !(1..=MAX_DEVICES as u32).contains(&prop.numDevices) || prop.flags != 0 || prop.size == 0 {
        return Err(INVALID_VALUE);
    }
    vmm::handle_types_exist(machine, handle_types)?;
    Ok(handle_types)
}

fn team_of(object: &Physical) -> Result<&Team> {
    object.team.as_deref().ok_or(INVALID_VALUE)
}

fn bind(
    object: &Physical,
    memory: &Physical,
    range @ [offset, memory_offset, size]: [u64; 3],
    flags: u64,
) -> Result {
    let team = team_of(object)?;
    let within = |start: u64, limit: u64| start.checked_add(size).is_some_and(|end| end <= limit);
    let whole = granular(size) && [offset, memory_offset].iter().all(|n| n.is_multiple_of(GRANULARITY));
    if !whole || !within(offset, team.size()) || !within(memory_offset, memory.size() as u64) || flags != 0 {
        return Err(INVALID_VALUE);
    }
    // An object that other processes may hold can only be bound to memory that they may hold.
    let shareable = |types: u32| types & POSIX_FD != 0;
    let matches = !shareable(object.prop.handle_types) || shareable(memory.prop.handle_types);
    if memory.team.is_some() || !matches {
        return Err(INVALID_VALUE);
    }
    team.wait_for_devices();
    if !team.has(memory.prop.device) {
        return Err(INVALID_VALUE);
    }
    team.bind(memory.prop.device, &memory.object, range)
}
