//! What two ranks agree on when they set something up together.
#![forbid(unsafe_code)]

use std::fmt;

use crate::wire::{WireError, WireResult};

/// What an item of `setup()` makes, seen from this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Connection,
    MemorySend,
    MemoryRecv,
    Semaphore,
}

impl Kind {
    /// The kind of the matching item at the peer.
    pub(crate) fn counterpart(self) -> Self {
        match self {
            Self::MemorySend => Self::MemoryRecv,
            Self::MemoryRecv => Self::MemorySend,
            same => same,
        }
    }

    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::Connection => 1,
            Self::MemorySend => 2,
            Self::MemoryRecv => 3,
            Self::Semaphore => 4,
        }
    }

    pub(crate) fn from_wire(value: u8) -> WireResult<Self> {
        match value {
            1 => Ok(Self::Connection),
            2 => Ok(Self::MemorySend),
            3 => Ok(Self::MemoryRecv),
            4 => Ok(Self::Semaphore),
            _ => Err(WireError::Invalid { what: "kind of setup item" }),
        }
    }

    /// The call that the user made.
    pub(crate) fn op(self) -> &'static str {
        match self {
            Self::Connection => "connect",
            Self::MemorySend => "send_memory",
            Self::MemoryRecv => "recv_memory",
            Self::Semaphore => "build_semaphore",
        }
    }
}

/// Names an item of `setup()`: items of two ranks with counterpart kinds and equal tags belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) peer: u32,
    pub(crate) tag: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with rank {}, tag {}", self.kind.op(), self.peer, self.tag)
    }
}
