//! Clusters: blocks that run at the same time, see each other's shared memory and have a common barrier (PTX ISA 2.2.2,
//! `barrier.cluster`). Every block is in a cluster, most of them alone.
//!
//! # Addresses in `.shared::cluster`
//! The low 24 bits are the offset in a block's shared memory. The bits above are 0 for the block itself, so that an
//! address in `.shared::cta` is valid too, or the rank of the block plus 1.

use std::fmt;

use parking_lot::Mutex;

use super::buffer::{Line, Range, lines};

/// Bits of the offset in an address.
const OFFSET: u32 = 24;

/// The state that the blocks of a cluster share.
pub(super) struct Cluster {
    /// The shared memory of all blocks, one after another.
    memory: Box<[Line]>,
    /// Bytes from the memory of one block to that of the next.
    stride: u64,
    /// Bytes of shared memory of a block.
    size: u64,
    /// The number of blocks.
    pub(super) blocks: u32,
    barrier: Mutex<Barrier>,
}

/// The barrier of a cluster.
#[derive(Debug)]
struct Barrier {
    /// Threads that have not exited.
    live: u64,
    /// Threads that have arrived in this phase and have not exited since.
    arrived: u64,
    /// The parity of the phase.
    odd: bool,
}

impl Barrier {
    fn complete(&mut self) {
        if self.live > 0 && self.arrived == self.live {
            self.arrived = 0;
            self.odd = !self.odd;
        }
    }
}

impl Cluster {
    /// Creates the state of `blocks` blocks with `size` bytes of shared memory and `threads` threads each. With a seed, the memory holds
    /// garbage at first.
    pub(super) fn new(blocks: u32, size: u64, threads: u32, garbage: Option<u64>) -> Self {
        let stride = size.next_multiple_of(128);
        let live = u64::from(blocks) * u64::from(threads);
        Cluster {
            memory: lines(stride * u64::from(blocks), garbage),
            stride,
            size,
            blocks,
            barrier: Mutex::new(Barrier { live, arrived: 0, odd: false }),
        }
    }

    /// The shared memory of the block with this rank.
    pub(super) fn shared(&self, rank: u32) -> Range {
        let base = Range::of(&self.memory).base + self.stride * u64::from(rank);
        Range { base, end: base + self.size }
    }

    /// Whether all of `first .. end` is in the shared memory of one block.
    pub(super) fn holds(&self, first: u64, end: u64) -> bool {
        self.rank_of(first).is_some_and(|rank| self.shared(rank).holds(first, end))
    }

    /// The rank of the block whose shared memory contains the host address.
    pub(super) fn rank_of(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(Range::of(&self.memory).base)?;
        let rank = u32::try_from(offset.checked_div(self.stride)?).ok()?;
        (rank < self.blocks).then_some(rank)
    }

    /// The host address of a `.shared::cluster` address, as the block `own` sees it; one outside all memory if there is
    /// no such block.
    pub(super) fn host(&self, own: u32, address: u32) -> u64 {
        let rank = self.named(own, address);
        let offset = u64::from(address & ((1 << OFFSET) - 1));
        if rank < self.blocks { self.shared(rank).base + offset } else { 0 }
    }

    /// The rank in a `.shared::cluster` address, as the block `own` sees it.
    pub(super) fn named(&self, own: u32, address: u32) -> u32 {
        match address >> OFFSET {
            0 => own,
            above => above - 1,
        }
    }

    /// The `.shared::cluster` address of a host address; 0 if it is in no shared memory of the cluster.
    pub(super) fn address(&self, host: u64) -> u32 {
        self.rank_of(host).map_or(0, |rank| map((host - self.shared(rank).base) as u32, rank))
    }

    /// Counts `threads` as arrived. Returns the parity of the phase they arrived in.
    pub(super) fn arrive(&self, threads: u32) -> bool {
        let mut barrier = self.barrier.lock();
        let odd = barrier.odd;
        barrier.arrived += u64::from(threads);
        barrier.complete();
        odd
    }

    /// The parity of the present phase.
    pub(super) fn odd(&self) -> bool {
        self.barrier.lock().odd
    }

    /// Removes `threads` that exit. `arrived` has those that have arrived and not waited, with the parity that they got,
    /// as (even, odd).
    pub(super) fn exit(&self, threads: u32, arrived: (u32, u32)) {
        let mut barrier = self.barrier.lock();
        barrier.live -= u64::from(threads);
        barrier.arrived -= u64::from(if barrier.odd { arrived.1 } else { arrived.0 });
        barrier.complete();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster of {} blocks", self.blocks)
    }
}

/// `mapa`: the address of the same offset in the memory of the block `rank`.
pub(super) fn map(address: u32, rank: u32) -> u32 {
    address & ((1 << OFFSET) - 1) | rank.wrapping_add(1) << OFFSET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_blocks_and_bounds_are_those_of_one_block() {
        let cluster = Cluster::new(3, 200, 32, None);
        let (own, other) = (cluster.shared(1), cluster.shared(2));
        assert_eq!(cluster.host(1, 8), own.base + 8);
        assert_eq!((cluster.host(1, map(8, 2)), cluster.named(1, map(8, 2))), (other.base + 8, 2));
        assert_eq!(cluster.host(1, map(8, 3)), 0, "there is no fourth block");
        assert_eq!(cluster.address(other.base + 8), map(8, 2));
        assert!(cluster.holds(own.base, own.base + 200) && !cluster.holds(own.base, own.base + 201));
        assert!(!cluster.holds(cluster.shared(2).end, cluster.shared(2).end + 1));
        assert!(!Cluster::new(1, 0, 1, None).holds(own.base, own.base));
    }

    #[test]
    fn the_barrier_waits_for_live_threads_only() {
        let cluster = Cluster::new(2, 0, 32, None);
        let first = cluster.arrive(32);
        assert_eq!(cluster.odd(), first);
        cluster.arrive(31);
        assert_eq!(cluster.odd(), first);
        cluster.exit(1, (0, 0));
        assert_ne!(cluster.odd(), first, "the last one exited");
        // A thread that arrives and exits counts for nothing: the others have to arrive.
        let second = cluster.arrive(1);
        cluster.exit(1, if second { (0, 1) } else { (1, 0) });
        assert_eq!(cluster.odd(), second);
        cluster.arrive(62);
        assert_ne!(cluster.odd(), second);
    }
}
