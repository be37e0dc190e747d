//! How many threads and blocks a call takes.

use aqueduct_ptx::plan::UNIT_DATA;

use super::ir::{Block, ChannelKind, Move, Op, Plan, Protocol, RankPlan};

/// Threads of a block for short messages: on 2 H200, an all-reduce of 1 KiB by two blocks takes 3.2 us with 256 threads a block
/// and 3.7 us with 1024, which all have to be started and to meet.
const FEW_THREADS: u32 = 256;
/// Vectors of a block's largest operation up to which few threads are as fast: four packets for each.
const FEW_VECTORS: u64 = 2 * FEW_THREADS as u64;
/// The same where the grid grows with the message: small blocks spread over the multiprocessors.
const SMALL_THREADS: u32 = 128;
/// Units of 8 bytes, which are packets' data, up to which blocks are small.
const SMALL_UNITS: u64 = 4096;

/// Units of 8 bytes that a warp handles together as LL128 lines.
const LINE_UNITS: u64 = UNIT_DATA as u64 / 8;

/// Properties of a kernel's steps on which its launches depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// A call has no more blocks than its message needs.
    pub(super) any_grid: bool,
    /// Packets are LL128 lines.
    pub(super) lines: bool,
}

/// The launches of a rank's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Grids {
    /// Blocks of the plan, and threads of each.
    blocks: u32,
    threads: u32,
    form: Form,
    /// The most chunks that a block handles in one operation, or all blocks together where the grid grows.
    widest: u32,
}

/// Blocks of a launch, and threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Grid {
    pub(in crate::plan) blocks: u32,
    pub(in crate::plan) threads: u32,
}

impl Grids {
    /// Those of the kernels that a plan becomes.
    pub(in crate::plan) fn of(plan: &Plan, rank: &RankPlan) -> Self {
        let blocks = u32::try_from(of_threads(rank).count()).unwrap_or(u32::MAX);
        Self::new(rank, [blocks, plan.settings.threads_per_block], Form::of(plan, rank))
    }

    /// Those of a kernel of so many blocks and threads.
    pub(super) fn new(rank: &RankPlan, [blocks, threads]: [u32; 2], form: Form) -> Self {
        Self { blocks, threads, form, widest: widest(rank, form.any_grid) }
    }

    /// A call has no more blocks than its message needs.
    pub(in crate::plan) fn any(&self) -> bool {
        self.form.any_grid
    }

    /// Threads of the kernel for short messages, if the plan's blocks have more.
    pub(super) fn few(&self) -> Option<u32> {
        let few = if self.form.any_grid { SMALL_THREADS } else { FEW_THREADS };
        (self.threads > few).then_some(few)
    }

    /// The launch of a call whose chunks have so many vectors.
    pub(in crate::plan) fn of_call(&self, vectors: u64) -> Grid {
        let most = vectors.saturating_mul(u64::from(self.widest));
        let all = Grid { blocks: self.blocks, threads: self.threads };
        let few = self.few().map(|threads| Grid { threads, ..all });
        if !self.any() {
            return few.filter(|_| most <= FEW_VECTORS).unwrap_or(all);
        }
        let lines = self.form.lines;
        let units = most.saturating_mul(2);
        // A warp handles a unit of lines where each of its threads handles a packet.
        let of_block =
            |threads: u32| if lines { u64::from(threads / 32) * LINE_UNITS } else { u64::from(threads) };
        let small = |few: &Grid| {
            units <= if lines { u64::from(few.blocks) * of_block(few.threads) } else { SMALL_UNITS }
        };
        let Grid { blocks, threads } = few.filter(small).unwrap_or(all);
        let needed = units.div_ceil(of_block(threads)).clamp(1, u64::from(blocks.max(1)));
        Grid { blocks: u32::try_from(needed).unwrap_or(u32::MAX), threads }
    }
}

impl Form {
    /// The form of the kernel that a rank's part of a plan becomes.
    fn of(plan: &Plan, rank: &RankPlan) -> Self {
        let lines = plan.settings.protocol == Protocol::Ll128;
        Self { any_grid: runs_with_any_grid(plan, rank), lines }
    }
}

/// The blocks that threads run.
fn of_threads(rank: &RankPlan) -> impl Iterator<Item = &Block> {
    rank.blocks.iter().filter(|block| !block.copy_engine)
}

