//! Handles of memory for other processes that are bytes: fabric handles, and legacy IPC.
//!
//! File descriptors, the third kind, are in [`vmm`](super::vmm).
//!
//! Legacy IPC is for plain allocations where VMM is missing. The exporter must not free the memory while anybody has it
//! open, and its exit invalidates it: both ends have to agree on the end of its use.

use std::collections::HashMap;
use std::ffi::c_char;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, PoisonError, Weak};

use cuda_driver_sys::{CUdeviceptr, CUipcMem_flags_enum, CUipcMemHandle};

use super::context::Context;
use super::disposal::{Action, Users};
use super::driver::call;
pub use super::handle::FabricHandle;
use super::keep::KeepAlive;
use super::pointer::address_range;
use super::slice::{DeviceSlice, resolve};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// A handle made by [`LegacyHandle::export`] for other processes of this host. A bearer token: its bytes are not shown
/// in messages.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LegacyHandle(pub [u8; 64]);

impl fmt::Debug for LegacyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LegacyHandle(..)")
    }
}

impl LegacyHandle {
    /// Exports the whole plain allocation around `ptr`: opening it gives the address that
    /// `PointerInfo` calls its base.
    ///
    /// # Errors
    /// A driver error; mapped memory (VMM) has no legacy handle.
    pub fn export(context: &Context, ptr: CUdeviceptr) -> Result<Self> {
        let (base, _) = address_range(context, ptr)?;
        let mut handle = CUipcMemHandle::default();
        let _entered = context.enter()?;
        // SAFETY: `handle` is a live output; the driver checks the address.
        context.noted(unsafe { call!(context.driver(), cuIpcGetMemHandle(&raw mut handle, base)) })?;
        Ok(Self(handle.reserved.map(|b| u8::from_ne_bytes(b.to_ne_bytes()))))
    }
}

/// Adds the usual causes to the error: drivers give different codes for a dead exporter, and none names it.
fn cannot_open(error: &Error) -> Error {
    let message = format!(
        "{}; the process that exported the handle must be another one, still run, and still have the memory allocated",
        error.message()
    );
    Error::new(error.kind(), error.op(), message).with_code(error.code())
}

/// The handles open in one context: the driver maps each once, so each is opened once and shared.
#[derive(Default)]
struct LegacyCache(Mutex<HashMap<LegacyHandle, Weak<Opened>>>);

/// One opening of a handle, closed once.
struct Opened {
    ptr: CUdeviceptr,
    size: usize,
    after: Mutex<Vec<AfterClose>>,
    context: Context,
}

type AfterClose = Box<dyn FnOnce() + Send>;

/// An allocation of another process, open in this one. Cheap to clone; closed when the last clone, and the last other
/// mapping of the same handle, is dropped.
#[derive(Clone)]
pub struct LegacyMapping {
    opened: Arc<Opened>,
}

impl LegacyMapping {
    /// Opens `handle`, made by [`LegacyHandle::export`] in another process of this host.
    ///
    /// # Errors
    /// A driver error: a process cannot open its own handle, nor one whose process is gone.
    pub fn open(context: &Context, handle: &LegacyHandle) -> Result<Self> {
        let mut open = lock(&context.slot::<LegacyCache>().0);
        if let Some(opened) = open.get(handle).and_then(Weak::upgrade) {
            return Ok(Self { opened });
        }
        let raw = CUipcMemHandle { reserved: handle.0.map(|b| c_char::from_ne_bytes([b])) };
        let flags = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        let mut ptr = 0;
        let _entered = context.enter()?;
        // SAFETY: `ptr` is a live output; what is opened is closed once, after `Opened` is dropped.
        let result = unsafe { call!(context.driver(), cuIpcOpenMemHandle_v2(&raw mut ptr, raw, flags)) };
        context.noted(result.map_err(|error| cannot_open(&error)))?;
        // From here on `Opened` closes it, also when the size cannot be had.
        let mut opened = Opened { ptr, size: 0, after: Mutex::default(), context: context.clone() };
        opened.size = address_range(context, ptr)?.1;
        let opened = Arc::new(opened);
        open.retain(|_, weak| weak.strong_count() > 0);
        open.insert(handle.clone(), Arc::downgrade(&opened));
        Ok(Self { opened })
    }

    /// Drops this mapping, and has `after` run once the handle is really closed: at once, or when no work that may use
    /// it runs any more. If it cannot be closed (the context is lost), `after` is dropped without running.
    ///
    /// It runs on the thread whose call happened to close the handle, and must not wait.
    pub fn close_then(self, after: impl FnOnce() + Send + 'static) {
        lock(&self.opened.after).push(Box::new(after));
    }

    /// The address of the allocation's first byte in this process.
    pub fn ptr(&self) -> CUdeviceptr {
        self.opened.ptr
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.opened.size
    }

    /// A range of it, in bytes, that keeps it open.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let Opened { ptr, size, context, .. } = &*self.opened;
        let (start, len) = resolve(*size, range)?;
        let keep = Arc::clone(&self.opened) as KeepAlive;
        // SAFETY: the range lies within the mapping, which is open as long as `keep` lives. That the exporter keeps the
        // memory is its side of the agreement in the module's documentation.
        Ok(unsafe { DeviceSlice::from_raw(context, ptr + start as u64, len, keep) })
    }
}

impl fmt::Debug for LegacyMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LegacyMapping({:#x}, {} bytes)", self.ptr(), self.size())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let ptr = self.ptr;
        let after = std::mem::take(self.after.get_mut().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: opened once by `LegacyMapping::open` and closed once; all contexts are quiet when this runs: the handle
        // was opened with peer access, so the driver may wait for every device.
        let close: Action = Box::new(move |driver| unsafe { call!(driver, cuIpcCloseMemHandle(ptr)) });
        self.context.dispose_then(Users::All, close, Box::new(move || after.into_iter().for_each(|f| f())));
    }
}
