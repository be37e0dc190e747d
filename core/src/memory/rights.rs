//! Access rights of peers to a registered memory, and the parameters of a registration.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::BitOr;

use super::transports::{Transport, Transports};
use crate::rdma::Access;
use crate::wire::{WireError, WireResult};

/// Operations that peers may perform on a registered memory. One buffer can be registered several times, with
/// different rights.
///
/// Every connection checks them before it accepts an operation. Where the owner or the hardware sees the access, it
/// is also refused there, whatever software the peer runs: over Ethernet the owner checks each message, over verbs
/// the owner's NIC checks the flags of the region, and over CudaIpc memory passed by file descriptors or fabric
/// handles without the right to write is mapped read-only, so that a kernel that writes it fails. The driver has no
/// read-only mapping for legacy handles, for ranks of one process and for host memory, and no mapping that forbids
/// reading: there only the connection checks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// None: only this rank uses the memory, and it cannot be sent.
    pub const LOCAL_ONLY: Self = Self(0);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(1);
    /// Peers may write it.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may change words of it with a NIC's atomics, as [`IbSignal::Atomic`](crate::comm::IbSignal::Atomic) does.
    pub const REMOTE_ATOMIC: Self = Self(4);
    /// Reading and writing: the default of a registration.
    pub const READ_WRITE: Self = Self(1 | 2);
    const KNOWN: u8 = 1 | 2 | 4;

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn to_wire(self) -> u8 {
        self.0
    }

    pub(super) fn from_wire(bits: u8) -> WireResult<Self> {
        match bits & !Self::KNOWN {
            0 => Ok(Self(bits)),
            _ => Err(WireError::Invalid { what: "rights of a memory" }),
        }
    }

    /// Access flags for registering the memory with a NIC. Data may take any order on the PCIe bus.
    pub(crate) fn access(self) -> Access {
        let pairs = [
            (Self::REMOTE_READ, Access::REMOTE_READ),
            (Self::REMOTE_WRITE, Access::REMOTE_WRITE),
            (Self::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        ];
        let granted = pairs.into_iter().filter(|(right, _)| self.contains(*right));
        granted.fold(Access::LOCAL_WRITE | Access::RELAXED_ORDERING, |all, (_, access)| all | access)
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::REMOTE_READ, "REMOTE_READ"),
            (Self::REMOTE_WRITE, "REMOTE_WRITE"),
            (Self::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        ];
        let granted: Vec<_> =
            names.iter().filter(|(right, _)| self.contains(*right)).map(|(_, name)| *name).collect();
        f.write_str(if granted.is_empty() { "LOCAL_ONLY".into() } else { granted.join(" | ") }.as_str())
    }
}

/// Transports and rights of a registration. A [`Transport`] or a set of them converts into one with
/// [`Rights::READ_WRITE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// Transports of the connections that can use the memory.
    pub(crate) transports: Transports,
    /// Operations that peers may perform on the memory.
    pub(crate) rights: Rights,
}

impl Registration {
    /// For `transports`; peers may read and write.
    pub fn new(transports: impl Into<Transports>) -> Self {
        Self { transports: transports.into(), rights: Rights::READ_WRITE }
    }

    /// The same with other rights.
    #[must_use]
    pub fn with_rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }
}

impl From<Transport> for Registration {
    fn from(transport: Transport) -> Self {
        Self::new(transport)
    }
}

impl From<Transports> for Registration {
    fn from(transports: Transports) -> Self {
        Self::new(transports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_say_what_they_are_to_wires_nics_and_readers() {
        let all = Rights::READ_WRITE | Rights::REMOTE_ATOMIC;
        assert_eq!(all | Rights::REMOTE_READ, all);
        for bits in 0..8 {
            assert_eq!(Rights::from_wire(bits).map(Rights::to_wire), Ok(bits));
        }
        assert!(Rights::from_wire(8).is_err());
        assert_eq!(Rights::READ_WRITE.access(), Access::DATA);
        let access = Rights::REMOTE_READ.access();
        assert!(access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_WRITE));
        assert!(all.access().contains(Access::REMOTE_ATOMIC));
        assert_eq!(
            format!("{:?} {all:?}", Rights::LOCAL_ONLY),
            "LOCAL_ONLY REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC"
        );
    }
}