/// Whether the kernel of a rank [runs with any grid](aqueduct_ptx::plan::Kernel::runs_with_any_grid), as the plan says without being
/// lowered.
fn runs_with_any_grid(plan: &Plan, rank: &RankPlan) -> bool {
    let moves = |block: &Block| -> Vec<Move> {
        let moves = block.ops.iter().filter_map(|operation| match &operation.op {
            Op::Move(moved) => Some(Move { share: None, ..Move::clone(moved) }),
            _ => None,
        });
        moves.collect()
    };
    let blocks: Vec<&Block> = of_threads(rank).collect();
    if blocks.len() < 2 || plan.settings.variable_chunks {
        return false;
    }
    // Plans of millions of operations give up at the first block.
    let shared = |(nth, block): (usize, &&Block)| {
        block.ops.iter().all(|operation| match &operation.op {
            Op::Sync => true,
            Op::Move(moved) => moved
                .share
                .is_some_and(|share| (share.member as usize, share.of as usize) == (nth, blocks.len())),
            Op::Signal { channel, .. } | Op::Wait { channel, .. } => {
                nth == 0 && channel.kind == ChannelKind::Memory
            }
            _ => false,
        })
    };
    if !blocks.iter().enumerate().all(shared) {
        return false;
    }
    let first = moves(blocks[0]);
    first.first().is_some_and(|one| first.iter().all(|moved| moved.count == one.count))
        && blocks.iter().all(|block| moves(block) == first)
}

/// The most chunks of one operation: those that one block handles, or all blocks `together`.
fn widest(rank: &RankPlan, together: bool) -> u32 {
    let blocks = |moved: &Move| if together { 1 } else { moved.share.map_or(1, |share| share.of.max(1)) };
    let moves = of_threads(rank).flat_map(Block::all_ops).filter_map(|op| match op {
        Op::Move(moved) => Some(moved.count.div_ceil(blocks(moved))),
        _ => None,
    });
    moves.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use aqueduct_ptx::plan::{Element, PacketForm};

    use super::super::super::{programs, random, samples};
    use super::super::lower::{Averages, Ways, lower};
    use super::*;

    /// Where the grid is fixed, blocks have few threads up to four packets for each.
    #[test]
    fn short_messages_take_few_threads_where_the_grid_is_fixed() {
        let form = Form { any_grid: false, lines: false };
        let grids = |threads| Grids { blocks: 2, threads, form, widest: 1 };
        assert_eq!([grids(257).few(), grids(256).few()], [Some(256), None]);
        for (vectors, threads) in [(1, 256), (512, 256), (513, 512)] {
            assert_eq!(grids(512).of_call(vectors), Grid { blocks: 2, threads });
        }
    }

    /// The form that a plan has is that of its kernels.
    #[test]
    fn plans_and_their_kernels_agree() {
        let mut plans = samples::all();
        for algorithm in programs::ALGORITHMS {
            for ranks in [2, 4] {
                plans.push(algorithm.program(ranks, &Default::default()).unwrap().compile().unwrap());
            }
        }
        plans.extend((0..150).map(random::program));
        let one_block = |plan: &&Plan| plan.ranks.iter().all(|rank| rank.blocks.len() == 1);
        let shared: Vec<Plan> =
            plans.iter().filter(one_block).map(|plan| samples::shared_by(3, plan.clone())).collect();
        for mut plan in shared {
            plans.push(plan.clone());
            // Other members than their numbers say.
            plan.ranks[0].blocks.reverse();
            plans.push(plan.clone());
            // Not the same moves.
            plan.ranks[0].blocks.reverse();
            plan.ranks[0].blocks[1].ops.pop();
            plans.push(plan);
        }
        let mut lines = plans.clone();
        lines.iter_mut().for_each(|plan| plan.settings.protocol = Protocol::Ll128);
        plans.extend(lines);
        let mut any = 0;
        for plan in &plans {
            for (number, rank) in (0..).zip(&plan.ranks) {
                let averages = Averages::of(plan);
                let lowered = lower(plan, number, Element::F32, None, &averages, Ways::default());
                let Ok(Some(lowered)) = lowered else { continue };
                let kernel = lowered.kernel;
                let form = Form {
                    any_grid: kernel.runs_with_any_grid(),
                    lines: kernel.packets == PacketForm::Ll128,
                };
                let said = Form::of(plan, rank);
                assert_eq!(said.any_grid, form.any_grid, "{}", plan.name);
                if form.any_grid {
                    assert_eq!(said, form, "{}", plan.name);
                }
                let blocks = u32::try_from(kernel.blocks.len()).unwrap();
                assert_eq!(Grids::of(plan, rank).blocks, blocks, "{}", plan.name);
                any += u32::from(form.any_grid);
            }
        }
        assert!(any > 20, "{any}");
    }
}
