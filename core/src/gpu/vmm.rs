//! Virtual memory management: physical allocations, and the addresses they are mapped at.
//!
//! Source: CUDA driver API, "Virtual Memory Management". An allocation can be exported to other processes and mapped by
//! each; the memory lives until the last holder in any process is gone, so a mapping survives its exporter.

use std::ffi::{c_int, c_void};
use std::ops::RangeBounds;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, PoisonError};

use cuda_driver_sys::{
    CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemFabricHandle,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::context::Context;
use super::device::Device;
use super::disposal::{Action, Users};
use super::driver::call;
use super::handle::FabricHandle;
pub use super::handle::HandleTypes;
use super::keep::KeepAlive;
use super::pointer::address_range;
use super::slice::{DeviceSlice, resolve};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Physical device memory, without an address: a reference to it, given back when dropped.
#[derive(Debug)]
pub struct PhysicalAllocation {
    raw: CUmemGenericAllocationHandle,
    size: usize,
    context: Context,
}

impl PhysicalAllocation {
    /// At least `size` bytes on `context`'s device, rounded up to the granularity.
    ///
    /// # Errors
    /// Out of memory; a kind of handle that is not supported or permitted.
    pub fn create(context: &Context, size: usize, types: HandleTypes) -> Result<Self> {
        let prop = properties(context.device(), types)?;
        let granularity = granularity(context, &prop)?;
        let size = size
            .checked_next_multiple_of(granularity)
            .filter(|&size| size > 0)
            .ok_or_else(|| Error::usage("cuMemCreate", format!("{size} bytes cannot be allocated")))?;
        let mut raw = 0;
        let _entered = context.enter()?;
        // SAFETY: `raw` is a live output and `prop` a live input; the handle is released once, in `Drop`.
        context.noted(unsafe {
            call!(context.driver(), allocate size, optional cuMemCreate(&raw mut raw, size, &raw const prop, 0))
        })?;
        Ok(Self { raw, size, context: context.clone() })
    }

    /// A handle of `size` bytes that the driver has just made.
    pub(super) fn of_handle(context: &Context, raw: CUmemGenericAllocationHandle, size: usize) -> Self {
        Self { raw, size, context: context.clone() }
    }

    /// The driver's handle, valid while `self` lives.
    pub(super) fn raw(&self) -> CUmemGenericAllocationHandle {
        self.raw
    }

    /// The allocation mapped at `ptr`, by whomever in this process, of which `size` bytes are mapped there.
    fn of_address(context: &Context, ptr: CUdeviceptr, size: usize) -> Result<Self> {
        let mut raw = 0;
        let address = ptr::with_exposed_provenance_mut::<c_void>(ptr as usize);
        let _entered = context.enter()?;
        // SAFETY: `raw` is a live output; the driver only looks the address up. The reference gained is released once.
        unsafe { call!(context.driver(), optional cuMemRetainAllocationHandle(&raw mut raw, address)) }?;
        Ok(Self { raw, size, context: context.clone() })
    }

    /// Imports `size` bytes exported by [`PhysicalAllocation::export_fd`] in any process of this host. The descriptor
    /// is not consumed and not needed afterwards.
    ///
    /// # Errors
    /// A driver error, for example that the descriptor is none of its own.
    pub fn import_fd(context: &Context, fd: BorrowedFd<'_>, size: usize) -> Result<Self> {
        let handle = ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        Self::import(
            context,
            handle,
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            size,
        )
    }

    /// Imports `size` bytes exported by [`PhysicalAllocation::export_fabric`] on any host of the NVLink domain.
    ///
    /// # Errors
    /// A driver error, for example that there is no IMEX channel.
    pub fn import_fabric(context: &Context, handle: &FabricHandle, size: usize) -> Result<Self> {
        let mut raw = CUmemFabricHandle { data: handle.0 };
        let raw: *mut CUmemFabricHandle = &raw mut raw;
        Self::import(context, raw.cast(), CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC, size)
    }

    fn import(
        context: &Context,
        handle: *mut c_void,
        kind: CUmemAllocationHandleType,
        size: usize,
    ) -> Result<Self> {
        let mut raw = 0;
        let _entered = context.enter()?;
        // SAFETY: `handle` is what `kind` asks for, alive during the call; `raw` is a live output. The reference
        // gained is released once, in `Drop`.
        context.noted(unsafe {
            call!(context.driver(), optional cuMemImportFromShareableHandle(&raw mut raw, handle, kind))
        })?;
        Ok(Self { raw, size, context: context.clone() })
    }

    /// A descriptor that other processes of this host can import. Close-on-exec.
    ///
    /// # Errors
    /// A driver error, for example that the allocation was not made exportable.
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let out: *mut c_int = &raw mut fd;
        self.export(out.cast(), CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)?;
        // SAFETY: the driver made the descriptor for us; nobody else closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor of ours.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            let source = std::io::Error::last_os_error();
            return Err(Error::system("export_fd", "cannot make the descriptor close-on-exec", source));
        }
        Ok(fd)
    }

    /// The bytes that other processes of the NVLink domain can import. Whoever has them can: send them over
    /// authenticated links only.
    ///
    /// # Errors
    /// A driver error, for example that the allocation was not made exportable so.
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        let mut handle = CUmemFabricHandle { data: [0; 64] };
        let out: *mut CUmemFabricHandle = &raw mut handle;
        self.export(out.cast(), CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC)?;
        Ok(FabricHandle(handle.data))
    }

    fn export(&self, out: *mut c_void, kind: CUmemAllocationHandleType) -> Result<()> {
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: `out` is a live output of the type that `kind` asks for; the handle is held by `self`.
        unsafe { call!(driver, optional cuMemExportToShareableHandle(out, self.raw, kind, 0)) }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The kinds of handle it can be exported as.
    ///
    /// # Errors
    /// A driver error.
    pub fn handle_types(&self) -> Result<HandleTypes> {
        let mut prop = CUmemAllocationProp::default();
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: `prop` is a live output; the handle is held by `self`.
        unsafe { call!(driver, optional cuMemGetAllocationPropertiesFromHandle(&raw mut prop, self.raw)) }?;
        Ok(HandleTypes::of(prop.requestedHandleTypes))
    }

    /// The context it was made or imported in.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for PhysicalAllocation {
    fn drop(&mut self) {
        let driver = self.context.driver();
        if driver.forked() {
            return;
        }
        // SAFETY: the one reference this value holds, given back once. Mappings hold their own: this frees nothing that
        // is mapped.
        let release = || unsafe { call!(driver, optional cuMemRelease(self.raw)) };
        driver.note_drop(self.context.enter().and_then(|_entered| release()));
    }
}

