//! The calls for device memory.
//!
//! `cuMemFree` waits for all work of the context that owns the memory, as hardware does.

use cuda_driver_sys::{CUdeviceptr, CUresult};

use super::{INVALID_VALUE, context, entries, unsafe_call};
use crate::machine::machine;
use crate::mem::allocation::Origin;

entries! {
    fn cuMemGetInfo_v2(free: *mut usize => out, total: *mut usize => out) {
        let machine = machine()?;
        let device = context::current(machine)?;
        free.set(device.memory.free() as usize);
        total.set(device.memory.total() as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr => out, bytesize: usize) {
        let (machine, device) = unsafe_call()?;
        if bytesize == 0 {
            return Err(INVALID_VALUE);
        }
        let size = bytesize as u64;
        dptr.set(machine.allocations.device(device.ordinal, &device.memory, size, Origin::Device)?.base);
        Ok(())
    }

    fn cuMemFree_v2(dptr: CUdeviceptr) {
        let (machine, _) = unsafe_call()?;
        if dptr == 0 {
            return Ok(());
        }
        let found = machine.allocations.find(dptr).filter(|a| a.base == dptr).ok_or(INVALID_VALUE)?;
        if !matches!(found.origin, Origin::Device) {
            return Err(INVALID_VALUE);
        }
        let owner = &machine.devices[found.device];
        context::wait_idle(owner);
        machine.allocations.remove(dptr).ok_or(INVALID_VALUE)?;
        owner.check()
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr) {
        let machine = machine()?;
        context::current(machine)?;
        let found = machine.allocations.find(dptr).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        if !base.is_null() {
            // SAFETY: not null, hence valid for one address.
            unsafe { base.write(found.base) };
        }
        if !size.is_null() {
            // SAFETY: not null, hence valid for one size.
            unsafe { size.write(found.size as usize) };
        }
        Ok(())
    }
}
