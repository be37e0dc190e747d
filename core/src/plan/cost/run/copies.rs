//! Blocks that copy engines run: copies, and kernels that signal and wait between them.

use super::super::ir::{Buffer, Move, Operand, Place};
use super::links::{Time, transfer};
use super::state::Run;

impl Run<'_, '_> {
    /// Begins a kernel of signals and waits, unless the block's stream is at one.
    pub(super) fn begin_kernel(&mut self, index: u32) {
        let (now, takes) = (self.now(index), self.costs.copy);
        let state = &mut self.blocks[index as usize];
        if !state.in_kernel {
            (state.control, state.in_kernel) = (now + takes, true);
        }
    }

    /// Copies one source to each target, one behind the other.
    pub(super) fn copied(&mut self, index: u32, moved: &Move) -> Time {
        let rank = self.blocks[index as usize].rank;
        let plan = self.plan;
        // The checks of structure leave no switch here.
        let place = |operand: &Operand| match operand.place {
            Place::Local(buffer) => (rank, buffer),
            Place::Remote { rank, buffer } => (rank, buffer),
            Place::Switch(_) => (rank, Buffer::Scratch),
        };
        let exist = |operand: &Operand| {
            let (whose, buffer) = place(operand);
            self.sizes.exist(buffer, plan.ranks[whose as usize].chunks(buffer), operand.first)
        };
        let (start, end) = self.sizes.range(moved.count, None, None);
        let most = moved.sources.iter().chain(&moved.targets).map(exist).min().unwrap_or(0);
        let bytes = end.min(most).saturating_sub(start);
        let mut until = self.now(index);
        for (source, target) in
            moved.sources.iter().flat_map(|source| moved.targets.iter().map(move |target| (source, target)))
        {
            let (begin, giver, taker) = (until + self.costs.copy, place(source).0, place(target).0);
            until = if giver == taker {
                self.links.local(giver, begin, 2 * bytes)
            } else {
                let linked = self.links.link(giver, taker, begin, bytes, giver != rank);
                linked.max(begin + transfer(bytes, self.machine.port_gbps))
            };
        }
        let state = &mut self.blocks[index as usize];
        (state.threads, state.control, state.in_kernel) = (until, until, false);
        until
    }
}
