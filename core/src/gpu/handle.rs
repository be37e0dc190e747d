//! Handles by which memory is shared: the kinds, and fabric handles, which are bytes.

use std::fmt;
use std::ops::BitOr;

use cuda_driver_sys::CUmemAllocationHandleType;

/// The kinds of handle an allocation can be exported as: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandleTypes(u32);

impl HandleTypes {
    /// None: memory of this process only.
    pub const NONE: Self = Self(0);
    /// A file descriptor, for processes of this host.
    pub const FD: Self = Self(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0);
    /// 64 bytes, for processes of the NVLink domain.
    pub const FABRIC: Self = Self(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0);

    /// Whether all of `other` are in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(u32::try_from(bits).unwrap_or(0))
    }

    pub(super) fn bits(self) -> u64 {
        self.0.into()
    }

    pub(super) fn of(raw: CUmemAllocationHandleType) -> Self {
        Self(raw.0)
    }

    pub(super) fn raw(self) -> CUmemAllocationHandleType {
        CUmemAllocationHandleType(self.0)
    }
}

impl BitOr for HandleTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A handle made by [`PhysicalAllocation::export_fabric`](super::vmm::PhysicalAllocation::export_fabric). A bearer
/// token: its bytes are not shown in messages.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FabricHandle(pub [u8; 64]);

impl fmt::Debug for FabricHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FabricHandle(..)")
    }
}
