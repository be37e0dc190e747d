//! Mapping what a peer described of its memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::exchange::Exchange;
use super::host::HostBuffer;
use super::imports::{Import, Mapped};
use super::place::Place;
use super::registered::{Origin, RegisteredMemory};
use super::registry;
use super::remote::Remote;
use super::rights::Rights;
use super::wire::{MemoryWire, Way};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::ipc::{FabricHandle, LegacyHandle, LegacyMapping};
use crate::gpu::vmm::{Mapping, PhysicalAllocation};
use crate::gpu::{CUdeviceptr, DeviceSlice, KeepAlive};
use crate::ledger::holds::HoldId;
use crate::ledger::receipt::Receipt;
use crate::setup::message::Offer;
use crate::sync::{Mutex, lock};

const OP: &str = "recv_memory";

/// The memory that rank `from` described in `offer`, usable on this rank's device.
pub(crate) fn import(exchange: &Arc<Exchange>, from: u32, offer: Offer<Receipt>) -> Result<RegisteredMemory> {
    let wire = MemoryWire::decode(&offer.body, offer.fds.len()).map_err(|error| {
        Error::new(ErrorKind::Remote, OP, format!("rank {from} described its memory in an invalid way"))
            .with_peer(from)
            .with_source(error)
    })?;
    let len = usize::try_from(wire.len).map_err(|_| too_large(from))?;
    let Offer { fds, holds, .. } = offer;
    let (mapping, receipts): (Vec<_>, Vec<_>) =
        holds.into_iter().partition(|receipt| matches!(receipt.id(), HoldId::Memory(_)));
    let (region, keys) = (wire.region, wire.keys.clone());
    let (group, begin) = (exchange.group.clone(), wire.offset);
    let remote = Arc::new(Remote { group, from, begin, region, keys, _receipts: receipts });
    let place = match wire.way {
        Way::Unmapped => Place::Elsewhere,
        Way::Process => of_this_process(exchange, from, &wire)?,
        _ => {
            let import = of_another_process(exchange, from, &wire, fds)?;
            lock(&import.receipts).extend(mapping);
            match import.host().cloned() {
                Some(buffer) => host(&buffer, &wire, import)?,
                None => device(exchange, import.base(), &wire, import)?,
            }
        }
    };
    // A stream that uses the memory keeps its place, and so the hold on it.
    let place = place.keeping(&(remote.clone() as KeepAlive));
    let (context, transports, rights) = (exchange.context.clone(), wire.transports, wire.rights);
    let origin = Origin::Received { remote, offset: 0 };
    Ok(RegisteredMemory { place, len, context, transports, rights, origin })
}

/// The range that `wire` names of an allocation at `base` that `keep` holds.
fn device(exchange: &Exchange, base: CUdeviceptr, wire: &MemoryWire, keep: KeepAlive) -> Result<Place> {
    let len = usize::try_from(wire.len).map_err(|_| too_large(exchange.group.rank()))?;
    // SAFETY: `decode` has checked that the range lies within `total`, and all ways that the allocation has that size;
    // `keep` holds the allocation or its mapping, which this rank's device can access.
    let slice = unsafe { DeviceSlice::from_raw(&exchange.context, base + wire.offset, len, keep) };
    Ok(Place::Device(slice))
}

/// The range that `wire` names of `buffer`, holding `keep` as well.
fn host(buffer: &Arc<HostBuffer>, wire: &MemoryWire, keep: KeepAlive) -> Result<Place> {
    let whole = Place::Host(buffer.whole().keeping(keep), buffer.device_slice()?);
    whole.part(wire.offset as usize, wire.len as usize)
}

fn of_this_process(exchange: &Arc<Exchange>, from: u32, wire: &MemoryWire) -> Result<Place> {
    let is_here = registry::is_member(exchange.group.scope(), from);
    if !is_here || wire.process != registry::process_number()? {
        let message = format!("rank {from} sent memory as if it were of this process, and it is not");
        return Err(Error::new(ErrorKind::Remote, OP, message).with_peer(from));
    }
    let Some(allocation) = registry::find(wire.allocation).filter(|a| a.size() as u64 == wire.total) else {
        let message =
            format!("rank {from} has dropped the memory; it must keep it until setup() has returned");
        return Err(Error::new(ErrorKind::Remote, OP, message).with_peer(from));
    };
    allocation.allow(&exchange.context).map_err(|error| unreachable(exchange, from, error))?;
    // The communicator too, as with memory of another process: a rank does not leave while its work uses a peer's memory.
    let keep: KeepAlive = Arc::new((exchange.group.clone(), allocation.clone()));
    match allocation.host() {
        Some(buffer) => host(buffer, wire, keep),
        None => device(exchange, allocation.base(), wire, keep),
    }
}

