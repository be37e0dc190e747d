//! The order of transfers that several queue pairs execute.
//!
//! A queue pair executes its requests in order; different ones execute theirs in any order. Small transfers all take the first
//! queue pair. The pieces of large ones are spread by the address of their destination, so that large writes to the same bytes,
//! and large reads into the same bytes, meet on one queue pair. A transfer therefore waits only for a transfer of another kind
//! that touches the same bytes, here or at the peer.

use std::collections::VecDeque;
use std::ops::Range;

use super::send_queue::SendQueue;
use crate::rdma::{LocalRange, RemoteRange};

/// Transfers of at least two of these are large. Their pieces end at multiples of it.
pub(super) const STRIPE: u64 = 256 << 10;

/// The queue of `count`, by its index, that takes the byte at `address` of the destination of a large transfer, and how many bytes
/// from there on take the same one.
pub(super) fn queue_of(address: u64, count: usize) -> (usize, u64) {
    ((address / STRIPE % count as u64) as usize, STRIPE - address % STRIPE)
}

/// The addresses that a transfer touches.
#[derive(Debug)]
pub(super) struct Footprint {
    pub(super) read: bool,
    pub(super) spread: bool,
    here: Range<u64>,
    there: Range<u64>,
}

impl Footprint {
    pub(super) fn transfer(read: bool, spread: bool, local: LocalRange, remote: RemoteRange) -> Self {
        Self { read, spread, here: local.addresses(), there: remote.addresses() }
    }

    /// A word written at the peer.
    pub(super) fn word(remote: RemoteRange) -> Self {
        Self { read: false, spread: false, here: 0..0, there: remote.addresses() }
    }

    /// Whether `later` must not pass it. Those of one kind do not, whatever they touch.
    fn holds_up(&self, later: &Self) -> bool {
        let same_queues = self.spread == later.spread && (!self.spread || self.read == later.read);
        !same_queues
            && (overlap(&self.there, &later.there) && !(self.read && later.read)
                || overlap(&self.here, &later.here) && (self.read || later.read))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The transfers that may not have completed, of a connection with several queue pairs.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// On the first queue: done when that has completed so many requests.
    small: VecDeque<(u64, Footprint)>,
    /// Done when each queue has completed so many requests.
    large: VecDeque<(Vec<u64>, Footprint)>,
}

impl Outstanding {
    /// Notes a transfer whose requests are all made.
    pub(super) fn add(&mut self, footprint: Footprint, queues: &[SendQueue]) {
        self.forget(queues);
        if footprint.spread {
            self.large.push_back((queues.iter().map(SendQueue::posted).collect(), footprint));
        } else if let Some(first) = queues.first() {
            self.small.push_back((first.posted(), footprint));
        }
    }

    /// Whether one of them must complete before `later` can begin.
    pub(super) fn holds_up(&mut self, later: &Footprint, queues: &[SendQueue]) -> bool {
        self.forget(queues);
        self.large.iter().any(|(_, earlier)| earlier.holds_up(later))
            // Small ones share a queue pair.
            || later.spread && self.small.iter().any(|(_, earlier)| earlier.holds_up(later))
    }

    /// Drops those that have completed.
    fn forget(&mut self, queues: &[SendQueue]) {
        let done = |end: &u64| queues.first().is_none_or(|first| first.done() >= *end);
        while self.small.front().is_some_and(|(end, _)| done(end)) {
            self.small.pop_front();
        }
        let all_done = |ends: &[u64]| queues.iter().zip(ends).all(|(queue, end)| queue.done() >= *end);
        while self.large.front().is_some_and(|(ends, _)| all_done(ends)) {
            self.large.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Range<u64> = 0..0;

    fn footprint(read: bool, spread: bool, here: Range<u64>, there: Range<u64>) -> Footprint {
        Footprint { read, spread, here, there }
    }

    #[test]
    fn only_what_touches_the_same_bytes_is_held_up_and_two_sources_touch_nothing() {
        let holds_up = |reads: [bool; 2], here: [Range<u64>; 2], there: [Range<u64>; 2]| {
            let ([first, second], [here, here_too], [there, there_too]) = (reads, here, there);
            footprint(first, true, here, there).holds_up(&footprint(second, false, here_too, there_too))
        };
        for reads in [[false, false], [false, true], [true, false], [true, true]] {
            let [first, second] = reads;
            assert!(!holds_up(reads, [8..16, 16..24], [16..24, 8..16]), "they meet at an end");
            assert_eq!(holds_up(reads, [NOWHERE, NOWHERE], [8..16, 15..16]), !(first && second), "{reads:?}");
            assert_eq!(holds_up(reads, [8..16, 0..9], [NOWHERE, NOWHERE]), first || second, "{reads:?}");
        }
    }

    #[test]
    fn transfers_that_share_their_queue_pairs_hold_up_none_of_each_other() {
        let all = [[false, false], [false, true], [true, false], [true, true]];
        for [read, spread] in all {
            for [read_too, spread_too] in all {
                let (earlier, later) =
                    (footprint(read, spread, 0..8, 0..8), footprint(read_too, spread_too, 0..8, 0..8));
                let shared = spread == spread_too && (!spread || read == read_too);
                assert_eq!(earlier.holds_up(&later), !shared, "{earlier:?} {later:?}");
            }
        }
    }

    #[test]
    fn each_byte_of_a_destination_has_one_queue() {
        for count in [2, 3, 16] {
            for address in [0, 1, STRIPE - 1, STRIPE, 5 * STRIPE + 7, u64::MAX] {
                let (queue, len) = queue_of(address, count);
                assert!(queue < count && len > 0 && len <= STRIPE);
                let last = address.saturating_add(len - 1);
                assert_eq!(queue_of(last, count).0, queue);
                assert_ne!(queue_of(last.saturating_add(1), count).0 == queue, last < u64::MAX);
            }
        }
    }
}
