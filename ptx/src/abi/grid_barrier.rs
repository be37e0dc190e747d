//! The barrier of all blocks of a grid.

use super::abort::AbortHandle;
use super::layout::device_struct;

device_struct! {
    /// State of a grid's barrier: device memory, zeroed once, for one kernel at a time.
    ///
    /// | bits | |
    /// |---|---|
    /// | 0-31 | groups that have arrived |
    /// | 32-61 | those of them that came with a status |
    /// | 62 | whether one of the groups that the last barrier joined had come with a status |
    /// | 63 | phase: flipped by the last group to arrive |
    ///
    /// The last group sets both counts to zero. A group that gives up takes its arrival back. So both are zero whenever no
    /// kernel is in the barrier, however the last one ended.
    pub struct GridBarrierState as "GRID_BARRIER_STATE" size 8 {
        /// All of it.
        pub word: u64 => "WORD" at 0,
    }
}

device_struct! {
    /// The barrier of a grid as its kernel sees it. All blocks must be resident: launch cooperatively.
    pub struct GridBarrierHandle as "GRID_BARRIER" size 32 {
        /// Address of the [`GridBarrierState`] (my device memory).
        pub state: u64 => "STATE" at 0,
        /// Abort word, claim of the record and my rank. The barrier gives up when the word is raised.
        pub abort: AbortHandle => "ABORT" at 8,
    }
}
