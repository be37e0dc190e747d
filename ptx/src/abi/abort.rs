//! How the host makes waiting kernels leave, and how a kernel reports what it was waiting for.

use super::layout::device_struct;

/// Spins that look only at the awaited word, before the abort word is read for the first time.
pub const SPINS_FREE: u32 = 1000;

/// Spins between two reads of the abort word after that.
pub const SPINS_PER_ABORT_READ: u32 = 1000;

/// Value of the abort word that lets kernels run; any other value asks every waiting kernel to leave.
pub const ABORT_WORD_RUN: u32 = 0;

/// [`AbortRecord::state`]: nothing has been recorded.
pub const ABORT_RECORD_EMPTY: u32 = 0;
/// [`AbortRecord::state`]: complete; valid after an acquire load of `state`.
pub const ABORT_RECORD_COMPLETE: u32 = 1;

/// [`AbortClaim::state`]: no thread has left early.
pub const ABORT_CLAIM_FREE: u32 = 0;
/// [`AbortClaim::state`]: one thread has the right to write the record.
pub const ABORT_CLAIM_TAKEN: u32 = 1;

/// [`AbortRecord::peer`] when the wait was not for one particular rank (a grid barrier).
pub const NO_PEER: u32 = u32::MAX;

/// The operation in which a kernel left early. An integer newtype: a newer kernel may record a newer code.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation(pub u32);

impl Operation {
    /// Waiting for a semaphore's inbound counter.
    pub const WAIT: Self = Self(1);
    /// Waiting for LL8 packets.
    pub const UNPACK_LL8: Self = Self(2);
    /// Waiting for LL16 packets.
    pub const UNPACK_LL16: Self = Self(3);
    /// Waiting for LL128 packets.
    pub const UNPACK_LL128: Self = Self(4);
    /// Waiting for the other blocks of the same grid.
    pub const GRID_BARRIER: Self = Self(5);
    /// Waiting for room in a FIFO, or for one of its positions.
    pub const FIFO: Self = Self(7);
    /// Waiting inside a measuring kernel.
    pub const PERF: Self = Self(8);
    /// Waiting for a port channel's flush.
    pub const FLUSH: Self = Self(9);
    /// Waiting for packets inside a plan.
    pub const PLAN: Self = Self(10);
    /// Waiting until other ranks have done their part of the call whose turn it is.
    pub const TURN: Self = Self(11);

    /// The field's name for the operation, or `"unknown operation"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WAIT => "semaphore wait",
            Self::UNPACK_LL8 => "LL8 unpack",
            Self::UNPACK_LL16 => "LL16 unpack",
            Self::UNPACK_LL128 => "LL128 unpack",
            Self::GRID_BARRIER => "grid barrier",
            Self::FIFO => "FIFO",
            Self::PERF => "perf",
            Self::FLUSH => "flush",
            Self::PLAN => "plan",
            Self::TURN => "turn",
            _ => "unknown operation",
        }
    }
}

device_struct! {
    /// Parameters that every wait of a kernel needs: the word that tells it to leave, the claim through which it records what
    /// it was waiting for, and the peer.
    pub struct AbortHandle as "ABORT_HANDLE" size 24 {
        /// Address of the abort word (u32, pinned host memory): written by the host, see [`ABORT_WORD_RUN`].
        pub word: u64 => "WORD" at 0,
        /// Address of this rank's [`AbortClaim`] (u64, my device memory).
        pub claim: u64 => "CLAIM" at 8,
        /// My rank.
        pub rank: u32 => "RANK" at 16,
        /// The rank waited for, for the record, or [`NO_PEER`].
        pub peer: u32 => "PEER" at 20,
    }
}

device_struct! {
    /// The right to write an [`AbortRecord`], and its address. Memory of the device whose kernels leave, one per
    /// record.
    ///
    /// The first thread that leaves early wins by compare-and-swap on `state`, of device scope. A claim in host memory
    /// would need native atomics across the link, which PCIe lacks on many machines. The host writes a claim once,
    /// before any kernel knows it, and resets it only while no kernel that knows it is running.
    pub struct AbortClaim as "ABORT_CLAIM" size 16 {
        /// [`ABORT_CLAIM_FREE`] or [`ABORT_CLAIM_TAKEN`].
        pub state: u32 => "STATE" at 0,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 4,
        /// Address of the [`AbortRecord`] (pinned host memory).
        pub record: u64 => "RECORD" at 8,
    }
}

device_struct! {
    /// The wait of the first thread that left early. Pinned host memory, one per rank and context.
    ///
    /// The thread that won the [`AbortClaim`] fills the fields by plain stores and publishes them with a release
    /// store of [`ABORT_RECORD_COMPLETE`] (`SYNC abort.record`). The host may clear a record only while no kernel
    /// that knows its claim is running.
    pub struct AbortRecord as "ABORT_RECORD" size 40 {
        /// One of the `ABORT_RECORD_*` states.
        pub state: u32 => "STATE" at 0,
        /// The rank that was waiting.
        pub rank: u32 => "RANK" at 4,
        /// [`Operation`] code.
        pub operation: u32 => "OPERATION" at 8,
        /// The rank it waited for, or [`NO_PEER`].
        pub peer: u32 => "PEER" at 12,
        /// Block index within the grid.
        pub block: u32 => "BLOCK" at 16,
        /// Packet flag or epoch it waited for; zero for semaphores.
        pub epoch: u32 => "EPOCH" at 20,
        /// Counter value it waited for; zero for packets.
        pub awaited: u64 => "AWAITED" at 24,
        /// The value it saw last (counter, or the packet's flag).
        pub seen: u64 => "SEEN" at 32,
    }
}
