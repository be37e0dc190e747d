//! The memory that the ranks of a collective share, and the epochs by which they take turns in it.

use super::abort::AbortHandle;
use super::layout::device_struct;

/// Largest number of ranks that can share one [`ScratchRegion`] (one NVLink domain of the largest kind sold).
pub const MAX_REGION_RANKS: usize = 72;

device_struct! {
    /// A symmetric scratch region: the same layout in the memory of every rank, mapped by all of them.
    ///
    /// A region is two halves of `half_bytes`; epoch `e` uses half `e & 1`. It carries one packet format for life
    /// and serves one stream order; every pair of ranks exchanges something in every call and block, which is
    /// why two halves suffice. `epochs[b]` is the epoch block `b` used last; a launch of `G` blocks uses
    /// [`next_epoch`] of it and stores the result to every entry `i` with `i % G == b`.
    pub struct ScratchRegion as "SCRATCH" size 648 {
        /// Base of my region, 128-byte aligned.
        pub base: u64 => "BASE" at 0,
        /// Address of `max_blocks` u32 epochs in my device memory (u64 step counts for [`PACKET_FORMAT_HB`], which
        /// has no halves: see [`crate::collective::HbLayout`]).
        pub epochs: u64 => "EPOCHS" at 8,
        /// Bytes in one half, a multiple of 128.
        pub half_bytes: u64 => "HALF_BYTES" at 16,
        /// Entries at `epochs`: the largest grid.
        pub max_blocks: u32 => "MAX_BLOCKS" at 24,
        /// Number of ranks.
        pub ranks: u32 => "RANKS" at 28,
        /// My rank.
        pub rank: u32 => "RANK" at 32,
        /// One of the `PACKET_FORMAT_*` values.
        pub format: u32 => "FORMAT" at 36,
        /// Address of a [`super::GridBarrierState`] in my device memory.
        pub barrier: u64 => "BARRIER" at 40,
        /// Abort word, claim of the record and my rank.
        pub abort: AbortHandle => "ABORT" at 48,
        /// Base of every rank's region as mapped here; entry `rank` is `base`.
        pub peers: [u64; 72] => "PEERS" at 72,
    }
}

/// [`ScratchRegion::format`]: plain data, published by signals.
pub const PACKET_FORMAT_HB: u32 = 0;
/// [`ScratchRegion::format`]: 4 bytes of data and a 4-byte flag per 8 bytes.
pub const PACKET_FORMAT_LL8: u32 = 1;
/// [`ScratchRegion::format`]: two such words per 16 bytes, moved together.
pub const PACKET_FORMAT_LL16: u32 = 2;
/// [`ScratchRegion::format`]: 120 bytes of data and an 8-byte flag per 128 bytes.
pub const PACKET_FORMAT_LL128: u32 = 3;

/// Largest epoch; the one after it is [`FIRST_EPOCH_OF_LAP`].
pub const LAST_EPOCH: u32 = u32::MAX;
/// The epoch after [`LAST_EPOCH`]: not 0, which is never a flag, and even, so that the halves keep alternating.
pub const FIRST_EPOCH_OF_LAP: u32 = 2;

/// The epoch that follows `epoch`.
pub const fn next_epoch(epoch: u32) -> u32 {
    if epoch == LAST_EPOCH { FIRST_EPOCH_OF_LAP } else { epoch + 1 }
}

/// Whether a call with this epoch must zero the *other* half of its own region before it sends anything.
///
/// A flag of the previous lap would otherwise pass for one of the new lap. In epoch `LAST_EPOCH` the even half
/// is idle, in `FIRST_EPOCH_OF_LAP` the odd one; no peer can send the next epoch before it has this one's
/// packets from every block, so zeroing before sending is early enough.
pub const fn epoch_scrubs(epoch: u32) -> bool {
    epoch == LAST_EPOCH || epoch == FIRST_EPOCH_OF_LAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_skip_zero_and_alternate_halves() {
        for start in [0, 1, 2, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let next = next_epoch(start);
            assert_ne!(next, 0);
            assert_ne!(next & 1, start & 1, "epoch {start} and its successor share a half");
        }
    }

    #[test]
    fn both_halves_are_scrubbed_between_two_laps() {
        let mut epoch = LAST_EPOCH - 1;
        let mut scrubbed = Vec::new();
        for _ in 0..4 {
            epoch = next_epoch(epoch);
            if epoch_scrubs(epoch) {
                scrubbed.push((epoch & 1) ^ 1);
            }
        }
        assert_eq!(scrubbed, [0, 1]);
    }
}