fn of_another_process(
    exchange: &Arc<Exchange>,
    from: u32,
    wire: &MemoryWire,
    fds: Vec<OwnedFd>,
) -> Result<Arc<Import>> {
    let size = usize::try_from(wire.total).map_err(|_| too_large(from))?;
    let name = (from, wire.allocation, wire.rights.contains(Rights::REMOTE_WRITE));
    let mut live = lock(&exchange.imports.live);
    if let Some(import) = live.get(&name).and_then(Weak::upgrade) {
        drop(live);
        if import.size == size {
            return Ok(import);
        }
        let message = format!("rank {from} describes one allocation with two sizes");
        return Err(Error::new(ErrorKind::Remote, OP, message).with_peer(from));
    }
    live.retain(|_, import| import.strong_count() > 0);
    let mapped = map(exchange, wire, fds).map_err(|error| unreachable(exchange, from, error))?;
    if let Mapped::Legacy(mapping) = &mapped {
        check_opened(from, size, mapping.size())?;
    }
    let (group, receipts) = (exchange.group.clone(), Mutex::default());
    let import = Arc::new(Import { _group: group, size, receipts, mapped: Some(mapped) });
    live.insert(name, Arc::downgrade(&import));
    drop(live);
    Ok(import)
}

fn map(exchange: &Exchange, wire: &MemoryWire, fds: Vec<OwnedFd>) -> Result<Mapped> {
    let context = &exchange.context;
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let parts = match &wire.way {
        Way::Process | Way::Unmapped => {
            return Err(Error::new(ErrorKind::Internal, OP, "this memory is not to be mapped"));
        }
        Way::Host => {
            let fd = fds.into_iter().next().expect("decode has counted the descriptors");
            let buffer = HostBuffer::open(context, fd, bytes(wire.total))?;
            buffer.pin()?;
            return Ok(Mapped::Host(Arc::new(buffer)));
        }
        Way::Legacy(handle) => {
            return Ok(Mapped::Legacy(LegacyMapping::open(context, &LegacyHandle(*handle))?));
        }
        Way::Fds(sizes) => fds
            .iter()
            .zip(sizes)
            .map(|(fd, size)| PhysicalAllocation::import_fd(context, fd.as_fd(), bytes(*size)).map(Arc::new))
            .collect::<Result<Vec<_>>>()?,
        Way::Fabric(chunks) => chunks
            .iter()
            .map(|(size, handle)| {
                PhysicalAllocation::import_fabric(context, &FabricHandle(*handle), bytes(*size)).map(Arc::new)
            })
            .collect::<Result<Vec<_>>>()?,
    };
    let mapping = match wire.rights.contains(Rights::REMOTE_WRITE) {
        true => Mapping::new(context, parts)?,
        false => Mapping::read_only(context, parts)?,
    };
    Ok(Mapped::Physical(mapping))
}

/// Returns an error unless the `opened` bytes of a legacy handle hold the `size` that rank `from` has described.
fn check_opened(from: u32, size: usize, opened: usize) -> Result<()> {
    if opened >= size {
        return Ok(());
    }
    let message = format!(
        "rank {from} describes {size} bytes and its handle opens {opened}; use one version of aqueduct everywhere"
    );
    Err(Error::new(ErrorKind::Remote, OP, message).with_peer(from))
}

fn unreachable(exchange: &Exchange, from: u32, error: Error) -> Error {
    let (mine, theirs) = (exchange.group.me().device_label(), exchange.group.peer(from).device_label());
    let message = format!(
        "cannot map memory of rank {from}, on {theirs}, for {mine}; see in `aqueduct info` whether the devices reach each other"
    );
    Error::new(error.kind(), OP, message).with_peer(from).with_code(error.code()).with_source(error)
}

fn too_large(from: u32) -> Error {
    Error::new(ErrorKind::Remote, OP, format!("rank {from} sent a memory larger than this address space"))
        .with_peer(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legacy_handle_opens_all_that_was_described() {
        assert!(check_opened(1, 4096, 4096).is_ok() && check_opened(1, 4096, 4097).is_ok());
        let error = check_opened(1, 4096, 4095).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
    }
}
