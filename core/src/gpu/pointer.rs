//! Questions about an address: where its memory is, how large the allocation is, and how it can be shared.

use std::ffi::c_void;

use cuda_driver_sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult};

use super::context::Context;
use super::driver::call;
use super::handle::HandleTypes;
use crate::error::Result;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum MemoryKind {
    /// On a device.
    Device,
    /// On the host, pinned by or registered with the driver.
    Host,
    /// Migrating between host and devices.
    Managed,
    /// Unknown to the driver: ordinary host memory, or no memory at all.
    Unregistered,
}

/// The driver's knowledge of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerInfo {
    /// Where it is.
    pub kind: MemoryKind,
    /// The device it is on, or was allocated or registered for.
    pub device: Option<u32>,
    /// The start of its allocation.
    pub base: CUdeviceptr,
    /// The bytes of its allocation. For mapped memory: of the one mapping around the address.
    pub size: usize,
    /// How its physical memory can be exported. Empty for plain allocations.
    pub handle_types: HandleTypes,
    /// Whether it has a legacy IPC handle.
    pub legacy_ipc: bool,
    /// A number that no other allocation of this process has, also later.
    pub id: u64,
}

impl PointerInfo {
    /// Asks about `ptr`, any address of this process.
    ///
    /// # Errors
    /// A driver error. An address that the driver does not know is no error, but [`MemoryKind::Unregistered`].
    pub(crate) fn of(context: &Context, ptr: CUdeviceptr) -> Result<Self> {
        let _entered = context.enter()?;
        let get = |attribute| attribute_of(context, attribute, ptr);
        let kind = match get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?.map(low32) {
            Some(t) if t == CUmemorytype::CU_MEMORYTYPE_DEVICE.0 => MemoryKind::Device,
            Some(t) if t == CUmemorytype::CU_MEMORYTYPE_HOST.0 => MemoryKind::Host,
            Some(t) if t == CUmemorytype::CU_MEMORYTYPE_UNIFIED.0 => MemoryKind::Managed,
            _ => MemoryKind::Unregistered,
        };
        let mut info = Self {
            kind,
            device: None,
            base: ptr,
            size: 0,
            handle_types: HandleTypes::NONE,
            legacy_ipc: false,
            id: 0,
        };
        if kind == MemoryKind::Unregistered {
            return Ok(info);
        }
        if get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)?.is_some_and(|managed| managed != 0) {
            info.kind = MemoryKind::Managed;
        }
        let device = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?.map(low32);
        // -1 and -2 mean the host.
        info.device = device.filter(|device| !device.cast_signed().is_negative());
        info.base = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?.unwrap_or(ptr);
        let size = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?.unwrap_or(0);
        info.size = usize::try_from(size).unwrap_or(0);
        let types = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)?.unwrap_or(0);
        info.handle_types = HandleTypes::from_bits(types);
        let legacy = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)?;
        info.legacy_ipc = legacy.is_some_and(|capable| capable != 0);
        info.id = get(CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID)?.unwrap_or(0);
        Ok(info)
    }
}

/// Base and size of the allocation, or of the one mapping, around `ptr`.
pub(super) fn address_range(context: &Context, ptr: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
    let (mut base, mut size) = (0, 0);
    let _entered = context.enter()?;
    // SAFETY: both are live outputs; the driver only looks the address up.
    unsafe { call!(context.driver(), cuMemGetAddressRange_v2(&raw mut base, &raw mut size, ptr)) }?;
    Ok((base, size))
}

/// One attribute; `None` if the driver does not know the address or the attribute. The context is current.
fn attribute_of(context: &Context, attribute: CUpointer_attribute, ptr: CUdeviceptr) -> Result<Option<u64>> {
    // Attributes are of 1, 4 or 8 bytes: room for the largest, zero where a smaller one does not write.
    let mut value = 0_u64;
    let out: *mut u64 = &raw mut value;
    let driver = context.driver();
    // SAFETY: `out` is live and as large as any attribute asked for here; the driver only looks the address up.
    match unsafe { call!(driver, raw cuPointerGetAttribute(out.cast::<c_void>(), attribute, ptr)) }? {
        CUresult::CUDA_SUCCESS => Ok(Some(value)),
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(None),
        other => Err(context.note(driver.error("cuPointerGetAttribute", other))),
    }
}

fn low32(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}
