//! The contract between messages and the memory of devices, which a higher room keeps: messages know no GPU.
//!
//! The processor cannot reach such memory. It is copied through a bounded stock of staging memory, or, if its owner runs on the same host, by
//! the reader's device from the owner's. No call waits for a device: copies are begun, and asked later whether they are done.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::shared::SharedMemory;
use crate::error::{Error, ErrorKind, Result};

/// The longest part that is staged at a time.
pub(crate) const STAGED: usize = 512 << 10;

/// Something that is costly to make, which the messenger keeps for the next one that needs it.
pub(crate) type Resource = Arc<dyn Reap>;

/// The cleaning up that a [`Resource`] leaves to callers who hold no lock.
pub(crate) trait Reap: Send + Sync {
    /// Drops what copies used that have ended, and has memory unmapped that nothing uses any more. Never waits. It runs code of the
    /// program's: the caller holds no lock.
    fn reap(&self);

    /// Whether [`reap`](Self::reap) may have something to do, now or later.
    fn has_leftovers(&self) -> bool;
}

/// Nothing is kept.
#[cfg(all(test, not(loom)))]
impl Reap for () {
    fn reap(&self) {}

    fn has_leftovers(&self) -> bool {
        false
    }
}

/// Memory of a device that is exposed.
pub(crate) trait DeviceMemory: Send + Sync + fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Makes what [`stage`](Self::stage) needs. Called once, before it is exposed.
    ///
    /// # Errors
    /// Those of the driver.
    fn prepare(&self) -> Result<Resource>;

    /// Begins to copy `length` bytes from `offset` to the host, at most [`STAGED`]. `None` if no staging memory is free now, or the
    /// device cannot be asked now.
    ///
    /// # Errors
    /// Those of the driver.
    fn stage(&self, offset: usize, length: usize) -> Result<Option<Box<dyn Staged>>>;

    /// Whether other processes of this host can map it.
    fn is_mappable(&self) -> bool;

    /// What another process of this host needs to map it.
    ///
    /// # Errors
    /// Those of the driver.
    fn export(&self) -> Result<Handle>;
}

/// A copy to the host. The device may go on with it when it is dropped; nothing that it uses goes before it has ended.
pub(crate) trait Staged: Send {
    /// The bytes, once they have come.
    ///
    /// # Errors
    /// If the device has failed.
    fn poll(&mut self) -> Result<Option<Vec<u8>>>;
}

/// A handle by which another process maps memory.
#[derive(Debug)]
pub(crate) struct Handle {
    /// The descriptor of the memory.
    pub(crate) descriptor: OwnedFd,
    /// What else the other process must know; at most [`DESCRIPTION`] bytes.
    pub(crate) description: Vec<u8>,
}

/// The longest description of memory.
pub(crate) const DESCRIPTION: usize = 64;

/// Memory into which a read goes, other than a vector: that of a device, or some that the program shares.
pub(crate) trait ReadTarget: Send {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Makes what the other calls need, of which something may be kept. Called once, before the read begins.
    ///
    /// # Errors
    /// Those of the driver.
    fn prepare(&mut self) -> Result<Option<Resource>>;

    /// The memory and the offset in it of the target's first byte, if this side's RDMA device may write there itself, or the processor from
    /// mapped memory.
    fn placing(&self) -> Option<(&SharedMemory, usize)> {
        None
    }

    /// Begins to copy `bytes`, at most [`STAGED`], to `at`; takes a copy of them. `None` if no staging memory is free now, or the device
    /// cannot be asked now.
    ///
    /// # Errors
    /// Those of the driver.
    fn put(&self, at: usize, bytes: &[u8]) -> Result<Option<Box<dyn Underway>>>;

    /// A number of the device that is to copy from mapped memory, which is mapped for each device by itself; none if no device does.
    fn device(&self) -> Option<usize>;

    /// Maps memory of another process.
    ///
    /// # Errors
    /// Those of the driver, for instance if the devices cannot reach each other, or the handle is none; then the data is staged.
    fn map(&self, _descriptor: BorrowedFd<'_>, _description: &[u8]) -> Result<Arc<dyn DeviceMapping>> {
        Err(no_device())
    }

    /// Begins to copy `length` bytes from `offset` of memory that was mapped for this device to `at`. `None` if the device cannot be asked now.
    ///
    /// # Errors
    /// Those of the driver; `Remote` for a range past the end.
    fn copy(
        &self,
        _at: usize,
        _from: &Arc<dyn DeviceMapping>,
        _offset: u64,
        _length: usize,
    ) -> Result<Option<Box<dyn Underway>>> {
        Err(no_device())
    }
}

fn no_device() -> Error {
    Error::new(ErrorKind::Internal, "read", "the target of a read has no device that copies")
}

/// Memory of another process, mapped for a device. Unmapped with the last share, once nothing uses it any more.
pub(crate) trait DeviceMapping: Send + Sync {
    /// Bytes of data.
    fn len(&self) -> u64;

    /// For the room that has made it.
    fn as_any(&self) -> &dyn Any;
}

/// A copy of a device. It goes on when this is dropped, and nothing that it uses goes before.
pub(crate) trait Underway: Send {
    /// Whether it has ended.
    ///
    /// # Errors
    /// If the device has failed.
    fn is_done(&mut self) -> Result<bool>;

    /// Whether the read that it belongs to is moved on when it has ended, so that nobody need ask again and again. It is not if the read was given up.
    fn is_told(&self) -> bool {
        false
    }
}

/// Memory into which [`Peer::read_into`](super::Peer::read_into) reads: made of a [`DeviceSlice`](crate::gpu::DeviceSlice), of
/// all of a [`GpuBuffer`](crate::gpu::GpuBuffer), or of [`SharedMemory`] or a [part](SharedMemory::part) of it.
pub struct Target(pub(super) Box<dyn ReadTarget>);

impl Target {
    pub(crate) fn new(target: Box<dyn ReadTarget>) -> Self {
        Self(target)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} bytes)", self.len())
    }
}
