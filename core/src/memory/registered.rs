//! A registered memory, as connections and channels use it.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::allocation::Allocation;
use super::host::HostSlice;
use super::place::Place;
use super::remote::Remote;
use super::rights::Rights;
use super::transports::{Transport, Transports};
use crate::error::{Error, Result};
use crate::gpu::{CUdeviceptr, Context, DeviceSlice, GpuBuffer, KeepAlive};
use crate::group::Group;
use crate::rdma::MemoryRegion;
use crate::volatile::VolatileSlice;

/// A range of device or host memory that connections and channels can use: of this rank, or received from another.
///
/// A local one keeps its buffer alive; one that was received keeps its mapping alive, if it has one, and a communicator
/// with it. Memory received for [`Transport::CudaIpc`] is mapped here; memory received for other transports only, from
/// another host for example, has no address here and serves as the remote end of a connection. What goes over the wire
/// keeps nothing alive by itself: memory received by a file descriptor lives until both sides let go of it; otherwise the
/// exporter's buffer is held back until the peer has let go or is gone. Its bytes are never a Rust reference, because
/// peers write them. Cheap to clone.
#[derive(Clone)]
pub struct RegisteredMemory {
    pub(super) place: Place,
    pub(super) len: usize,
    pub(super) context: Context,
    pub(super) transports: Transports,
    pub(super) rights: Rights,
    pub(super) origin: Origin,
}

#[derive(Clone)]
pub(super) enum Origin {
    Local { allocation: Arc<Allocation>, offset: u64, nics: Option<OnNics> },
    Received { remote: Arc<Remote>, offset: u64 },
}

/// A local memory as NICs know it.
#[derive(Clone)]
pub(super) struct OnNics {
    /// By number of the NIC.
    pub(super) regions: Arc<Vec<(u8, MemoryRegion)>>,
    /// Where in them it begins.
    pub(super) offset: u64,
}

