//! The sixteen barriers of a block (PTX ISA 9.7.13.1), counted per thread.
//!
//! A waiting thread stays at its barrier instruction. When the barrier completes, the thread is marked as passed; it
//! then executes the instruction again and takes the result.

use super::regs::lanes;
use crate::check::{self, Meeting};

/// Number of barriers per block.
pub(super) const BARRIERS: usize = 16;

/// The result of `bar.red`, the same for all participants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reduction {
    pub(super) count: u32,
    pub(super) all: bool,
    pub(super) any: bool,
}

/// All barriers of a block and the threads that wait at them. Each vector has one lane mask per warp.
#[derive(Debug)]
pub(super) struct Barriers {
    /// Threads that have not exited.
    live: Vec<u32>,
    /// Threads that wait at some barrier.
    waiting: Vec<u32>,
    /// Threads whose barrier has completed but that have not resumed yet.
    passed: Vec<u32>,
    slots: [Slot; BARRIERS],
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Threads that have arrived, per warp; empty until the first use.
    arrived: Vec<u32>,
    /// The arrived threads that wait.
    waiting: Vec<u32>,
    /// Number of threads to wait for; `None` for all threads of the block.
    target: Option<u32>,
    open: bool,
    sum: Reduction,
    result: Reduction,
    /// For the race detector: the threads that have arrived, and those of the last completed use.
    meeting: Meeting,
    met: Meeting,
}

impl Barriers {
    pub(super) fn new(live: Vec<u32>) -> Self {
        let none = vec![0; live.len()];
        let slots = std::array::from_fn(|_| Slot::default());
        Barriers { waiting: none.clone(), passed: none, live, slots }
    }

    /// The lanes of `warp` that wait at a barrier.
    pub(super) fn waiting(&self, warp: usize) -> u32 {
        self.waiting[warp]
    }

    /// Takes the lanes of `mask` whose barrier has completed, so that they can resume.
    pub(super) fn take_passed(&mut self, warp: usize, mask: u32) -> u32 {
        let taken = self.passed[warp] & mask;
        self.passed[warp] &= !taken;
        taken
    }

    /// The reduction of the last completed use of barrier `id`.
    pub(super) fn result(&self, id: usize) -> Reduction {
        self.slots[id].result
    }

    /// Threads that met in the last completed use of barrier `id`.
    pub(super) fn met(&self, id: usize) -> &Meeting {
        &self.slots[id].met
    }

    /// Notes for the race detector that the lanes of `mask` arrive at barrier `id`. Call it before
    /// [`arrive`](Self::arrive).
    pub(super) fn tell(&mut self, id: usize, warp: &mut check::Warp, mask: u32) {
        warp.arrive(mask, &mut self.slots[id].meeting);
    }

    /// Counts the lanes `mask` of `warp` as arrived at barrier `id`; with `wait` they wait there. `holds` has the lanes
    /// whose predicate is true.
    pub(super) fn arrive(
        &mut self,
        id: usize,
        warp: usize,
        mask: u32,
        target: Option<u32>,
        wait: bool,
        holds: u32,
    ) {
        let warps = self.live.len();
        let slot = &mut self.slots[id];
        slot.arrived.resize(warps, 0);
        slot.waiting.resize(warps, 0);
        if !slot.open {
            slot.open = true;
            slot.target = target;
            slot.sum = Reduction { count: 0, all: true, any: false };
        }
        slot.arrived[warp] |= mask;
        slot.sum.count += (holds & mask).count_ones();
        slot.sum.all &= holds & mask == mask;
        slot.sum.any |= holds & mask != 0;
        if wait {
            slot.waiting[warp] |= mask;
            self.waiting[warp] |= mask;
        }
        self.complete(id);
    }

    /// Removes exited threads, so that no barrier waits for them.
    pub(super) fn exit(&mut self, warp: usize, mask: u32) {
        self.live[warp] &= !mask;
        for id in 0..BARRIERS {
            if self.slots[id].open {
                self.complete(id);
            }
        }
    }

    fn complete(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        let full = match slot.target {
            None => self.live.iter().zip(&slot.arrived).all(|(live, arrived)| live & !arrived == 0),
            Some(threads) => {
                // Hardware counts warps, so a warp counts as 32 threads once all its live lanes have arrived.
                let credit = |(live, arrived): (&u32, &u32)| {
                    if *arrived != 0 && live & !arrived == 0 { 32 } else { arrived.count_ones() }
                };
                self.live.iter().zip(&slot.arrived).map(credit).sum::<u32>() >= threads
            }
        };
        if full {
            for warp in 0..self.live.len() {
                self.waiting[warp] &= !slot.waiting[warp];
                self.passed[warp] |= slot.waiting[warp];
                slot.arrived[warp] = 0;
                slot.waiting[warp] = 0;
            }
            slot.open = false;
            slot.result = slot.sum;
            slot.met = std::mem::take(&mut slot.meeting);
            if slot.target.is_none() {
                slot.met.is_whole();
            }
        }
    }

    /// Any thread that waits at a barrier, as (warp, lane).
    pub(super) fn any_waiting(&self) -> Option<(usize, usize)> {
        self.waiting.iter().enumerate().find_map(|(w, mask)| lanes(*mask).next().map(|l| (w, l)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_arrival_releases_all() {
        let mut b = Barriers::new(vec![!0, !0]);
        b.arrive(0, 0, !0, None, true, 0);
        assert_eq!(b.waiting(0), !0);
        b.arrive(0, 1, 0xffff, None, true, 0);
        assert_eq!((b.waiting(0), b.take_passed(0, !0)), (!0, 0));
        b.arrive(0, 1, 0xffff_0000, None, true, 0);
        assert_eq!((b.waiting(0), b.waiting(1)), (0, 0));
        assert_eq!((b.take_passed(0, !0), b.take_passed(0, !0)), (!0, 0));
    }

    #[test]
    fn a_count_needs_only_so_many_and_whole_warps_count_whole() {
        let mut b = Barriers::new(vec![!0, !0, 0xf]);
        b.arrive(3, 0, !0, Some(64), false, 0);
        assert_eq!(b.waiting(0), 0, "arrive does not wait");
        b.arrive(3, 2, 0xf, Some(64), true, 0);
        assert_eq!((b.waiting(2), b.take_passed(2, !0)), (0, 0xf));
    }

    #[test]
    fn threads_that_exit_are_not_waited_for() {
        let mut b = Barriers::new(vec![!0, !0]);
        b.arrive(0, 0, !0, None, true, 1);
        b.exit(1, !0);
        assert_eq!(b.waiting(0), 0);
        let r = b.result(0);
        assert_eq!((r.count, r.all, r.any), (1, false, true));
    }
}
