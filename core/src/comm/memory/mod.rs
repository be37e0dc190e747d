//! Memory that ranks have named to each other.

mod export;
mod import;
mod items;
mod wire;

use std::fmt;
use std::sync::Arc;

pub(super) use export::{Allocation, Export, export, register_buffer, register_raw};
pub(super) use import::{Imports, import};
pub(super) use items::{RecvItem, SendItem};

use super::endpoint::{Transport, Transports};
use crate::error::{Error, Result};
use crate::gpu::{CUdeviceptr, Context, DeviceSlice, GpuBuffer, KeepAlive};

/// A range of device memory that connections and channels can use: of this rank, or received from another.
///
/// A local one keeps its buffer alive; one that was received keeps the mapping alive, and a communicator with it.
/// What goes over the wire keeps nothing alive: once a peer has received memory by a file descriptor the physical memory
/// lives until both sides let go of it; by a legacy handle, the exporter's buffer is held back until the peer has
/// closed it. Its bytes are never a Rust reference, because peers write them. Cheap to clone.
#[derive(Clone)]
pub struct RegisteredMemory {
    slice: DeviceSlice,
    transports: Transports,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
    Local { allocation: Arc<Allocation>, offset: u64 },
    Received { from: u32 },
}

impl RegisteredMemory {
    /// The address in this process, valid for the device of [`context`](Self::context).
    pub fn ptr(&self) -> CUdeviceptr {
        self.slice.ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// What it is registered for.
    pub fn transports(&self) -> Transports {
        self.transports
    }

    /// The context whose device can access it.
    pub fn context(&self) -> &Context {
        self.slice.context()
    }

    /// Whether it was registered here, and not received.
    pub fn is_local(&self) -> bool {
        matches!(self.origin, Origin::Local { .. })
    }

    /// The rank it was received from.
    pub fn received_from(&self) -> Option<u32> {
        match self.origin {
            Origin::Local { .. } => None,
            Origin::Received { from } => Some(from),
        }
    }

    /// The buffer behind it, if it is local and was registered from one.
    pub fn buffer(&self) -> Option<&Arc<GpuBuffer>> {
        match &self.origin {
            Origin::Local { allocation, .. } => allocation.buffer(),
            Origin::Received { .. } => None,
        }
    }

    /// It as a slice, which keeps it alive, for copies and kernels on this rank's device.
    pub fn slice(&self) -> &DeviceSlice {
        &self.slice
    }

    /// What a stream has to retain while a kernel uses [`ptr`](Self::ptr).
    pub fn keep_alive(&self) -> KeepAlive {
        Arc::clone(self.slice.keep_alive())
    }

    /// `size` bytes of it from `offset`, as memory of the same registration.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside, overflow included.
    pub fn range(&self, offset: usize, size: usize) -> Result<Self> {
        let slice = self.checked("range", offset, size)?;
        let origin = match &self.origin {
            Origin::Local { allocation, offset: base } => {
                Origin::Local { allocation: allocation.clone(), offset: base + offset as u64 }
            }
            Origin::Received { from } => Origin::Received { from: *from },
        };
        Ok(Self { slice, transports: self.transports, origin })
    }

    /// The slice `offset .. offset + size`, for `op`.
    pub(super) fn checked(&self, op: &'static str, offset: usize, size: usize) -> Result<DeviceSlice> {
        match offset.checked_add(size) {
            Some(end) if end <= self.len() => self.slice.slice(offset..end),
            _ => Err(Error::usage(
                op,
                format!("offset {offset} + size {size} is past the end of a memory of {} bytes", self.len()),
            )),
        }
    }

    /// `Ok` if it is registered for `transport`.
    pub(super) fn check_transport(&self, op: &'static str, transport: Transport) -> Result<()> {
        if self.transports.contains(transport) {
            return Ok(());
        }
        Err(Error::usage(
            op,
            format!("the memory is not registered for {transport}; name it when registering"),
        ))
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory")
            .field("ptr", &format_args!("{:#x}", self.ptr()))
            .field("len", &self.len())
            .field("transports", &self.transports)
            .field("received_from", &self.received_from())
            .finish()
    }
}
