//! Memory that can be exposed to peers.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::DeviceMemory;
use super::lent::Lent;
use super::shared::SharedMemory;

/// Bytes that stay as they are and where they are while they are exposed: of an `Arc<[u8]>`, a `Vec<u8>`, or static ones; or a
/// [`SharedMemory`], which processes of the same host read without their owner's help; or the memory of a device: a
/// [`GpuBuffer`](crate::gpu::GpuBuffer).
#[derive(Clone, Debug)]
pub struct Memory {
    pub(super) bytes: Lent,
    pub(super) shared: Option<SharedMemory>,
    pub(super) device: Option<Arc<dyn DeviceMemory>>,
}

impl Memory {
    /// `length` bytes at `address`, kept by `owner`.
    ///
    /// # Safety
    /// `owner` keeps them readable and at that address for as long as it lives, and nothing writes to them meanwhile.
    pub unsafe fn from_raw(address: NonNull<u8>, length: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        // SAFETY: the caller's promise.
        Self { bytes: unsafe { Lent::new(address, length, true, owner) }, shared: None, device: None }
    }

    /// Memory of a device.
    pub(crate) fn of_device(memory: Arc<dyn DeviceMemory>) -> Self {
        Self { bytes: Lent::of(Vec::new()), shared: None, device: Some(memory) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.device.as_ref().map_or(self.bytes.len(), |device| device.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Arc<[u8]>> for Memory {
    fn from(bytes: Arc<[u8]>) -> Self {
        let (address, length) = (NonNull::from(&*bytes).cast(), bytes.len());
        // SAFETY: the bytes of an `Arc` stay where they are and cannot be written to while a share in them, here the owner, lives.
        unsafe { Self::from_raw(address, length, Arc::new(bytes)) }
    }
}

impl From<Arc<Vec<u8>>> for Memory {
    fn from(bytes: Arc<Vec<u8>>) -> Self {
        let (address, length) = (NonNull::from(bytes.as_slice()).cast(), bytes.len());
        // SAFETY: as above.
        unsafe { Self::from_raw(address, length, bytes) }
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Arc::new(bytes).into()
    }
}

impl From<SharedMemory> for Memory {
    fn from(memory: SharedMemory) -> Self {
        Self { bytes: memory.lent(), shared: Some(memory), device: None }
    }
}

impl From<&SharedMemory> for Memory {
    fn from(memory: &SharedMemory) -> Self {
        memory.clone().into()
    }
}

impl From<&'static [u8]> for Memory {
    fn from(bytes: &'static [u8]) -> Self {
        // SAFETY: static bytes live for good and cannot be written to.
        unsafe { Self::from_raw(NonNull::from(bytes).cast(), bytes.len(), Arc::new(())) }
    }
}