/// Addresses of this process at which allocations are mapped, one behind the other.
#[derive(Debug)]
pub struct Mapping {
    ptr: CUdeviceptr,
    size: usize,
    /// Allocations mapped so far; all of them once `new` has returned.
    parts: Vec<Arc<PhysicalAllocation>>,
    /// Devices that may access it. The lock is held while the driver is told: of two threads that tell it of one device
    /// at a time, CUDA 13.0 fails one with `CUDA_ERROR_ALREADY_MAPPED`, and the device has no access afterwards.
    allowed: Mutex<Vec<Device>>,
    /// The access that those devices have.
    access: CUmemAccess_flags,
    context: Context,
}

impl Mapping {
    /// Maps `parts`, readable and writable by `context`'s device.
    ///
    /// # Errors
    /// Invalid usage if there are none or they are too large together; a driver error.
    pub fn new(context: &Context, parts: Vec<Arc<PhysicalAllocation>>) -> Result<Self> {
        Self::with_access(context, parts, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }

    /// Maps `parts` so that devices can read and not write them.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn read_only(context: &Context, parts: Vec<Arc<PhysicalAllocation>>) -> Result<Self> {
        Self::with_access(context, parts, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ)
    }

    fn with_access(
        context: &Context,
        parts: Vec<Arc<PhysicalAllocation>>,
        access: CUmemAccess_flags,
    ) -> Result<Self> {
        let size = parts
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.size))
            .filter(|&size| size > 0)
            .ok_or_else(|| {
                Error::usage("cuMemMap", "there is nothing to map, or more than can be addressed")
            })?;
        let driver = context.driver();
        let _entered = context.enter()?;
        let mut ptr = 0;
        // SAFETY: `ptr` is a live output; the range is given back once, after this value is dropped.
        context.noted(unsafe { call!(driver, optional cuMemAddressReserve(&raw mut ptr, size, 0, 0, 0)) })?;
        let mut mapping = Self {
            ptr,
            size,
            parts: Vec::new(),
            allowed: Mutex::default(),
            access,
            context: context.clone(),
        };
        let mut at = ptr;
        for part in parts {
            // SAFETY: `at .. at + size` lies in the reserved range and nothing is mapped there; unmapped once.
            context.noted(unsafe { call!(driver, optional cuMemMap(at, part.size, 0, part.raw, 0)) })?;
            at += part.size as u64;
            mapping.parts.push(part);
        }
        mapping.allow(context.device())?;
        Ok(mapping)
    }

    /// Lets `device` access it at the same address, as it was mapped. Does nothing if it may already.
    ///
    /// # Errors
    /// A driver error, for example that the device cannot reach the memory.
    pub fn allow(&self, device: &Device) -> Result<()> {
        let mut allowed = lock(&self.allowed);
        if allowed.contains(device) {
            return Ok(());
        }
        // Another value of the same driver may have told it already. Both have contexts that use the memory.
        if allowed.iter().any(|known| known.raw() == device.raw()) {
            allowed.push(device.clone());
            return Ok(());
        }
        let desc = CUmemAccessDesc { location: location(device), flags: self.access };
        let driver = self.context.driver();
        let _entered = self.context.enter()?;
        // SAFETY: the whole range is mapped by `self`; `desc` is a live input.
        self.context.noted(unsafe {
            call!(driver, optional cuMemSetAccess(self.ptr, self.size, &raw const desc, 1))
        })?;
        allowed.push(device.clone());
        Ok(())
    }

    /// The address.
    pub fn ptr(&self) -> CUdeviceptr {
        self.ptr
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The mapped allocations, in order.
    pub fn parts(&self) -> &[Arc<PhysicalAllocation>] {
        &self.parts
    }

    /// A range of it, in bytes, that keeps it mapped.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let (start, len) = resolve(self.size, range)?;
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the mapping, which lives as long as `keep`.
        Ok(unsafe { DeviceSlice::from_raw(&self.context, self.ptr + start as u64, len, keep) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (ptr, size, parts) = (self.ptr, self.size, std::mem::take(&mut self.parts));
        let allowed = std::mem::take(self.allowed.get_mut().unwrap_or_else(PoisonError::into_inner));
        let unmap: Action = Box::new(move |driver| {
            let mut at = ptr;
            for part in &parts {
                // SAFETY: mapped by `new`, unmapped once; the contexts of all devices with access are quiet, so nothing
                // uses it.
                unsafe { call!(driver, optional cuMemUnmap(at, part.size)) }?;
                at += part.size as u64;
            }
            // SAFETY: reserved by `new`, nothing is mapped there any more, given back once.
            unsafe { call!(driver, optional cuMemAddressFree(ptr, size)) }
        });
        self.context.dispose(Users::Devices(allowed), unmap);
    }
}

/// One piece of a range of mapped memory.
#[derive(Debug)]
pub struct Chunk {
    /// Where it is mapped.
    pub base: CUdeviceptr,
    /// The bytes mapped there.
    pub size: usize,
    /// The mapped allocation.
    pub allocation: PhysicalAllocation,
}

/// The pieces that `ptr .. ptr + len` is made of, in order; the first may begin before `ptr` and the last end beyond.
///
/// Memory of another library may be several allocations mapped side by side (expandable segments); all of them have to
/// be exported to export the range.
///
/// # Errors
/// A driver error: plain allocations have no such pieces.
pub fn chunks(context: &Context, ptr: CUdeviceptr, len: usize) -> Result<Vec<Chunk>> {
    let end = ptr
        .checked_add(len as u64)
        .ok_or_else(|| Error::usage("chunks", format!("{len} bytes at {ptr:#x} exceed the address space")))?;
    let mut chunks = Vec::new();
    let mut at = ptr;
    while at < end {
        let (base, size) = address_range(context, at)?;
        chunks.push(Chunk { base, size, allocation: PhysicalAllocation::of_address(context, at, size)? });
        let next = base + size as u64;
        if next <= at {
            return Err(Error::usage("chunks", format!("the driver knows no allocation at {at:#x}")));
        }
        at = next;
    }
    Ok(chunks)
}

fn properties(device: &Device, types: HandleTypes) -> Result<CUmemAllocationProp> {
    let mut prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: types.raw(),
        location: location(device),
        ..CUmemAllocationProp::default()
    };
    // So that a NIC can register the memory later.
    let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    prop.allocFlags.gpuDirectRDMACapable = u8::from(device.can(rdma)?);
    Ok(prop)
}

fn granularity(context: &Context, prop: &CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let which = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let prop: *const CUmemAllocationProp = prop;
    let _entered = context.enter()?;
    // SAFETY: `bytes` is a live output and `prop` a live input.
    unsafe { call!(context.driver(), optional cuMemGetAllocationGranularity(&raw mut bytes, prop, which)) }?;
    Ok(bytes.max(1))
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw() }
}
