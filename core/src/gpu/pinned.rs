//! Host memory that devices can access: allocated by the driver, or registered with it.

use std::ffi::c_void;
use std::ops::RangeBounds;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use cuda_driver_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CUdeviceptr,
};

use super::context::Context;
use super::driver::call;
use super::pod::Pod;
use super::slice::{DeviceSlice, check, resolve};
use super::stream::KeepAlive;
use crate::error::{Error, Result};

/// Zeroed host memory, page-locked and mapped into every device's address space. Freed when dropped.
///
/// Devices write it while the host reads: it is reached through atomics and volatile copies only, never as a slice.
#[derive(Debug)]
pub struct PinnedBuffer {
    host: NonNull<u8>,
    device: CUdeviceptr,
    len: usize,
    context: Context,
}

// SAFETY: the memory belongs to no thread, and is freed once, in `Drop`.
unsafe impl Send for PinnedBuffer {}
// SAFETY: it is reached through atomics and volatile accesses, which concurrent devices and threads are expected to
// make; no reference to plain data in it is ever given out.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `len` bytes, page-aligned.
    ///
    /// # Errors
    /// Invalid usage for zero bytes; what the driver says, for example that no more memory can be locked.
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
        context.noted(unsafe { call!(driver, cuMemHostAlloc(&raw mut host, len, flags)) })?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(Error::new(
                crate::ErrorKind::Cuda,
                "cuMemHostAlloc",
                "the driver gave a null address",
            ));
        };
        // SAFETY: `len` bytes just allocated; nobody else knows of them yet.
        unsafe { ptr::write_bytes(host.as_ptr(), 0, len) };
        let mut buffer = Self { host, device: 0, len, context: context.clone() };
        buffer.device = device_address(context, host)?;
        Ok(buffer)
    }

    /// The host address.
    pub fn host_ptr(&self) -> *mut u8 {
        self.host.as_ptr()
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

    /// The aligned word at byte `offset`.
    ///
    /// # Errors
    /// Invalid usage if it does not lie within or is not aligned.
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32> {
        let at = self.element::<u32>(offset, 1)?;
        // SAFETY: aligned, within the buffer, alive as long as `self`, and only ever accessed atomically or volatile.
        Ok(unsafe { AtomicU32::from_ptr(at) })
    }

    /// The aligned double word at byte `offset`.
    ///
    /// # Errors
    /// Invalid usage if it does not lie within or is not aligned.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.element::<u64>(offset, 1)?;
        // SAFETY: as for 32 bits.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Copies what is at byte `offset`, element by element, into `values`.
    ///
    /// # Errors
    /// Invalid usage if there is not as much or the offset is not aligned for `T`.
    pub fn read<T: Pod>(&self, offset: usize, values: &mut [T]) -> Result<()> {
        let from = self.element::<T>(offset, values.len())?;
        for (i, value) in values.iter_mut().enumerate() {
            // SAFETY: aligned and within the buffer; whatever bits are there are a valid `T`.
            *value = unsafe { from.add(i).read_volatile() };
        }
        Ok(())
    }

    /// Copies `values`, element by element, to byte `offset`.
    ///
    /// # Errors
    /// Invalid usage if they do not fit or the offset is not aligned for `T`.
    pub fn write<T: Pod>(&self, offset: usize, values: &[T]) -> Result<()> {
        let to = self.element::<T>(offset, values.len())?;
        for (i, value) in values.iter().enumerate() {
            // SAFETY: aligned and within the buffer.
            unsafe { to.add(i).write_volatile(*value) };
        }
        Ok(())
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

    fn element<T>(&self, offset: usize, count: usize) -> Result<*mut T> {
        let bytes = count.checked_mul(size_of::<T>()).unwrap_or(usize::MAX);
        check(self.len, offset, bytes)?;
        // SAFETY: `offset` is at most `len`.
        let at = unsafe { self.host.as_ptr().add(offset) };
        if at.align_offset(align_of::<T>()) != 0 {
            let message = format!("offset {offset} is not a multiple of {}", align_of::<T>());
            return Err(Error::usage("PinnedBuffer", message));
        }
        Ok(at.cast())
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // As an address: a raw pointer is not Send.
        let host = self.host.as_ptr().expose_provenance();
        self.context.dispose(Box::new(move |driver| {
            let host = ptr::with_exposed_provenance_mut::<c_void>(host);
            // SAFETY: ours, freed once; the context is quiet when this runs.
            unsafe { call!(driver, cuMemFreeHost(host)) }
        }));
    }
}

/// Host memory of somebody else, page-locked and mapped for devices until this is dropped.
#[derive(Debug)]
pub struct HostRegistration {
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
    /// Invalid usage for no bytes; what the driver says, for example that part of it is registered already.
    pub unsafe fn new(context: &Context, host: *mut u8, len: usize, keep: KeepAlive) -> Result<Self> {
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

    /// The host address.
    pub fn host_ptr(&self) -> *mut u8 {
        self.host.as_ptr()
    }

    /// The address for kernels of any device.
    pub fn device_ptr(&self) -> CUdeviceptr {
        self.device
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: at least one byte is registered.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A range of it, in bytes, that keeps it registered.
    ///
    /// # Errors
    /// Invalid usage if the range does not lie within.
    pub fn slice(self: &Arc<Self>, range: impl RangeBounds<usize>) -> Result<DeviceSlice> {
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
        self.context.dispose(Box::new(move |driver| {
            let host = ptr::with_exposed_provenance_mut::<c_void>(host);
            // SAFETY: registered by `new`, undone once; the context is quiet when this runs, and `keep` keeps the
            // memory until it has.
            let result = unsafe { call!(driver, cuMemHostUnregister(host)) };
            drop(keep);
            result
        }));
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
