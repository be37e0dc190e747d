//! The order of launches that one rank decides for all.

use super::layout::device_struct;

/// A position of the ring behind a [`TurnQueue`] whose call may begin as soon as it has asked. Others are zero, or the number of the caller
/// that has asked, plus one.
pub const TURN_FREE: u32 = u32::MAX;

device_struct! {
    /// Whose turn it is: device memory of rank 0, followed by the ring of positions (`mask + 1` words of 32 bits, of which the first is
    /// [`TURN_FREE`] at the beginning, and the others zero). Written by kernels of rank 0 alone.
    ///
    /// The words of all ranks lie in host memory that they share, 4 bytes for each number of a caller: 1 while what a word stands for holds,
    /// else 0. When nobody may wait any more, the host makes all of them 1 for which streams wait.
    pub struct TurnQueue as "TURN_QUEUE" size 48 {
        /// Positions that calls have taken.
        pub taken: u64 => "TAKEN" at 0,
        /// Positions whose calls are done on all ranks.
        pub granted: u64 => "GRANTED" at 8,
        /// Address of a table: where the words of each rank begin by which calls are granted (8 bytes for each rank).
        pub words: u64 => "WORDS" at 16,
        /// Address of the words by which ranks have said that they are ready for a caller's call: those of all ranks for the first caller, then
        /// those for the next.
        pub ready: u64 => "READY" at 24,
        /// Address of a word for each rank, by which it has said that its part of the call that was granted last is done.
        pub done: u64 => "DONE" at 32,
        /// Number of ranks.
        pub ranks: u32 => "RANKS" at 40,
        /// Positions of the ring, a power of two and at least as many as there are callers, minus one.
        pub mask: u32 => "MASK" at 44,
    }
}
