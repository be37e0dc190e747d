//! Threads and their times.

/// Threads in a warp.
pub(super) const LANES: usize = 32;

/// The number of the block that a stream operation is in.
pub(super) const STREAM: u32 = u32::MAX;

/// The time of one thread, which advances whenever the thread publishes what it has done. The first is 1.
pub(super) type Tick = u32;

/// One piece of work: a kernel, or a memory operation of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkId {
    pub(super) chain: u32,
    /// Position in the chain. The first is 1.
    pub(super) seq: u32,
}

/// Some lanes of one warp at one tick: who did an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) work: WorkId,
    pub(super) block: u32,
    pub(super) warp: u16,
    pub(super) lanes: u32,
    pub(super) tick: Tick,
}
