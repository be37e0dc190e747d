//! Pinned and registered host memory. All devices access it at its host address.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};

use super::{INVALID_VALUE, context, entries, unsafe_call};
use crate::machine::{Machine, machine};
use crate::mem::allocation::Origin;

entries! {
    fn cuMemHostAlloc(p: *mut *mut c_void => out, bytesize: usize, flags: c_uint) {
        let (machine, device) = unsafe_call()?;
        let known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if bytesize == 0 || flags & !known != 0 {
            return Err(INVALID_VALUE);
        }
        let allocation = machine.allocations.host(device.ordinal, bytesize as u64)?;
        p.set(allocation.base as *mut c_void);
        Ok(())
    }

    fn cuMemFreeHost(p: *mut c_void) {
        let (machine, _) = unsafe_call()?;
        let found = machine.allocations.find(p as u64).filter(|a| a.base == p as u64).ok_or(INVALID_VALUE)?;
        if !matches!(found.origin, Origin::Host) {
            return Err(INVALID_VALUE);
        }
        wait_all(machine);
        machine.allocations.remove(found.base).ok_or(INVALID_VALUE)?;
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(dptr: *mut CUdeviceptr => out, p: *mut c_void, flags: c_uint) {
        let machine = machine()?;
        context::current(machine)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        machine.allocations.find(p as u64).filter(|a| a.is_host()).ok_or(INVALID_VALUE)?;
        dptr.set(p as u64);
        Ok(())
    }

    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint) {
        let (machine, device) = unsafe_call()?;
        let known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
        if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let fits = (p as u64).checked_add(bytesize as u64).is_some();
        if p.is_null() || bytesize == 0 || !fits || flags & !known != 0 || !is_mapped(p as usize, bytesize) {
            return Err(INVALID_VALUE);
        }
        let writable = flags & CU_MEMHOSTREGISTER_READ_ONLY == 0;
        machine.allocations.register(p as u64, bytesize as u64, device.ordinal, writable)
    }

    fn cuMemHostUnregister(p: *mut c_void) {
        let (machine, _) = unsafe_call()?;
        let found = machine.allocations.find(p as u64).filter(|a| a.base == p as u64);
        let found = found.filter(|a| matches!(a.origin, Origin::Registered));
        let found = found.ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        wait_all(machine);
        machine.allocations.remove(found.base).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        Ok(())
    }
}

/// Waits for all devices, because any of them may use host memory.
fn wait_all(machine: &Machine) {
    for device in machine.devices.iter().filter(|d| d.is_active()) {
        context::wait_idle(device);
    }
}

/// Whether every page of the range is mapped. Device accesses to an unmapped page would crash the process.
fn is_mapped(p: usize, len: usize) -> bool {
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = p - p % page;
    let Some(end) = (p + len).checked_next_multiple_of(page) else { return false };
    let mut residency = vec![0u8; (1 << 20) / page.max(1) + 1];
    let mut at = start;
    while at < end {
        let n = (end - at).min(1 << 20);
        // SAFETY: mincore reads only the page tables and fails with ENOMEM for unmapped pages; the vector has one byte
        // for each of the pages.
        if unsafe { libc::mincore(at as *mut c_void, n, residency.as_mut_ptr()) } != 0 {
            return false;
        }
        at += n;
    }
    true
}
