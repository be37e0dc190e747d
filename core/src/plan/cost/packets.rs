//! Packets that have been written, and who waits for others.

use std::collections::{BTreeMap, BTreeSet};

use super::links::Time;

/// Packets of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) call: u32,
    /// When the first and the last of them arrive.
    pub(super) first: Time,
    pub(super) last: Time,
}

/// One half of a rank's scratch.
///
/// Every call writes the same ranges, so that those of a call replace those of an earlier one.
#[derive(Debug, Default)]
pub(super) struct Packets {
    /// By first byte: the end, and what was written.
    written: BTreeMap<u64, (u64, Written)>,
    /// Bytes that blocks wait for.
    waiters: BTreeSet<(u64, u32)>,
}

impl Packets {
    /// When the packets of a range arrive, or the first byte that no operation of this call has written.
    pub(super) fn arrival(&self, range: (u64, u64), call: u32) -> Result<(Time, Time), u64> {
        let (mut at, end) = range;
        let mut times = (Time::MAX, 0);
        while at < end {
            let before = self.written.range(..=at).next_back();
            let Some((_, (until, written))) =
                before.filter(|(_, (until, written))| *until > at && written.call == call)
            else {
                return Err(at);
            };
            times = (times.0.min(written.first), times.1.max(written.last));
            at = *until;
        }
        Ok(times)
    }

    /// Notes a block that waits for a byte.
    pub(super) fn wait(&mut self, byte: u64, block: u32) {
        self.waiters.insert((byte, block));
    }

    /// Notes packets; returns the blocks that waited for one of them.
    pub(super) fn put(&mut self, (start, end): (u64, u64), written: Written) -> Vec<u32> {
        self.written.insert(start, (end, written));
        let found: Vec<(u64, u32)> = self.waiters.range((start, 0)..(end, 0)).copied().collect();
        found.iter().for_each(|waiter| _ = self.waiters.remove(waiter));
        found.into_iter().map(|(_, block)| block).collect()
    }
}
