//! Exports this rank's memory: describes it to a peer, which then maps it or accesses it by message or by NIC.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::allocation::Allocation;
use super::exchange::Exchange;
use super::registered::{OnNics, Origin, RegisteredMemory};
use super::registry;
use super::rights::Rights;
use super::transports::Transport;
use super::wire::{MAX_CHUNKS, MemoryWire, RemoteKey, Way};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::ipc::LegacyHandle;
use crate::gpu::vmm::{HandleTypes, PhysicalAllocation};
use crate::gpu::{CUresult, KeepAlive};
use crate::ledger::holds::HoldId;
use crate::ledger::receipt::Hold;
use crate::rdma::MemoryRegion;
use crate::setup::message::Offer;

const OP: &str = "send_memory";

/// A local memory on its way to one peer.
#[derive(Debug)]
pub(crate) struct Export {
    wire: MemoryWire,
    /// Ids that the peer gives back, each with the object that stays alive until then.
    holds: Vec<(HoldId, KeepAlive)>,
    /// Kept alive until the peer has it, whatever the user drops meanwhile.
    memory: Arc<Allocation>,
    peer: u32,
}

impl Export {
    /// The message for the peer, with a descriptor for each piece that it maps in that way. Where it has no descriptor, the
    /// memory is held for it.
    pub(crate) fn offer(&self, exchange: &Exchange) -> Result<Offer<Hold>> {
        let fds = match &self.wire.way {
            Way::Host => self.memory.host().into_iter().map(|buffer| buffer.fd()).collect::<Result<_>>()?,
            Way::Fds(_) => {
                self.memory.pieces().iter().map(|piece| piece.export_fd()).collect::<Result<_>>()?
            }
            _ => Vec::<OwnedFd>::new(),
        };
        let hold = |(id, keep): &(HoldId, KeepAlive)| exchange.ledger.hold(*id, keep.clone(), self.peer);
        Ok(Offer { body: self.wire.encode(), fds, holds: self.holds.iter().map(hold).collect() })
    }
}

/// Exports `memory` for `peer`, for each of its transports.
pub(crate) fn export(exchange: &Exchange, memory: &RegisteredMemory, peer: u32) -> Result<Export> {
    let Origin::Local { allocation, offset, nics } = &memory.origin else {
        return Err(Error::usage(
            OP,
            "memory that was received cannot be sent on; its owner has to send it to that rank",
        ));
    };
    if memory.rights == Rights::LOCAL_ONLY {
        let message = "the memory is registered for this rank only; name what peers may do with Registration::with_rights";
        return Err(Error::usage(OP, message));
    }
    let mut holds = Vec::<(HoldId, KeepAlive)>::new();
    let others = memory.transports.without(Transport::CudaIpc);
    let way = if memory.transports.contains(Transport::CudaIpc) {
        match mapping(exchange, allocation, peer) {
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
        holds.push((HoldId::Memory(allocation.number()), allocation.clone()));
    }
    // NICs and message handlers reach it without a mapping: it stays until the peer has given it back.
    let mut region = None;
    if !others.is_empty() {
        let grant = exchange.regions.grant(peer, memory.place().clone(), memory.len(), memory.rights);
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
        rights: memory.rights,
        process: registry::process_number()?,
        allocation: allocation.number(),
        total: allocation.size() as u64,
        offset: *offset,
        len: memory.len() as u64,
        way,
        region,
        keys,
    };
    Ok(Export { wire, holds, memory: allocation.clone(), peer })
}

/// How `peer` maps `allocation`, by the best way there is: none within a process, file descriptors on a host, fabric
/// handles within an NVLink domain, a legacy handle for plain allocations.
fn mapping(exchange: &Exchange, allocation: &Allocation, peer: u32) -> Result<Way> {
    let (mine, theirs) = (exchange.group.me(), exchange.group.peer(peer));
    let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, OP, message).with_peer(peer));
    if theirs.same_process(mine) {
        return Ok(Way::Process);
    }
    if allocation.host().is_some() {
        if !theirs.same_host(mine) {
            return unsupported(format!(
                "rank {peer} is on another host ({}) and cannot map host memory",
                theirs.host
            ));
        }
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
        let exported = LegacyHandle::export(allocation.context(), allocation.base());
        let handle = exported.map_err(|error| without_handle(error, peer))?;
        return Ok(Way::Legacy(handle.0));
    }
    let all = |wanted| -> Result<bool> {
        pieces
            .iter()
            .try_fold(!pieces.is_empty(), |all, piece| Ok(all && piece.handle_types()?.contains(wanted)))
    };
    let size = |piece: &Arc<PhysicalAllocation>| piece.size() as u64;
    if theirs.same_host(mine) && all(HandleTypes::FD)? {
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

/// Names the cause where the driver made no legacy handle, unless it lacked something for a moment.
fn without_handle(error: Error, peer: u32) -> Error {
    let unopened = CUresult::CUDA_ERROR_OPERATING_SYSTEM.0.cast_signed();
    if error.code() == unopened || error.kind() == ErrorKind::Exhausted {
        return error.with_peer(peer);
    }
    let message = "this memory has no handle that another process can open (memory of a pool or of cuMemAllocAsync has none): \
                   allocate it as a GpuBuffer, with cuMemAlloc, or with cuMemCreate and requestedHandleTypes = \
                   POSIX_FILE_DESCRIPTOR";
    Error::new(ErrorKind::Unsupported, OP, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_as_without_a_handle_only_if_that_will_not_change() {
        let driver =
            |code: CUresult, kind| Error::new(kind, "cuIpcGetMemHandle", "x").with_code(code.0.cast_signed());
        let kinds = [
            (driver(CUresult::CUDA_ERROR_OPERATING_SYSTEM, ErrorKind::Cuda), ErrorKind::Cuda),
            (driver(CUresult::CUDA_ERROR_OUT_OF_MEMORY, ErrorKind::Exhausted), ErrorKind::Exhausted),
            (driver(CUresult::CUDA_ERROR_INVALID_VALUE, ErrorKind::Cuda), ErrorKind::Unsupported),
        ];
        for (error, kind) in kinds {
            let told = without_handle(error, 3);
            assert_eq!(told.kind(), kind, "{told}");
        }
    }
}
