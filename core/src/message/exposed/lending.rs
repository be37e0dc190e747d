//! The memory that an entry of the table lends.

use std::sync::Arc;

use crate::message::device::DeviceMemory;
use crate::message::lent::Lent;

/// Memory, or a part of it, and a share in what keeps it.
#[derive(Clone, Debug)]
pub(in crate::message) enum Lending {
    /// Bytes that the processor can read.
    Bytes(Lent),
    /// All of the memory of a device, whatever the part. The outer share is the entry's own and of pieces on their way: the program
    /// may keep others of the inner one.
    Device(Arc<Arc<dyn DeviceMemory>>),
}

impl Lending {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// The part of `length` bytes at `offset`; `None` if it is not within.
    pub(super) fn slice(&self, offset: usize, length: usize) -> Option<Self> {
        match self {
            Self::Bytes(bytes) => bytes.slice(offset, length).map(Self::Bytes),
            Self::Device(memory) => {
                offset.checked_add(length).filter(|end| *end <= memory.len()).map(|_| self.clone())
            }
        }
    }

    pub(super) fn is_sole_share(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_sole_share(),
            Self::Device(memory) => Arc::strong_count(memory) == 1,
        }
    }

    pub(super) fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}
