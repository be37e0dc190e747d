//! Places in memory of the program for what is read: this side's RDMA device brings it there, or the processor copies it from mapped memory. So
//! nobody copies it once more.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use super::device::Underway;
use super::revocation::before_writing;
use super::shared::SharedMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::rdma::{LocalRange, MemoryRegion};
use crate::volatile::VolatileSlice;

/// The place for a read, or for a part of one: memory from a byte on.
///
/// Each part that is to be read has its own, of which each piece on its way and each copy has a share: as long as one lives, something may write there.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    memory: Memory,
    at: usize,
}

#[derive(Clone, Debug)]
enum Memory {
    /// For this side's RDMA device.
    Registered(MemoryRegion),
    /// For the processor.
    Shared(SharedMemory),
}

/// The place for one piece, for its request. Dropped when the piece has come, or its queue pair has gone.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) range: LocalRange,
    _share: Arc<Placing>,
}

impl Placing {
    /// The place for an RDMA device from byte `at` of `region` on.
    pub(super) fn registered(region: MemoryRegion, at: usize) -> Self {
        Self { memory: Memory::Registered(region), at }
    }

    /// The place for the processor from byte `at` of `memory` on.
    pub(super) fn shared(memory: &SharedMemory, at: usize) -> Self {
        Self { memory: Memory::Shared(memory.clone()), at }
    }

    /// Whether it is for an RDMA device.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
    }

    /// The place that begins `bytes` behind this one.
    pub(super) fn behind(&self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self.clone() }
    }

    /// The place for `length` bytes from byte `offset` on, for a device.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside the memory.
    pub(super) fn place(self: &Arc<Self>, offset: usize, length: usize) -> Result<Place> {
        let Memory::Registered(region) = &self.memory else { return Err(unfit()) };
        let range = region.range((self.at + offset) as u64, length as u64)?;
        Ok(Place { range, _share: self.clone() })
    }

    /// The `length` bytes from byte `offset` on, for the processor.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside the memory.
    pub(super) fn bytes(&self, offset: usize, length: usize) -> Result<VolatileSlice<'_>> {
        let Memory::Shared(memory) = &self.memory else { return Err(unfit()) };
        // This thread writes there, and need not be the one that has asked for the read.
        before_writing();
        memory.place(self.at + offset, length)
    }

    /// Its use, among the copies of the whole read.
    pub(super) fn underway(self: &Arc<Self>) -> Placed {
        Placed(Arc::downgrade(self))
    }
}

/// Done when nothing writes to the place any more.
pub(super) struct Placed(Weak<Placing>);

impl Underway for Placed {
    fn is_done(&mut self) -> Result<bool> {
        Ok(self.0.strong_count() == 0)
    }

    fn is_told(&self) -> bool {
        true
    }
}

fn unfit() -> Error {
    Error::new(ErrorKind::Internal, "read", "a place for another way of reading")
}
