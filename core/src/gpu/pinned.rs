//! Host memory that devices can access: allocated by the driver, or registered with it.

use std::ffi::c_void;
use std::ops::RangeBounds;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cuda_driver_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CUdeviceptr,
};

use super::context::Context;
use super::disposal::{Action, Users};
use super::driver::call;
use super::keep::KeepAlive;
use super::slice::{DeviceSlice, resolve};
use crate::error::{Error, ErrorKind, Result};
use crate::volatile::VolatileSlice;

/// Zeroed host memory, page-locked and mapped into every device's address space. Freed when dropped.
///
/// Devices write it while the host reads: it is reached through [`VolatileSlice`] only, never as `&[u8]`.
#[derive(Debug)]
pub struct PinnedBuffer {
    host: NonNull<u8>,
    device: CUdeviceptr,
    len: usize,
    context: Context,
}

// SAFETY: the memory belongs to no thread, and is freed once, in `Drop`.
unsafe impl Send for PinnedBuffer {}
// SAFETY: it is reached through `VolatileSlice`, whose accesses are atomic; no reference to plain data in it is given
// out.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `len` bytes, page-aligned.
    ///
    /// # Errors
    /// Invalid usage for zero bytes; a driver error, for example that no more memory can be locked.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::usage("PinnedBuffer", "a buffer of zero bytes cannot be allocated"));
        }
        context.reap();
        let driver = context.driver();
        let _entered = context.enter()?;
        let mut host: *mut c_void = ptr::null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `host` is a live output; the memory is freed once, after this value is dropped.
        context.noted(unsafe { call!(driver, allocate len, cuMemHostAlloc(&raw mut host, len, flags)) })?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(Error::new(ErrorKind::Cuda, "cuMemHostAlloc", "the driver gave a null address"));
        };
        // SAFETY: `len` bytes just allocated; nobody else knows of them yet.
        unsafe { ptr::write_bytes(host.as_ptr(), 0, len) };
        let mut buffer = Self { host, device: 0, len, context: context.clone() };
        buffer.device = device_address(context, host)?;
        Ok(buffer)
    }

    /// The host address.
    pub fn host_ptr(&self) -> NonNull<u8> {
        self.host
    }

    /// The address for kernels of any device.
    pub fn device_ptr(&self) -> CUdeviceptr {
        self.device
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The context it was made in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its bytes, for the host.
    pub fn memory(&self) -> VolatileSlice<'_> {
        // SAFETY: `len` bytes that live as long as `self`, and which this process reaches through this method only.
        unsafe { VolatileSlice::new(self.host, self.len) }
    }

    /// A range of it, in bytes, that keeps it alive.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let (start, len) = resolve(self.len, range)?;
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the buffer, which lives as long as `keep`.
        Ok(unsafe { DeviceSlice::from_raw(&self.context, self.device + start as u64, len, keep) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // As an address: a raw pointer is not Send.
        let host = self.host.as_ptr().expose_provenance();
        self.context.dispose(
            Users::All,
            Box::new(move |driver| {
                let host = ptr::with_exposed_provenance_mut::<c_void>(host);
                // SAFETY: ours, freed once; all contexts are quiet when this runs.
                unsafe { call!(driver, cuMemFreeHost(host)) }
            }),
        );
    }
}

/// Host memory of another owner, page-locked and mapped for devices until this is dropped.
#[derive(Debug)]
pub(crate) struct HostRegistration {
    host: NonNull<u8>,
    device: CUdeviceptr,
    len: usize,
    keep: KeepAlive,
    context: Context,
}

// SAFETY: the address is only handed to the driver and to the user; undone once, in `Drop`.
unsafe impl Send for HostRegistration {}
// SAFETY: nothing in it changes after construction.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Registers `host .. host + len`.
    ///
    /// # Safety
    /// The range must be mapped memory of this process, and remain so until `keep` is dropped. Devices will write it:
    /// no Rust reference to it may exist while they may.
    ///
    /// # Errors
    /// Invalid usage for no bytes; a driver error, for example that part of it is registered already.
    pub(crate) unsafe fn new(context: &Context, host: *mut u8, len: usize, keep: KeepAlive) -> Result<Self> {
        let Some(host) = NonNull::new(host).filter(|_| len > 0) else {
            return Err(Error::usage("HostRegistration", "there is no memory to register"));
        };
        let driver = context.driver();
        let _entered = context.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller vouches for the range; it is unregistered once, before `keep` is dropped.
        context.noted(unsafe { call!(driver, cuMemHostRegister_v2(host.as_ptr().cast(), len, flags)) })?;
        let mut registration = Self { host, device: 0, len, keep, context: context.clone() };
        registration.device = device_address(context, host)?;
        Ok(registration)
    }

    /// A range of it, in bytes, that keeps it registered.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub(crate) fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
        let (start, len) = resolve(self.len, range)?;
        let keep = Arc::clone(self) as KeepAlive;
        // SAFETY: the range lies within the registration, which lives as long as `keep`.
        Ok(unsafe { DeviceSlice::from_raw(&self.context, self.device + start as u64, len, keep) })
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let host = self.host.as_ptr().expose_provenance();
        let keep = Arc::clone(&self.keep);
        let unregister: Action = Box::new(move |driver| {
            let host = ptr::with_exposed_provenance_mut::<c_void>(host);
            // SAFETY: registered by `new`, undone once; all contexts are quiet when this runs, and `keep` keeps the memory until
            // it has.
            unsafe { call!(driver, cuMemHostUnregister(host)) }
        });
        self.context.dispose_then(Users::All, unregister, Box::new(move || drop(keep)));
    }
}

fn device_address(context: &Context, host: NonNull<u8>) -> Result<CUdeviceptr> {
    let mut device = 0;
    // SAFETY: `device` is a live output; the driver only looks the address up.
    context.noted(unsafe {
        call!(context.driver(), cuMemHostGetDevicePointer_v2(&raw mut device, host.as_ptr().cast(), 0))
    })?;
    Ok(device)
}
