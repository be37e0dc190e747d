//! Registering ranges of this rank's memory.

use std::sync::Arc;

use super::allocation::{Allocation, Source};
use super::host::HostBuffer;
use super::place::Place;
use super::registered::{Origin, RegisteredMemory};
use super::registry;
use super::rights::Registration;
use super::transports::Transport;
use crate::error::{Error, Result};
use crate::gpu::vmm;
use crate::gpu::{CUdeviceptr, Context, DeviceSlice, GpuBuffer, KeepAlive, MemoryKind, PointerInfo};

/// Registers bytes `offset .. offset + len` of `buffer`.
pub(crate) fn register_buffer(
    buffer: &Arc<GpuBuffer>,
    offset: usize,
    len: usize,
    registration: Registration,
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
    Ok(local(allocation, offset as u64, len, registration))
}

/// Registers bytes `offset .. offset + len` of `buffer`.
pub(crate) fn register_host(
    buffer: &Arc<HostBuffer>,
    offset: usize,
    len: usize,
    registration: Registration,
) -> Result<RegisteredMemory> {
    check_range(offset, len, buffer.len())?;
    if registration.transports.contains(Transport::CudaIpc) {
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
    let Registration { transports, rights } = registration;
    Ok(RegisteredMemory { place, len, context, transports, rights, origin })
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
    registration: Registration,
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
    Ok(local(allocation, offset, len, registration))
}

fn local(
    allocation: Arc<Allocation>,
    offset: u64,
    len: usize,
    registration: Registration,
) -> RegisteredMemory {
    let keep: KeepAlive = allocation.clone();
    // SAFETY: the range was checked against the allocation, which owns the memory or, by the contract of raw
    // registration, is outlived by it; `keep` holds the allocation.
    let slice = unsafe { DeviceSlice::from_raw(&allocation.context, allocation.base + offset, len, keep) };
    let context = allocation.context.clone();
    let Registration { transports, rights } = registration;
    RegisteredMemory {
        place: Place::Device(slice),
        len,
        context,
        transports,
        rights,
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
