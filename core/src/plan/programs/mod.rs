//! Classical collectives as programs, ready to be compiled, written to files, or read as examples of how plans are written.
//!
//! They ask for the syncs that order ranks and blocks, and leave those inside a block to the [passes](super::pass).
//!
//! ```
//! use aqueduct::plan::programs;
//!
//! let ring = programs::find("all-reduce", Some("ring"))?;
//! let plan = ring.program(4, &programs::Choices::default())?.instances(2).compile()?;
//! assert_eq!(plan.ranks.len(), 4);
//! # Ok::<(), aqueduct::Error>(())
//! ```

pub(super) mod all_gather;
pub(super) mod all_reduce;
pub(super) mod all_to_all;
mod catalog;
mod hierarchical;
pub(super) mod rooted;

#[cfg(test)]
pub(super) mod judge;
#[cfg(test)]
mod mscclpp;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod written;

pub use catalog::{ALGORITHMS, Algorithm, Choices, find};
#[cfg(test)]
pub(super) use written::{all, synchronised};

use super::program;
use super::program::{MemoryChannel, Rank, SyncType};

/// A channel to each other rank.
fn channels<'p>(rank: &Rank<'p>) -> Vec<MemoryChannel<'p>> {
    rank.peers().map(|peer| rank.memory_channel(peer)).collect()
}

/// All ranks have begun the call: block `tb` may touch what is theirs.
fn begin(channels: &[MemoryChannel<'_>], tb: u32) {
    channels.iter().for_each(|channel| channel.relaxed_signal(tb, SyncType::Both));
    channels.iter().for_each(|channel| channel.wait(tb, SyncType::Both));
}

/// All ranks have done what block `tb` did until here.
fn end(channels: &[MemoryChannel<'_>], tb: u32) {
    channels.iter().for_each(|channel| channel.signal(tb, SyncType::Before));
    channels.iter().for_each(|channel| channel.wait(tb, SyncType::After));
}

/// Channels to the next rank and the rank before of a ring. Of two ranks these are one: the k-th channel to a rank pairs with
/// that rank's k-th channel back, so a second one would lead past the other's.
fn ring<'p>(rank: &Rank<'p>) -> (MemoryChannel<'p>, MemoryChannel<'p>) {
    let peers: Vec<u32> = rank.peers().collect();
    let next = rank.memory_channel(peers[0]);
    match peers[..] {
        [_, .., before] => (next, rank.memory_channel(before)),
        _ => (next, next),
    }
}

/// The place of `peer` among the peers of `rank`, in ascending order.
fn slot(rank: u32, peer: u32) -> u32 {
    if peer < rank { peer } else { peer - 1 }
}
