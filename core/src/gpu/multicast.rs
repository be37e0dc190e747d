//! Multicast objects: addresses that stand for the memory of several devices at once, over NVSwitch.
//!
//! Source: CUDA driver API, "Multicast Object Management". The order is the driver's: one process makes the object, each member
//! adds its device, and only once all devices have been added does each bind memory of its own, because binding waits for
//! them; then it can be mapped. Used only where the user asks for it: no hardware has confirmed it.
#![allow(unsafe_code, reason = "calls the driver")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use cuda_driver_sys::{CUmulticastGranularity_flags, CUmulticastObjectProp};

use super::context::Context;
use super::disposal::{Action, Users};
use super::driver::call;
use super::handle::HandleTypes;
use super::vmm::{Mapping, PhysicalAllocation};
use crate::error::Result;

/// A multicast object, exportable as a file descriptor: a reference to it, given back when dropped.
#[derive(Debug)]
pub(crate) struct MulticastObject {
    /// The driver counts references, maps and exports as for memory.
    object: Arc<PhysicalAllocation>,
}

/// Memory of a device that is bound to a multicast object from its beginning. Ends when dropped, once nothing of this context runs:
/// the owner keeps it until no peer accesses it any more.
#[derive(Debug)]
pub(crate) struct MulticastBinding {
    object: Arc<PhysicalAllocation>,
    memory: Arc<PhysicalAllocation>,
    size: usize,
}

/// The bytes of which sizes of objects of so many devices, and of what is bound to them, must be multiples.
///
/// # Errors
/// A driver error, for example that the driver has no multicast.
pub(crate) fn granularity(context: &Context, devices: u32) -> Result<usize> {
    let mut bytes = 0;
    // The answer does not depend on the size.
    let prop = properties(devices, 1 << 21);
    let which = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    let _entered = context.enter()?;
    // SAFETY: `bytes` is a live output and `prop` a live input.
    unsafe {
        call!(context.driver(), optional cuMulticastGetGranularity(&raw mut bytes, &raw const prop, which))
    }?;
    Ok(bytes.max(1))
}

impl MulticastObject {
    /// An object for `devices` devices, with `size` bytes each: a multiple of the [`granularity`].
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn create(context: &Context, devices: u32, size: usize) -> Result<Self> {
        let (prop, mut raw) = (properties(devices, size), 0);
        let _entered = context.enter()?;
        // SAFETY: `raw` is a live output and `prop` a live input; the handle is released once, by `PhysicalAllocation`.
        context.noted(unsafe {
            call!(context.driver(), optional cuMulticastCreate(&raw mut raw, &raw const prop))
        })?;
        Ok(Self { object: Arc::new(PhysicalAllocation::of_handle(context, raw, size)) })
    }

    /// Imports an object of `size` bytes that [`export_fd`](Self::export_fd) exported in any process of this host. The descriptor is
    /// not consumed and not needed afterwards.
    ///
    /// # Errors
    /// A driver error, for example that the descriptor is none of its own.
    pub(crate) fn import_fd(context: &Context, fd: BorrowedFd<'_>, size: usize) -> Result<Self> {
        Ok(Self { object: Arc::new(PhysicalAllocation::import_fd(context, fd, size)?) })
    }

    /// A descriptor that other processes of this host can import. Close-on-exec.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn export_fd(&self) -> Result<OwnedFd> {
        self.object.export_fd()
    }

    /// Adds the device of the context, once in the life of the object.
    ///
    /// # Errors
    /// A driver error, for example that the object has the device already.
    pub(crate) fn add_device(&self) -> Result<()> {
        let context = self.object.context();
        let _entered = context.enter()?;
        // SAFETY: `self` holds the handle; the device is the context's.
        context.noted(unsafe {
            call!(context.driver(), optional cuMulticastAddDevice(self.object.raw(), context.device().raw()))
        })
    }

    /// Binds the first `size` bytes of `memory`, which the device of the context has, at the beginning of the object. Call it
    /// once all devices have been added: the driver waits for them, without a deadline.
    ///
    /// # Errors
    /// A driver error, for example for a size that is no multiple of the [`granularity`].
    pub(crate) fn bind(&self, memory: &Arc<PhysicalAllocation>, size: usize) -> Result<MulticastBinding> {
        let (context, object) = (self.object.context(), self.object.raw());
        let _entered = context.enter()?;
        // SAFETY: `self` and the caller hold the handles. The result holds both and ends the binding once.
        context.noted(unsafe {
            call!(context.driver(), optional cuMulticastBindMem(object, 0, memory.raw(), 0, size, 0))
        })?;
        Ok(MulticastBinding { object: self.object.clone(), memory: memory.clone(), size })
    }

    /// Maps it for the device of the context. Only `multimem` instructions may access the addresses, and only where all
    /// devices have bound memory.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn map(&self) -> Result<Mapping> {
        Mapping::new(self.object.context(), vec![self.object.clone()])
    }
}

impl Drop for MulticastBinding {
    fn drop(&mut self) {
        let (object, memory, size) = (self.object.clone(), self.memory.clone(), self.size);
        let unbind: Action = Box::new(move |driver| {
            // SAFETY: bound by `bind` with this size, unbound once; both handles are held until then, and the context is quiet.
            let unbound = unsafe {
                let device = object.context().device().raw();
                call!(driver, optional cuMulticastUnbind(object.raw(), device, 0, size))
            };
            drop((object, memory));
            unbound
        });
        self.object.context().dispose(Users::OWN, unbind);
    }
}

fn properties(devices: u32, size: usize) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size, handleTypes: HandleTypes::FD.bits(), flags: 0 }
}
