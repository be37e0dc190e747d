//! Attributes of pointers.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use cuda_driver_sys::{
    CUcontext, CUdeviceptr, CUmemAccess_flags, CUmemorytype, CUpointer_attribute as Attribute, CUresult,
};

use super::{INVALID_VALUE, context, entries};
use crate::abi::Result;
use crate::machine::{Machine, machine};
use crate::mem::allocation::{Allocation, Origin};

entries! {
    fn cuPointerGetAttribute(data: *mut c_void, attribute: Attribute, ptr: CUdeviceptr) {
        let machine = machine()?;
        if data.is_null() {
            return Err(INVALID_VALUE);
        }
        let found = machine.allocations.find(ptr).ok_or(INVALID_VALUE)?;
        let value = value_of(machine, &found, attribute, ptr)?;
        // SAFETY: not null, and valid for the type the API gives this attribute.
        unsafe { value.write(data) };
        Ok(())
    }

    fn cuPointerGetAttributes(n: c_uint, attributes: *mut Attribute, data: *mut *mut c_void, ptr: CUdeviceptr) {
        let machine = machine()?;
        if n == 0 || attributes.is_null() || data.is_null() {
            return Err(INVALID_VALUE);
        }
        let found = machine.allocations.find(ptr);
        for i in 0..n as usize {
            // SAFETY: both arrays have n elements, by contract.
            let (attribute, to) = unsafe { (attributes.add(i).read(), data.add(i).read()) };
            if to.is_null() {
                return Err(INVALID_VALUE);
            }
            // An address that the driver does not know is not an error; its attributes are zero.
            let value = match found.as_deref().map(|a| value_of(machine, a, attribute, ptr)) {
                Some(Ok(value)) => value,
                Some(Err(CUresult::CUDA_ERROR_INVALID_VALUE)) | None => unknown(attribute),
                Some(Err(code)) => return Err(code),
            };
            // SAFETY: not null, and valid for the type the API gives this attribute.
            unsafe { value.write(to) };
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, attribute: Attribute, ptr: CUdeviceptr) {
        let machine = machine()?;
        // SAFETY: the value of the only attribute that can be set is an unsigned number.
        let value = unsafe { crate::abi::input(value.cast::<c_uint>()) }?;
        if attribute != Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value > 1 {
            return Err(INVALID_VALUE);
        }
        let found = machine.allocations.find(ptr).filter(|a| !a.is_host()).ok_or(INVALID_VALUE)?;
        context::wait_idle(&machine.devices[found.device]);
        found.sync_memops.store(value == 1, Ordering::Relaxed);
        Ok(())
    }
}

/// The value of an attribute.
enum Value {
    Bool(bool),
    Int(c_int),
    Uint(c_uint),
    Long(u64),
    Context(CUcontext),
}

impl Value {
    /// # Safety
    /// `to` is valid for a value of this type.
    unsafe fn write(&self, to: *mut c_void) {
        // SAFETY: by contract.
        unsafe {
            match *self {
                Self::Bool(v) => to.cast::<bool>().write(v),
                Self::Int(v) => to.cast::<c_int>().write(v),
                Self::Uint(v) => to.cast::<c_uint>().write(v),
                Self::Long(v) => to.cast::<u64>().write_unaligned(v),
                Self::Context(v) => to.cast::<CUcontext>().write(v),
            }
        }
    }
}

fn value_of(machine: &Machine, a: &Allocation, attribute: Attribute, ptr: u64) -> Result<Value> {
    let device_pointer = if a.is_host() { None } else { Some(ptr) };
    let vmm = matches!(a.origin, Origin::Mapped(_));
    Ok(match attribute {
        // Memory from `cuMemMap` belongs to no context.
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT if vmm => Value::Context(std::ptr::null_mut()),
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => Value::Context(context::handle(a.device)),
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE if a.is_host() => {
            Value::Uint(CUmemorytype::CU_MEMORYTYPE_HOST.0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Uint(CUmemorytype::CU_MEMORYTYPE_DEVICE.0),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Long(ptr),
        Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER if device_pointer.is_none() => Value::Long(ptr),
        Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Value::Bool(a.sync_memops.load(Ordering::Relaxed)),
        Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID | Attribute::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            Value::Long(a.id)
        }
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => Value::Bool(false),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(a.device as c_int),
        Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            Value::Bool(matches!(a.origin, Origin::Device) && !machine.config.lacks.ipc)
        }
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Value::Long(a.base),
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE | Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            Value::Long(a.size)
        }
        Attribute::CU_POINTER_ATTRIBUTE_MAPPED => Value::Bool(true),
        Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Long(match &a.origin {
            Origin::Mapped(physical) => physical.prop.handle_types.into(),
            _ => 0,
        }),
        Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Value::Bool(match &a.origin {
            Origin::Mapped(physical) => physical.prop.rdma,
            _ => !a.is_host(),
        }),
        Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let device = context::current_even_failed(machine).map_or(a.device, |d| d.ordinal);
            let view = machine.space.enter(device);
            Value::Uint(match (view.find(ptr, false), view.find(ptr, true)) {
                (_, Some(_)) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE.0,
                (Some(_), None) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ.0,
                (None, None) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE.0,
            })
        }
        Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Long(0),
        Attribute::CU_POINTER_ATTRIBUTE_P2P_TOKENS
        | Attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        _ => return Err(INVALID_VALUE),
    })
}

fn unknown(attribute: Attribute) -> Value {
    match attribute {
        Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => Value::Context(std::ptr::null_mut()),
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(-2),
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE | Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            Value::Uint(0)
        }
        Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | Attribute::CU_POINTER_ATTRIBUTE_MAPPED
        | Attribute::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | Attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Value::Bool(false),
        _ => Value::Long(0),
    }
}
