//! Where chunks lie in a rank's memory, and which part of its range an operation handles.

use super::collective::Kind;
use super::ir::{Buffer, Loop, Move, Plan, Share};

/// A rank's memory in chunks: input and output, which may be shared, then the halves of scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    input: u64,
    output: u64,
    scratch: u64,
    scratch_chunks: u64,
    /// All chunks.
    pub(super) chunks: u64,
}

impl Layout {
    pub(super) fn of(plan: &Plan, rank: u32) -> Self {
        let rank_plan = &plan.ranks[rank as usize];
        let (inputs, outputs) = (u64::from(rank_plan.input_chunks), u64::from(rank_plan.output_chunks));
        // In place, the input of a gathering collective is part of the output, and the output of a scattering one part of the input.
        let (input, output) = match (&plan.collective.kind, plan.collective.in_place) {
            (_, false) => (0, inputs),
            (Kind::AllGather | Kind::Gather { .. }, true) => (u64::from(rank) * inputs, 0),
            (Kind::ReduceScatter | Kind::Scatter { .. }, true) => (0, u64::from(rank) * outputs),
            (_, true) => (0, 0),
        };
        let scratch = (input + inputs).max(output + outputs);
        let scratch_chunks = u64::from(rank_plan.scratch_chunks);
        let halves = if plan.settings.double_scratch { 2 } else { 1 };
        Self { input, output, scratch, scratch_chunks, chunks: scratch + halves * scratch_chunks }
    }

    /// Place of a chunk, in the call of that number.
    pub(super) fn chunk(&self, buffer: Buffer, chunk: u32, call: u32) -> u64 {
        let chunk = u64::from(chunk);
        match buffer {
            Buffer::Input => self.input + chunk,
            Buffer::Output => self.output + chunk,
            Buffer::Scratch if self.chunks > self.scratch + self.scratch_chunks => {
                self.scratch + u64::from(call % 2) * self.scratch_chunks + chunk
            }
            Buffer::Scratch => self.scratch + chunk,
        }
    }

    /// First chunk of scratch.
    pub(super) fn scratch(&self) -> u64 {
        self.scratch
    }
}

/// The iteration of a loop that an operation runs in, with the unit in the caller's measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) iteration: u64,
    pub(super) unit: u64,
}

/// The part of a range of `total` that an operation handles: its loop's slice, and of this its block's share.
///
/// A share ends at the same fraction of the range whatever the number of members, rounded down to a `granule`: so shares one of two
/// and two and three of four are the same part.
pub(super) fn part(total: u64, granule: u64, turn: Option<Turn>, share: Option<Share>) -> (u64, u64) {
    let (start, end) = turn.map_or((0, total), |turn| {
        let start = turn.iteration.saturating_mul(turn.unit).min(total);
        (start, start.saturating_add(turn.unit).min(total))
    });
    let Some(Share { member, of }) = share else { return (start, end) };
    let granules = (end - start).div_ceil(granule);
    let cut = |member: u64| (start + member * granules / u64::from(of) * granule).min(end);
    (cut(u64::from(member)), cut(u64::from(member) + 1))
}

/// Iterations of a loop over its chunks.
pub(super) fn iterations(repeated: &Loop, chunk: u64, unit: u64) -> u64 {
    (u64::from(repeated.chunks) * chunk).div_ceil(unit)
}

/// All operands of a move.
pub(super) fn operands(moved: &Move) -> impl Iterator<Item = &super::ir::Operand> {
    moved.sources.iter().chain(&moved.targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_a_range_once() {
        for total in 0..40 {
            for granule in [1, 4] {
                for of in 1..6 {
                    let mut next = 0;
                    for member in 0..of {
                        let (start, end) = part(total, granule, None, Some(Share { member, of }));
                        assert_eq!(start, next, "{total} {granule} {of}");
                        assert!(start % granule == 0 || start == total);
                        next = end;
                    }
                    assert_eq!(next, total);
                }
            }
        }
    }

    /// Blocks may take a range in twos and then in fours: what the checks find in order must not depend on the size.
    #[test]
    fn equal_fractions_are_equal_parts() {
        for total in 0..40 {
            let cut = |member, of| part(total, 1, None, Some(Share { member, of })).0;
            for (member, of) in [(1, 2), (2, 3), (3, 4)] {
                for times in 2..5 {
                    assert_eq!(cut(member, of), cut(member * times, of * times), "{total}: {member} of {of}");
                }
            }
        }
    }

    #[test]
    fn turns_cover_a_range_once() {
        let repeated = Loop { unit: 3, chunks: 2, body: Vec::new() };
        let turns = iterations(&repeated, 5, 3);
        let parts: Vec<_> =
            (0..turns).map(|iteration| part(10, 1, Some(Turn { iteration, unit: 3 }), None)).collect();
        assert_eq!(parts, [(0, 3), (3, 6), (6, 9), (9, 10)]);
        assert_eq!(
            part(4, 1, Some(Turn { iteration: 2, unit: 3 }), None),
            (4, 4),
            "an operation of fewer chunks ends early"
        );
    }
}
