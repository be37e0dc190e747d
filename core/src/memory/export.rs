//! This rank's memory: registering it, and what a peer needs in order to map it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::wire::{MAX_CHUNKS, MemoryWire, RemoteKey, Way};
use super::{Exchange, HostBuffer, OnNics, Origin, Place, RegisteredMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::ipc::LegacyHandle;
use crate::gpu::vmm::{self, HandleTypes, PhysicalAllocation};
use crate::gpu::{CUdeviceptr, Context, DeviceSlice, GpuBuffer, KeepAlive, MemoryKind, PointerInfo};
use crate::memory::ledger::HoldId;
use crate::memory::registry;
use crate::rdma::MemoryRegion;
use crate::setup::mailbox::Offer;
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
    fn pieces(&self) -> Vec<Arc<PhysicalAllocation>> {
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

/// A local memory on its way to one peer.
#[derive(Debug)]
pub(crate) struct Export {
    wire: MemoryWire,
    fds: Vec<OwnedFd>,
    /// What the peer gives back, and what is kept until then.
    holds: Vec<(HoldId, KeepAlive)>,
    /// Until the peer has it, whatever the user drops meanwhile.
    _memory: Arc<Allocation>,
    peer: u32,
}

impl Export {
    /// The message for the peer, once. From here on what it uses without a descriptor is held for it.
    pub(crate) fn offer(&mut self, exchange: &Exchange) -> Offer {
        for (id, keep) in &self.holds {
            exchange.ledger.hold(*id, keep.clone(), self.peer);
        }
        Offer { body: self.wire.encode(), fds: std::mem::take(&mut self.fds) }
    }

    /// What the peer has to give back.
    pub(crate) fn hold_ids(&self) -> Vec<HoldId> {
        self.holds.iter().map(|(id, _)| *id).collect()
    }
}

/// Exports `memory` for `peer`, for each of its transports.
pub(crate) fn export(exchange: &Exchange, memory: &RegisteredMemory, peer: u32) -> Result<Export> {
    let Origin::Local { allocation, offset, nics } = &memory.origin else {
        return Err(Error::usage(
            "send_memory",
            "memory that was received cannot be sent on; its owner has to send it to that rank",
        ));
    };
    let (mut fds, mut holds) = (Vec::new(), Vec::<(HoldId, KeepAlive)>::new());
    let others = memory.transports.without(Transport::CudaIpc);
    let way = if memory.transports.contains(Transport::CudaIpc) {
        match mapping(exchange, allocation, peer, &mut fds) {
            Err(error) if error.kind() == ErrorKind::Unsupported && !others.is_empty() => {
                log::debug!("rank {peer} gets a memory for {others:?} only: {error}");
                Way::Unmapped
            }
            way => way?,
        }
    } else {
        Way::Unmapped
    };
    if matches!(way, Way::Legacy(_)) {
        holds.push((HoldId::Memory(allocation.number), allocation.clone()));
    }
    // NICs and message handlers reach it without a mapping: it stays until the peer has given it back.
    let mut region = None;
    if !others.is_empty() {
        let grant = exchange.regions.grant(memory, peer);
        region = Some(grant.number());
        holds.push((HoldId::Region(grant.number()), Arc::new((grant, nics.clone()))));
    }
    let key = |on: &OnNics, (nic, mr): &(u8, MemoryRegion)| RemoteKey {
        nic: *nic,
        region: mr.remote(),
        offset: on.offset,
    };
    let keys = nics.iter().flat_map(|on| on.regions.iter().map(move |pair| key(on, pair))).collect();
    let wire = MemoryWire {
        transports: if way == Way::Unmapped { others } else { memory.transports() },
        process: registry::process_number()?,
        allocation: allocation.number,
        total: allocation.size as u64,
        offset: *offset,
        len: memory.len() as u64,
        way,
        region,
        keys,
    };
    Ok(Export { wire, fds, holds, _memory: allocation.clone(), peer })
}

/// How `peer` maps `allocation`, by the best way there is: none within a process, file descriptors on a host, fabric
/// handles within an NVLink domain, a legacy handle for plain allocations.
fn mapping(exchange: &Exchange, allocation: &Allocation, peer: u32, fds: &mut Vec<OwnedFd>) -> Result<Way> {
    const OP: &str = "send_memory";
    let (mine, theirs) = (exchange.group.me(), exchange.group.peer(peer));
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, OP, message).with_peer(peer));
    if theirs.same_process(mine) {
        return Ok(Way::Process);
    }
    if let Some(buffer) = allocation.host() {
        if !theirs.same_host(mine) {
            return unsupported(format!(
                "rank {peer} is on another host ({}) and cannot map host memory",
                theirs.host
            ));
        }
        fds.push(buffer.fd()?);
        return Ok(Way::Host);
    }
    let pieces = allocation.pieces();
    if pieces.len() > MAX_CHUNKS {
        return unsupported(format!(
            "the range lies in {} separately allocated pieces and at most {MAX_CHUNKS} can be sent; register smaller ranges",
            pieces.len()
        ));
    }
    if theirs.same_host(mine) && pieces.is_empty() {
        let handle = LegacyHandle::export(&allocation.context, allocation.base).map_err(|error| {
            let message = "this memory has no handle that another process can open (memory of a pool or of \
                           cuMemAllocAsync has none): allocate it as a GpuBuffer, with cuMemAlloc, or with cuMemCreate and \
                           requestedHandleTypes = POSIX_FILE_DESCRIPTOR";
            Error::new(ErrorKind::Unsupported, OP, message).with_source(error)
        })?;
        return Ok(Way::Legacy(handle.0));
    }
    let all = |wanted| -> Result<bool> {
        pieces
            .iter()
            .try_fold(!pieces.is_empty(), |all, piece| Ok(all && piece.handle_types()?.contains(wanted)))
    };
    let size = |piece: &Arc<PhysicalAllocation>| piece.size() as u64;
    if theirs.same_host(mine) && all(HandleTypes::FD)? {
        for piece in &pieces {
            fds.push(piece.export_fd()?);
        }
        return Ok(Way::Fds(pieces.iter().map(size).collect()));
    }
    if all(HandleTypes::FABRIC)? {
        let chunk = |piece| Ok((size(piece), piece.export_fabric()?.0));
        return Ok(Way::Fabric(pieces.iter().map(chunk).collect::<Result<_>>()?));
    }
    if theirs.same_host(mine) {
        let message = "this memory was mapped without a kind of handle that another process can open: allocate it as a \
                       GpuBuffer, or with cuMemCreate and requestedHandleTypes = POSIX_FILE_DESCRIPTOR";
        return unsupported(message.into());
    }
    unsupported(format!(
        "rank {peer} is on another host ({}), where CudaIpc reaches only memory with fabric handles; they need an \
         NVLink domain with IMEX and AQUEDUCT_HANDLE=auto or fabric",
        theirs.host
    ))
}
