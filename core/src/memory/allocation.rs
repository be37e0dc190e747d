//! This rank's memory: allocations of which ranges are registered.

use std::sync::Arc;

use super::{HostBuffer, Origin, Place, RegisteredMemory, registry};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::vmm::{self, PhysicalAllocation};
use crate::gpu::{CUdeviceptr, Context, DeviceSlice, GpuBuffer, KeepAlive, MemoryKind, PointerInfo};
use crate::transport::endpoint::{Transport, Transports};

/// An allocation of this process of which ranges are registered. One per buffer, however often it is registered.
#[derive(Debug)]
pub(crate) struct Allocation {
    number: u64,
    base: CUdeviceptr,
    size: usize,
    context: Context,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Buffer(Arc<GpuBuffer>),
    /// Memory that the user keeps alive, as the contract of registering it says.
    Raw(Vec<Arc<PhysicalAllocation>>),
    Host(Arc<HostBuffer>),
}

impl Allocation {
    /// Its number among the allocations of this process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn base(&self) -> CUdeviceptr {
        self.base
    }

    pub(super) fn buffer(&self) -> Option<&Arc<GpuBuffer>> {
        match &self.source {
            Source::Buffer(buffer) => Some(buffer),
            Source::Raw(_) | Source::Host(_) => None,
        }
    }

    pub(super) fn host(&self) -> Option<&Arc<HostBuffer>> {
        match &self.source {
            Source::Host(buffer) => Some(buffer),
            Source::Buffer(_) | Source::Raw(_) => None,
        }
    }

    /// Its physical memory in order of address; none for a plain allocation.
    pub(super) fn pieces(&self) -> Vec<Arc<PhysicalAllocation>> {
        match &self.source {
            Source::Buffer(buffer) => buffer.allocation().into_iter().cloned().collect(),
            Source::Raw(pieces) => pieces.clone(),
            Source::Host(_) => Vec::new(),
        }
    }

    /// Lets another rank's device of this process use it.
    pub(super) fn allow(&self, context: &Context) -> Result<()> {
        if *context == self.context {
            return Ok(());
        }
        match &self.source {
            Source::Buffer(buffer) => buffer.allow(context.device()),
            // Registered as portable: every device has access.
            Source::Host(_) => Ok(()),
            Source::Raw(pieces) if pieces.is_empty() => context.enable_peer_access(&self.context),
            Source::Raw(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "recv_memory",
                "memory that another library has mapped cannot be opened to another device of this process; register a GpuBuffer",
            )),
        }
    }
}

/// Registers bytes `offset .. offset + len` of `buffer`.
pub(crate) fn register_buffer(
    buffer: &Arc<GpuBuffer>,
    offset: usize,
    len: usize,
    transports: Transports,
) -> Result<RegisteredMemory> {
    check_range(offset, len, buffer.len())?;
    let allocation = registry::find_or_insert(
        |known| known.buffer().is_some_and(|known| Arc::ptr_eq(known, buffer)),
        |number| Allocation {
            number,
            base: buffer.ptr(),
            size: buffer.allocated(),
            context: buffer.context().clone(),
            source: Source::Buffer(buffer.clone()),
        },
    );
    Ok(local(allocation, offset as u64, len, transports))
}

/// Registers bytes `offset .. offset + len` of `buffer`.
pub(crate) fn register_host(
    buffer: &Arc<HostBuffer>,
    offset: usize,
    len: usize,
    transports: Transports,
) -> Result<RegisteredMemory> {
    check_range(offset, len, buffer.len())?;
    if transports.contains(Transport::CudaIpc) {
        buffer.pin()?;
    }
    let allocation = registry::find_or_insert(
        |known| known.host().is_some_and(|known| Arc::ptr_eq(known, buffer)),
        |number| Allocation {
            number,
            base: buffer.memory().as_ptr().expose_provenance() as u64,
            size: buffer.len(),
            context: buffer.context().clone(),
            source: Source::Host(buffer.clone()),
        },
    );
    let place = Place::Host(buffer.whole(), buffer.device_slice()?).part(offset, len)?;
    let (context, origin) =
        (buffer.context().clone(), Origin::Local { allocation, offset: offset as u64, nics: None });
    Ok(RegisteredMemory { place, len, context, transports, origin })
}

/// Registers `len` bytes at `ptr`, which somebody else allocated.
///
/// # Safety
/// They must stay allocated and mapped, for the device of `context`, until the last memory made from this, here and at
/// peers, is dropped.
pub(crate) unsafe fn register_raw(
    context: &Context,
    ptr: CUdeviceptr,
    len: usize,
    transports: Transports,
) -> Result<RegisteredMemory> {
    const OP: &str = "register_memory";
    check_range(0, len, usize::MAX)?;
    let info = PointerInfo::of(context, ptr).map_err(|error| {
        let message = format!("{ptr:#x} is not an address of device memory that this driver knows");
        Error::usage(OP, message).with_source(error)
    })?;
    let ours = context.device().ordinal();
    if info.device != Some(ours) {
        let whose = match (info.kind, info.device) {
            (MemoryKind::Unregistered, _) | (_, None) => "is not an address of device memory".to_owned(),
            (kind, Some(device)) => format!("is {kind:?} memory of device {device}"),
        };
        let message = format!(
            "{ptr:#x} {whose}; this communicator uses device {ours}: register memory allocated there"
        );
        return Err(Error::usage(OP, message));
    }
    // Plain allocations have no pieces; the driver says so by an error.
    let (base, size, pieces) = match vmm::chunks(context, ptr, len) {
        Ok(chunks) if !chunks.is_empty() => {
            let size = chunks.iter().map(|chunk| chunk.size).sum();
            (chunks[0].base, size, chunks.into_iter().map(|chunk| Arc::new(chunk.allocation)).collect())
        }
        _ => (info.base, info.size, Vec::new()),
    };
    let offset = ptr - base;
    check_range(usize::try_from(offset).unwrap_or(usize::MAX), len, size)?;
    let allocation = registry::find_or_insert(
        |known| {
            matches!(known.source, Source::Raw(_))
                && (known.base, known.size) == (base, size)
                && known.context == *context
        },
        |number| Allocation { number, base, size, context: context.clone(), source: Source::Raw(pieces) },
    );
    Ok(local(allocation, offset, len, transports))
}

fn local(allocation: Arc<Allocation>, offset: u64, len: usize, transports: Transports) -> RegisteredMemory {
    let keep: KeepAlive = allocation.clone();
    // SAFETY: the range was checked against the allocation, which owns the memory or, by the contract of raw
    // registration, is outlived by it; `keep` holds the allocation.
    let slice = unsafe { DeviceSlice::from_raw(&allocation.context, allocation.base + offset, len, keep) };
    let context = allocation.context.clone();
    RegisteredMemory {
        place: Place::Device(slice),
        len,
        context,
        transports,
        origin: Origin::Local { allocation, offset, nics: None },
    }
}

fn check_range(offset: usize, len: usize, size: usize) -> Result<()> {
    if len == 0 {
        return Err(Error::usage("register_memory", "a memory of zero bytes cannot be registered"));
    }
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::usage(
            "register_memory",
            format!("offset {offset} + size {len} is past the end of an allocation of {size} bytes"),
        )),
    }
}
