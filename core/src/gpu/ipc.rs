//! Handles of memory for other processes that are bytes: fabric handles, and legacy IPC.
//!
//! File descriptors, the third kind, are in [`vmm`](super::vmm).
//!
//! Legacy IPC is for plain allocations where VMM is missing. The exporter must not free the memory while anybody has it
//! open, and its exit invalidates it: both ends have to agree on the end of its use.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, Weak};

use cuda_driver_sys::{CUdeviceptr, CUipcMem_flags_enum, CUipcMemHandle};

use super::context::{Context, lock};
use super::driver::call;
use super::pointer::address_range;
use super::slice::{DeviceSlice, resolve};
use super::stream::KeepAlive;
use crate::error::Result;

/// What [`PhysicalAllocation::export_fabric`](super::vmm::PhysicalAllocation::export_fabric) gives. A bearer token: its
/// bytes are not shown in messages.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FabricHandle(pub [u8; 64]);

/// What [`LegacyExport`] carries to another process of this host. A bearer token: its bytes are not shown in messages.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LegacyHandle(pub [u8; 64]);

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricHandle(..)")
    }
}

impl fmt::Debug for LegacyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LegacyHandle(..)")
    }
}

/// A plain allocation as other processes can open it.
#[derive(Clone, Debug)]
pub struct LegacyExport {
    /// The handle of the whole allocation.
    pub handle: LegacyHandle,
    /// Where in the allocation the exported address lies, in bytes.
    pub offset: usize,
    /// The bytes of the whole allocation.
    pub size: usize,
}

/// Exports the plain allocation around `ptr`.
///
/// # Errors
/// What the driver says; mapped memory (VMM) has no legacy handle.
pub fn export_legacy(context: &Context, ptr: CUdeviceptr) -> Result<LegacyExport> {
    let (base, size) = address_range(context, ptr)?;
    let mut handle = CUipcMemHandle::default();
    let _entered = context.enter()?;
    // SAFETY: `handle` is a live output; the driver checks the address.
    context.noted(unsafe { call!(context.driver(), cuIpcGetMemHandle(&raw mut handle, base)) })?;
    let bytes = handle.reserved.map(|b| u8::from_ne_bytes(b.to_ne_bytes()));
    Ok(LegacyExport { handle: LegacyHandle(bytes), offset: (ptr - base) as usize, size })
}

/// The handles open in one context: the driver maps each once, so each is opened once and shared.
#[derive(Default)]
pub(super) struct LegacyCache(Mutex<HashMap<LegacyHandle, Weak<LegacyMapping>>>);

/// An allocation of another process, open in this one. Closed when the last holder drops it.
#[derive(Debug)]
pub struct LegacyMapping {
    ptr: CUdeviceptr,
    size: usize,
    context: Context,
}

impl LegacyMapping {
    /// Opens `handle`, made by [`export_legacy`] in another process of this host.
    ///
    /// # Errors
    /// What the driver says: a process cannot open its own handle, nor one whose process is gone.
    pub fn open(context: &Context, handle: &LegacyHandle) -> Result<Arc<Self>> {
        let mut open = lock(&context.inner.legacy.0);
        if let Some(mapping) = open.get(handle).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let raw = CUipcMemHandle { reserved: handle.0.map(|b| core::ffi::c_char::from_ne_bytes([b])) };
        let flags = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        let mut ptr = 0;
        let _entered = context.enter()?;
        // SAFETY: `ptr` is a live output; what is opened is closed once, after the mapping is dropped.
        context.noted(unsafe { call!(context.driver(), cuIpcOpenMemHandle_v2(&raw mut ptr, raw, flags)) })?;
        // From here on the mapping closes it, also when the size cannot be had.
        let mut mapping = Self { ptr, size: 0, context: context.clone() };
        mapping.size = address_range(context, ptr)?.1;
        let mapping = Arc::new(mapping);
        open.retain(|_, weak| weak.strong_count() > 0);
        open.insert(handle.clone(), Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// The address of the allocation's first byte in this process.
    pub fn ptr(&self) -> CUdeviceptr {
        self.ptr
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// A range of it, in bytes, that keeps it open.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let (start, len) = resolve(self.size, range)?;
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the mapping, which is open as long as `keep` lives. That the exporter keeps the
        // memory is its side of the agreement in the module's documentation.
        Ok(unsafe { DeviceSlice::from_raw(&self.context, self.ptr + start as u64, len, keep) })
    }
}

impl Drop for LegacyMapping {
    fn drop(&mut self) {
        let ptr = self.ptr;
        // SAFETY: opened by `open`, closed once (the driver counts openings); the context is quiet when this runs.
        self.context.dispose(Box::new(move |driver| unsafe { call!(driver, cuIpcCloseMemHandle(ptr)) }));
    }
}
