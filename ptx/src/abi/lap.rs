//! Numbers of a plan's calls, which are the flags of its packets.

/// Largest number; the one after it is [`FIRST_EPOCH_OF_LAP`].
pub const LAST_EPOCH: u32 = u32::MAX;
/// The number after [`LAST_EPOCH`]: not 0, which is never a flag, and even, so that the halves of scratch keep alternating.
pub const FIRST_EPOCH_OF_LAP: u32 = 2;
