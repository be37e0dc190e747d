//! Threads among each other, calls, and special registers.

use super::super::operand::{Pred, PredSrc, Reg};
use super::BoolOp;

/// Forms of the block barrier.
#[derive(Clone, Copy, Debug)]
pub enum BarrierKind {
    /// Waits for all participants.
    Sync,
    /// Arrives without waiting.
    Arrive,
    /// Waits, and counts the participants whose predicate is true.
    RedPopc {
        /// The count.
        d: Reg,
        /// The predicate to count.
        a: PredSrc,
    },
    /// Waits, and combines the predicates of the participants with `And` or `Or`.
    RedPred {
        /// `And` or `Or`.
        op: BoolOp,
        /// The result.
        p: Pred,
        /// The predicate to combine.
        a: PredSrc,
    },
}

/// Results of `vote.sync`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the PTX modes")]
pub enum VoteKind {
    All(Pred),
    Any(Pred),
    Uni(Pred),
    Ballot(Reg),
}

/// Modes of `shfl.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX modes")]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// A call. Arguments are copied from the caller's frame to the callee's at the call, results back at the return.
#[derive(Clone, Debug)]
pub struct Call {
    /// The callee.
    pub target: CallTarget,
    /// Copies from the caller's frame to the callee's.
    pub args: Vec<FrameCopy>,
    /// Copies from the callee's frame to the caller's.
    pub returns: Vec<FrameCopy>,
}

/// The callee of a call.
#[derive(Clone, Copy, Debug)]
pub enum CallTarget {
    /// A function of the module, by index.
    Function(u32),
    /// The function whose address the register holds.
    Indirect(Reg),
    /// A function of the device's run-time library.
    Service(Service),
}

/// Functions that nvcc's output expects from the device. Arguments and results are in the caller's frame, at the `from`
/// of [`Call::args`] and the `to` of [`Call::returns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `__assertfail(message, file, line, function, char size)`: fails the context with
    /// `CUDA_ERROR_ASSERT`.
    AssertFail,
    /// `vprintf(format, arguments) -> count`.
    Printf,
    /// `malloc(size) -> address`.
    Malloc,
    /// `free(address)`.
    Free,
}

impl Service {
    /// The sizes of the parameters and of the returned values, in bytes.
    #[must_use]
    pub const fn sizes(self) -> (&'static [u32], &'static [u32]) {
        match self {
            Service::AssertFail => (&[8, 8, 4, 8, 8], &[]),
            Service::Printf => (&[8, 8], &[4]),
            Service::Malloc => (&[8], &[8]),
            Service::Free => (&[8], &[]),
        }
    }
}

/// One copy between frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCopy {
    /// Byte offset in the source frame.
    pub from: u32,
    /// Byte offset in the target frame.
    pub to: u32,
    /// Bytes.
    pub size: u32,
}

/// Special registers (PTX ISA 10) and the engine's own. Vector members 0, 1, 2 are x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the PTX registers")]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerHi,
    DynamicSharedSize,
    TotalSharedSize,
    /// `%envreg0` to `%envreg31`. In a cooperative launch, 1 and 2 are the high and low half of the address of its
    /// zeroed grid workspace (at least 16 bytes). All others are 0.
    EnvReg(u8),
    /// The index of the cluster in its grid.
    ClusterId(u8),
    NClusterId(u8),
    /// The index of the block in its cluster.
    ClusterCtaId(u8),
    ClusterNCtaId(u8),
    ClusterCtaRank,
    ClusterNCtaRank,
    /// The offset of the reserved shared memory in the block's shared memory, plus a number of bytes.
    ReservedShared(u16),
    /// The offset of dynamic shared memory in the block's shared memory.
    DynamicSharedBase,
    /// The stack offset of the current call's frame.
    FrameBase,
    /// The generic address of the launch's parameter buffer.
    KernelParamBase,
}
