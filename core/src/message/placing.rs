//! Places for what this side's RDMA device reads in memory of the program, so that nobody copies it.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use super::device::Underway;
use crate::error::Result;
use crate::rdma::{LocalRange, MemoryRegion};

/// The place for a read, or for a part of one: registered memory from a byte on.
///
/// Each part that is to be read has its own, of which each piece on its way has a share: as long as one lives, the device may write there.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    region: MemoryRegion,
    at: usize,
}

/// The place for one piece, for its request. Dropped when the piece has come, or its queue pair has gone.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) range: LocalRange,
    _share: Arc<Placing>,
}

impl Placing {
    /// The place from byte `at` of `region` on.
    pub(super) fn new(region: MemoryRegion, at: usize) -> Self {
        Self { region, at }
    }

    /// The place that begins `bytes` behind this one.
    pub(super) fn behind(&self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self.clone() }
    }

    /// The place for `length` bytes from byte `offset` on.
    ///
    /// # Errors
    /// `InvalidUsage` if they are not all inside the memory.
    pub(super) fn place(self: &Arc<Self>, offset: usize, length: usize) -> Result<Place> {
        let range = self.region.range((self.at + offset) as u64, length as u64)?;
        Ok(Place { range, _share: self.clone() })
    }

    /// Its use by the device, among the copies of the whole read.
    pub(super) fn underway(self: &Arc<Self>) -> Placed {
        Placed(Arc::downgrade(self))
    }
}

/// Done when the device writes to the place no more.
pub(super) struct Placed(Weak<Placing>);

impl Underway for Placed {
    fn is_done(&mut self) -> Result<bool> {
        Ok(self.0.strong_count() == 0)
    }

    fn is_told(&self) -> bool {
        true
    }
}
