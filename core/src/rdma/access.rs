//! Rights of a memory region.

use std::fmt;
use std::ops::BitOr;

use rdma_core_sys::ibv_access_flags as flags;

/// Operations that the NIC may perform on a memory region. Reading it for local requests is always allowed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Only reading by this side's own requests.
    pub const LOCAL_READ: Self = Self(0);
    /// Writing by this side's own requests; reads, atomics and receives need it.
    pub const LOCAL_WRITE: Self = Self(flags::IBV_ACCESS_LOCAL_WRITE.0);
    /// Writing by the peer. Needs `LOCAL_WRITE`.
    pub const REMOTE_WRITE: Self = Self(flags::IBV_ACCESS_REMOTE_WRITE.0);
    /// Reading by the peer.
    pub const REMOTE_READ: Self = Self(flags::IBV_ACCESS_REMOTE_READ.0);
    /// Atomics by the peer. Needs `LOCAL_WRITE`.
    pub const REMOTE_ATOMIC: Self = Self(flags::IBV_ACCESS_REMOTE_ATOMIC.0);
    /// Binding windows to the region, which give the peer rights to parts of it. The kernel asks for memory that may be written, whatever
    /// rights the windows give.
    pub const BIND: Self = Self(flags::IBV_ACCESS_MW_BIND.0);
    /// Lets the NIC's writes to this region overtake each other on the PCIe bus, which some hosts need for full speed.
    /// Never for memory that is waited on: only a write to a region *without* it stays behind the writes before it.
    pub const RELAXED_ORDERING: Self = Self(flags::IBV_ACCESS_RELAXED_ORDERING.0);

    /// For data: written and read by both sides, relaxed.
    pub const DATA: Self =
        Self(Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::RELAXED_ORDERING.0);
    /// For flags and counters: written, read and changed by atomics, always in order.
    pub const FLAGS: Self =
        Self(Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0);

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Without `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// Whether the rights of the peer imply a right that is missing here.
    pub(super) fn lacks_local_write(self) -> bool {
        (self.contains(Self::REMOTE_WRITE) || self.contains(Self::REMOTE_ATOMIC))
            && !self.contains(Self::LOCAL_WRITE)
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::LOCAL_WRITE, "local write"),
            (Self::REMOTE_WRITE, "remote write"),
            (Self::REMOTE_READ, "remote read"),
            (Self::REMOTE_ATOMIC, "remote atomic"),
            (Self::BIND, "bind"),
            (Self::RELAXED_ORDERING, "relaxed ordering"),
        ];
        f.debug_set()
            .entries(names.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_never_relaxed_and_remote_writes_need_local_ones() {
        assert!(Access::DATA.contains(Access::RELAXED_ORDERING));
        assert!(!Access::FLAGS.contains(Access::RELAXED_ORDERING));
        assert!(Access::REMOTE_WRITE.lacks_local_write() && Access::REMOTE_ATOMIC.lacks_local_write());
        assert!(!Access::DATA.lacks_local_write() && !Access::REMOTE_READ.lacks_local_write());
        assert_eq!(format!("{:?}", Access::REMOTE_READ), r#"{"remote read"}"#);
    }
}
