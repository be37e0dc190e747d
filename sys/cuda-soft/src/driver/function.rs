//! Attributes and parameters of kernels, and occupancy.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUfunction, CUfunction_attribute as Attribute};

use super::{INVALID_VALUE, context, entries};
use crate::code;
use crate::machine::{limits, machine};

entries! {
    fn cuFuncGetAttribute(value: *mut c_int => out, attribute: Attribute, function: CUfunction) {
        let machine = machine()?;
        context::current(machine)?;
        let kernel = machine.kernels.get(function)?;
        let f = kernel.function();
        let (major, minor) = machine.config.compute_capability;
        let number = match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => max_threads(f),
            Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => f.shared_size,
            Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => kernel.loaded.constant as u32,
            Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => f.frame_size,
            Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => limits::REGISTERS,
            Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION => kernel.loaded.ptx_version,
            Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION => major * 10 + minor,
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => kernel.max_dynamic.load(Ordering::Relaxed),
            Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                value.set(-1);
                return Ok(());
            }
            Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => u32::from(f.required_cluster != [0; 3]),
            Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => f.required_cluster[0],
            Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => f.required_cluster[1],
            Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => f.required_cluster[2],
            Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                kernel.large_clusters.load(Ordering::Relaxed).into()
            }
            other if other.0 < Attribute::CU_FUNC_ATTRIBUTE_MAX.0 => 0,
            _ => return Err(INVALID_VALUE),
        };
        value.set(c_int::try_from(number).unwrap_or(c_int::MAX));
        Ok(())
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: Attribute, value: c_int) {
        let machine = machine()?;
        context::current(machine)?;
        let kernel = machine.kernels.get(function)?;
        match attribute {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let room = limits::SHARED_OPTIN.saturating_sub(kernel.function().shared_size);
                let value = u32::try_from(value).ok().filter(|v| *v <= room).ok_or(INVALID_VALUE)?;
                kernel.max_dynamic.store(value, Ordering::Relaxed);
                Ok(())
            }
            Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED if (0..=1).contains(&value) => {
                kernel.large_clusters.store(value != 0, Ordering::Relaxed);
                Ok(())
            }
            Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuFuncGetParamInfo(
        function: CUfunction,
        index: usize,
        offset: *mut usize => out,
        size: *mut usize,
    ) {
        let machine = machine()?;
        context::current(machine)?;
        let kernel = machine.kernels.get(function)?;
        let param = kernel.function().params.get(index).ok_or(INVALID_VALUE)?;
        offset.set(param.offset as usize);
        if !size.is_null() {
            // SAFETY: not null, hence valid for a write by contract.
            unsafe { size.write(param.size as usize) };
        }
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int => out,
        function: CUfunction,
        block_size: c_int,
        dynamic_shared: usize,
    ) {
        let machine = machine()?;
        context::current(machine)?;
        let kernel = machine.kernels.get(function)?;
        let f = kernel.function();
        let threads = u32::try_from(block_size).ok().filter(|n| *n > 0).ok_or(INVALID_VALUE)?;
        let dynamic = u32::try_from(dynamic_shared).unwrap_or(u32::MAX);
        let fits = threads <= max_threads(f) && dynamic <= kernel.max_dynamic.load(Ordering::Relaxed);
        let count = if fits { machine.residency().blocks_on_sm(threads, f.shared_bytes(dynamic), 0) } else { 0 };
        blocks.set(count as c_int);
        Ok(())
    }
}

/// The maximum number of threads in a block of this kernel.
pub(super) fn max_threads(f: &code::Function) -> u32 {
    let required: u32 = f.required_block.iter().product();
    [f.max_threads, required].into_iter().filter(|n| *n > 0).fold(limits::THREADS, u32::min)
}