impl RegisteredMemory {
    /// The address in this process, valid for the device of [`context`](Self::context); 0 if devices of this process
    /// cannot access it.
    pub fn ptr(&self) -> CUdeviceptr {
        self.place.device().map_or(0, DeviceSlice::ptr)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Transports that it can be used with.
    pub fn transports(&self) -> Transports {
        self.transports
    }

    /// Operations that peers may perform on it.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The context of this rank's device.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether it was registered here, and not received.
    pub fn is_local(&self) -> bool {
        matches!(self.origin, Origin::Local { .. })
    }

    /// The rank it was received from.
    pub fn received_from(&self) -> Option<u32> {
        match &self.origin {
            Origin::Local { .. } => None,
            Origin::Received { remote, .. } => Some(remote.from()),
        }
    }

    /// The rank of `group` whose memory it is, its own or received by that group; `None` if another group received it, where
    /// ranks, and the numbers by which peers know memory, mean something else.
    #[inline]
    pub(crate) fn owner_in(&self, group: &Group) -> Option<u32> {
        match &self.origin {
            Origin::Local { .. } => Some(group.rank()),
            Origin::Received { remote, .. } => remote.group().is(group).then(|| remote.from()),
        }
    }

    /// For messages: whose memory it is, as `group` sees it.
    #[cold]
    pub(crate) fn whose(&self, group: &Group) -> String {
        match self.received_from() {
            None => "it is this rank's own".into(),
            Some(rank) if self.owner_in(group).is_some() => format!("it was received from rank {rank}"),
            Some(rank) => format!(
                "it was received from rank {rank} of another communicator; exchange it with the one that made the connection"
            ),
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
    ///
    /// # Errors
    /// `InvalidUsage` for memory that devices of this process cannot access.
    pub fn slice(&self) -> Result<&DeviceSlice> {
        self.place.device().ok_or_else(|| {
            let message = "this memory has no address on this rank's device; register it for CudaIpc at the rank it \
                           belongs to, which must be on the same host";
            Error::usage("slice", message)
        })
    }

    /// Its bytes, if it is host memory that this process has mapped.
    pub fn host(&self) -> Option<VolatileSlice<'_>> {
        self.place.host().map(HostSlice::memory)
    }

    /// An object for a stream to retain while a kernel uses [`ptr`](Self::ptr).
    pub fn keep_alive(&self) -> KeepAlive {
        Arc::new(self.clone())
    }

    /// `size` bytes of it from `offset`, as memory of the same registration.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside, overflow included.
    pub fn range(&self, offset: usize, size: usize) -> Result<Self> {
        self.check_range("range", offset, size)?;
        let further = |base: &u64| base + offset as u64;
        let origin = match &self.origin {
            Origin::Local { allocation, offset, nics } => {
                let moved = |on: &OnNics| OnNics { regions: on.regions.clone(), offset: further(&on.offset) };
                Origin::Local {
                    allocation: allocation.clone(),
                    offset: further(offset),
                    nics: nics.as_ref().map(moved),
                }
            }
            Origin::Received { remote, offset } => {
                Origin::Received { remote: remote.clone(), offset: further(offset) }
            }
        };
        let place = self.place.part(offset, size)?;
        let (context, transports, rights) = (self.context.clone(), self.transports, self.rights);
        Ok(Self { place, len: size, context, transports, rights, origin })
    }

    /// The same, usable with `transports` only.
    pub(crate) fn with_transports(mut self, transports: Transports) -> Self {
        self.transports = transports;
        self
    }

    /// The same, registered with NIC `number` as `region`, which covers exactly this memory.
    pub(crate) fn with_region(mut self, number: u8, region: MemoryRegion) -> Self {
        if let Origin::Local { nics, .. } = &mut self.origin {
            let known = nics.iter().flat_map(|on| on.regions.iter().cloned());
            let regions = Arc::new(known.chain([(number, region)]).collect());
            *nics = Some(OnNics { regions, offset: 0 });
        }
        self
    }

    /// The region of NIC `number` that contains it, and its offset in that region.
    #[inline]
    pub(crate) fn on_nic(&self, number: u8) -> Option<(&MemoryRegion, u64)> {
        match &self.origin {
            Origin::Local { nics: Some(on), .. } => {
                let region = on.regions.iter().find(|(nic, _)| *nic == number)?;
                Some((&region.1, on.offset))
            }
            _ => None,
        }
    }

    /// Where this process reaches it.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The peer's memory that it belongs to, and its offset in that; `None` for memory of this rank.
    pub(crate) fn remote(&self) -> Option<(&Arc<Remote>, u64)> {
        match &self.origin {
            Origin::Local { .. } => None,
            Origin::Received { remote, offset } => Some((remote, *offset)),
        }
    }

    /// The same, as if the rank that it was received from had said that its NIC `nic` knows it as `region`.
    #[cfg(test)]
    pub(crate) fn with_key(&self, nic: u8, region: crate::rdma::RemoteRegion) -> Self {
        let Origin::Received { remote, .. } = &self.origin else { panic!("memory of this rank") };
        let origin = Origin::Received { remote: Arc::new(remote.with_key(nic, region)), offset: 0 };
        Self { origin, ..self.clone() }
    }

    /// `Ok` if `offset .. offset + size` lies inside, for `op`.
    #[inline]
    pub(crate) fn check_range(&self, op: &'static str, offset: usize, size: usize) -> Result<()> {
        match offset.checked_add(size) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(self.outside(op, offset, size)),
        }
    }

    #[cold]
    fn outside(&self, op: &'static str, offset: usize, size: usize) -> Error {
        let len = self.len;
        Error::usage(op, format!("offset {offset} + size {size} is past the end of a memory of {len} bytes"))
    }

    /// `Ok` if this rank may do with it what needs `needed`. With its own memory a rank may do everything.
    #[inline]
    pub(crate) fn check_rights(&self, op: &'static str, needed: Rights) -> Result<()> {
        if self.rights.contains(needed) || self.is_local() {
            Ok(())
        } else {
            Err(forbidden(op, self, needed))
        }
    }

    /// `Ok` if it is registered for `transport`.
    #[inline]
    pub(crate) fn check_transport(&self, op: &'static str, transport: Transport) -> Result<()> {
        if self.transports.contains(transport) { Ok(()) } else { Err(unregistered(op, transport)) }
    }
}

#[cold]
fn forbidden(op: &'static str, memory: &RegisteredMemory, needed: Rights) -> Error {
    let whose = memory.received_from().map_or("this rank".into(), |rank| format!("rank {rank}"));
    let message = format!(
        "{whose} has registered the memory with Rights {:?}, and this needs {needed:?}; name it with \
         Registration::with_rights there",
        memory.rights
    );
    Error::usage(op, message)
}

#[cold]
fn unregistered(op: &'static str, transport: Transport) -> Error {
    Error::usage(op, format!("the memory is not registered for {transport}; name it when registering"))
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory")
            .field("place", &self.place)
            .field("len", &self.len)
            .field("transports", &self.transports)
            .field("rights", &self.rights)
            .field("received_from", &self.received_from())
            .finish()
    }
}
