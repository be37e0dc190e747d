//! Faults of kernels.

use std::fmt;

use crate::check::TOO_MUCH;

/// The first fault of a grid. It ends all blocks of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// The block's index.
    pub block: [u32; 3],
    /// The thread's index in its block.
    pub thread: [u32; 3],
    /// The function the thread was in.
    pub function: String,
    /// The source line of the instruction, 0 where there is none.
    pub line: u32,
    /// The address, for memory faults.
    pub address: Option<u64>,
}

/// Kinds of faults; the driver maps them to `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside all mappings, or without the right to the mapping.
    IllegalAddress,
    /// An address that is not a multiple of the access's size.
    MisalignedAddress,
    /// `trap`.
    Trap,
    /// `__assertfail`.
    Assert,
    /// An instruction or operand that hardware rejects: a barrier number above 15, or an atomic operation on a type
    /// that does not have it.
    IllegalInstruction,
    /// An instruction on a state space that does not allow it, such as an atomic on local memory.
    InvalidAddressSpace,
    /// A call or branch to an address that is no function, or to an index outside its list.
    InvalidPc,
    /// Calls nested deeper than the thread's stack allows.
    StackOverflow,
    /// An instruction, with this name, that the race detector does not follow.
    Unchecked(&'static str),
    /// An access that nothing orders with another one: the race detector has printed both.
    Race,
    /// An access to more memory than the race detector can follow.
    TooMuch,
    /// A diverged warp at an aligned barrier.
    Diverged,
    /// The kernel made no progress for longer than the [watchdog](super::Watchdog) allows.
    Timeout,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::IllegalAddress => "illegal address",
            FaultKind::MisalignedAddress => "misaligned address",
            FaultKind::Trap => "trap",
            FaultKind::Assert => "device-side assertion",
            FaultKind::IllegalInstruction => "illegal instruction",
            FaultKind::InvalidAddressSpace => "operation not supported in this address space",
            FaultKind::InvalidPc => "invalid program counter",
            FaultKind::StackOverflow => "stack overflow",
            FaultKind::Unchecked(_) => {
                "instruction that the race detector does not follow (run without AQUEDUCT_SOFT_CHECK=races, or without the instruction)"
            }
            FaultKind::Race => "data race",
            FaultKind::TooMuch => TOO_MUCH,
            FaultKind::Diverged => "aligned barrier in a diverged warp",
            FaultKind::Timeout => "no progress within the watchdog's limit",
        };
        write!(f, "{what}")?;
        if let FaultKind::Unchecked(name) = self.kind {
            write!(f, ": {name}")?;
        }
        if let Some(address) = self.address {
            write!(f, " {address:#x}")?;
        }
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        if self.kind == FaultKind::TooMuch {
            write!(f, ":")?;
        }
        write!(f, " in kernel {}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz})", self.kernel)?;
        if self.line != 0 {
            write!(f, ", line {} ({})", self.line, self.function)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A fault as the instruction reports it. `Grid::describe` adds the names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) kind: FaultKind,
    pub(super) lane: u8,
    pub(super) address: Option<u64>,
}

impl Trouble {
    pub(super) fn at(kind: FaultKind, lane: usize, address: u64) -> Self {
        Trouble { kind, lane: lane as u8, address: Some(address) }
    }

    pub(super) fn of(kind: FaultKind, mask: u32) -> Self {
        Trouble { kind, lane: mask.trailing_zeros().min(31) as u8, address: None }
    }
}
