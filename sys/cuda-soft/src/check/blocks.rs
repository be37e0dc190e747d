//! The part of a clock that says how far the threads of some blocks had come.

use std::sync::Arc;

use super::shared::{Shared, includes, join};
use super::stamp::{LANES, Stamp, Tick};

/// Neighbouring blocks of a work, by their number in the group. A grid that fills a large device has a few thousand blocks,
/// thus about as many groups as blocks in a group, whose sum is what copying a clock costs.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks(pub(super) [Option<Arc<Block>>; GROUP as usize]);

const GROUP: u32 = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// All threads are known up to here.
    all: Tick,
    /// No thread is known further than this.
    most: Tick,
    /// The threads of some warps are known further. Sorted.
    warps: Vec<(u16, [Tick; LANES])>,
}

impl Blocks {
    /// The group of a block, and its number in it.
    pub(super) fn place(block: u32) -> (u32, usize) {
        (block / GROUP, (block % GROUP) as usize)
    }
}

impl Shared for Blocks {
    fn includes(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|pair| match pair {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(own), Some(other)) => includes(own, other),
        })
    }

    fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            match (own, other) {
                (_, None) => {}
                (own @ None, Some(other)) => *own = Some(Arc::clone(other)),
                (Some(own), Some(other)) => join(own, other),
            }
        }
    }
}

impl Block {
    /// The lanes of `stamp`, which is of this block, that are not known so far.
    pub(super) fn unknown(&self, stamp: &Stamp) -> u32 {
        if stamp.tick <= self.all {
            return 0;
        }
        let Some(ticks) = self.warp(stamp.warp) else { return stamp.lanes };
        let known =
            (0..LANES).filter(|lane| stamp.tick <= ticks[*lane]).fold(0, |mask, lane| mask | 1 << lane);
        stamp.lanes & !known
    }

    pub(super) fn reach_all(&mut self, tick: Tick) {
        self.all = self.all.max(tick);
        self.most = self.most.max(tick);
        self.forget_known();
    }

    pub(super) fn reach(&mut self, warp: u16, lane: usize, tick: Tick) {
        self.most = self.most.max(tick);
        let ticks = self.of_warp(warp);
        ticks[lane] = ticks[lane].max(tick);
    }

    fn warp(&self, warp: u16) -> Option<&[Tick; LANES]> {
        let at = self.warps.binary_search_by_key(&warp, |(known, _)| *known).ok()?;
        Some(&self.warps[at].1)
    }

    fn of_warp(&mut self, warp: u16) -> &mut [Tick; LANES] {
        let at = self.warps.binary_search_by_key(&warp, |(known, _)| *known).unwrap_or_else(|at| {
            self.warps.insert(at, (warp, [0; LANES]));
            at
        });
        &mut self.warps[at].1
    }

    /// Forgets the warps of which no more is known than of all.
    fn forget_known(&mut self) {
        let all = self.all;
        self.warps.retain(|(_, ticks)| ticks.iter().any(|known| *known > all));
    }
}

impl Shared for Block {
    fn includes(&self, other: &Self) -> bool {
        if self.all >= other.most || self.most < other.most {
            return self.all >= other.most;
        }
        const UNKNOWN: &[Tick; LANES] = &[0; LANES];
        let warp_includes = |(warp, ticks): &(u16, [Tick; LANES])| {
            let own = self.warp(*warp).unwrap_or(UNKNOWN);
            // Without a way out in the middle the compiler compares all lanes at once.
            own.iter().zip(ticks).fold(true, |all, (own, tick)| all & (*own.max(&self.all) >= *tick))
        };
        self.all >= other.all && other.warps.iter().all(warp_includes)
    }

    fn add(&mut self, other: &Self) {
        self.all = self.all.max(other.all);
        self.most = self.most.max(other.most);
        for (warp, ticks) in &other.warps {
            for (own, tick) in self.of_warp(*warp).iter_mut().zip(ticks) {
                *own = (*own).max(*tick);
            }
        }
        self.forget_known();
    }
}
