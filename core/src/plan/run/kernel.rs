//! A rank's kernels for a variant of a plan, and the launch that a call takes.

use std::collections::HashMap;
use std::path::Path;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::{self as ptx, Element};

use super::ir::{Block, Move, Op, RankPlan, Reduction, Settings};
use super::lower::{Address, Lowered};
use super::sizes::{VECTOR, divisor};
use crate::channel::load_plan;
use crate::error::Result;
use crate::gpu::{Context, Function, LaunchConfig};

/// An element type, and a reduction if the plan reduces.
pub(super) type Variant = (Element, Option<Reduction>);

/// Stands for every variant of a plan that only moves data.
pub(super) const ANY: Variant = (Element::U8, None);

/// This rank's kernels by variant: none for a rank without operations of threads.
pub(super) type Kernels = HashMap<Variant, Option<Kernel>>;

/// Threads of a block for short messages: on 2 H200, an all-reduce of 1 KiB by two blocks takes 3.2 us with 256 threads a block
/// and 3.7 us with 1024, which all have to be started and to meet.
const FEW_THREADS: u32 = 256;
/// Vectors of a block's largest operation up to which few threads are as fast: four packets for each.
const FEW_VECTORS: u64 = 2 * FEW_THREADS as u64;
/// The same where the grid grows with the message: small blocks spread over the multiprocessors.
const SMALL_THREADS: u32 = 128;
/// Units of 8 bytes, which are packets' data, up to which blocks are small.
const SMALL_UNITS: u64 = 4096;
/// The same where half of a block's threads send: it has twice as many.
const SMALL_UNITS_OF_HALVES: u64 = 8192;

/// Units of 8 bytes that a warp handles together as LL128 lines.
const LINE_UNITS: u64 = ptx::UNIT_DATA as u64 / 8;

/// A rank's kernels for one element type and reduction, and what their parameter consists of.
#[derive(Debug)]
pub(super) struct Kernel {
    /// With as many threads as the plan says.
    all: Launch,
    /// With fewer, if the plan has more.
    few: Option<Launch>,
    /// A call has no more blocks than its message needs.
    any_grid: bool,
    /// Packets are LL128 lines.
    lines: bool,
    /// Half of a block's threads send and the other half waits.
    halves: bool,
    /// The most chunks that a block handles in one operation, or all blocks together where the grid grows.
    widest: u32,
    pub(super) addresses: Vec<Address>,
    /// Words behind the addresses.
    pub(super) rows: Vec<u64>,
}

/// Where kernels are loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loader<'a> {
    pub(super) context: &'a Context,
    /// The folder of compiled kernels.
    pub(super) cache: Option<&'a Path>,
}

/// A function and its largest launch.
#[derive(Debug)]
struct Launch {
    function: Function,
    config: LaunchConfig,
}

impl Kernel {
    /// Loads the kernels of a rank.
    pub(super) fn load(loader: Loader<'_>, lowered: Lowered, plan: &RankPlan) -> Result<Self> {
        let Lowered { mut kernel, addresses } = lowered;
        let any_grid = kernel.runs_with_any_grid();
        let lines = kernel.packets == ptx::PacketForm::Ll128;
        let all = launch(loader, &kernel)?;
        let rows = kernel.args_rows();
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair[1]) << 32;
        let rows = rows.chunks_exact(2).map(pair).collect();
        let halves = kernel.has_halves();
        let few_threads = match (any_grid, halves) {
            (true, false) => SMALL_THREADS,
            (true, true) => 2 * SMALL_THREADS,
            (false, _) => FEW_THREADS,
        };
        let few = (kernel.threads > few_threads).then(|| {
            kernel.threads = few_threads;
            launch(loader, &kernel)
        });
        Ok(Self {
            all,
            few: few.transpose()?,
            any_grid,
            lines,
            halves,
            widest: widest(plan, any_grid),
            addresses,
            rows,
        })
    }

    /// Its functions and their largest launches.
    pub(super) fn launches(&self) -> impl Iterator<Item = (&Function, &LaunchConfig)> {
        std::iter::once(&self.all).chain(&self.few).map(|launch| (&launch.function, &launch.config))
    }

    /// The launch of a call, whose parameter it completes.
    pub(super) fn launch(&self, args: &mut PlanArgs) -> (&Function, LaunchConfig) {
        let most = u64::from(args.vectors) * u64::from(self.widest);
        if !self.any_grid {
            let Launch { function, config } =
                self.few.as_ref().filter(|_| most <= FEW_VECTORS).unwrap_or(&self.all);
            return (function, *config);
        }
        let units = 2 * most;
        // A warp handles a unit of lines where each of its threads handles a packet.
        let of_block = |threads: u32| {
            let threads = if self.halves { threads / 2 } else { threads };
            if self.lines { u64::from(threads / 32) * LINE_UNITS } else { u64::from(threads) }
        };
        let small = |few: &&Launch| {
            let most = if self.lines {
                u64::from(few.config.grid[0]) * of_block(few.config.block[0])
            } else if self.halves {
                SMALL_UNITS_OF_HALVES
            } else {
                SMALL_UNITS
            };
            units <= most
        };
        let Launch { function, config } = self.few.as_ref().filter(small).unwrap_or(&self.all);
        let blocks = units.div_ceil(of_block(config.block[0])).clamp(1, u64::from(config.grid[0]));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        (args.grid_magic, args.grid_shift) = divisor(blocks);
        (function, LaunchConfig::linear(blocks, config.block[0]))
    }
}

fn launch(loader: Loader<'_>, kernel: &ptx::Kernel) -> Result<Launch> {
    let function = load_plan(loader.context, kernel, loader.cache)?;
    let blocks = u32::try_from(kernel.blocks.len()).unwrap_or(u32::MAX);
    let config = LaunchConfig::linear(blocks.max(1), kernel.threads);
    // Blocks wait for those of peers, which wait for others of this rank: all of them must fit the device at once. A cooperative
    // launch would see to it, too, but takes 0.2 to 0.8 us longer on H200. What else runs on the device ends by itself, and
    // `Room` sees to other plans.
    function.validate(&if blocks > 1 { config.cooperative() } else { config })?;
    Ok(Launch { function, config })
}

/// Threads of the kernel that a call takes whose chunks are so many bytes apart.
pub(in crate::plan) fn threads(settings: &Settings, rank: &RankPlan, chunk: u64) -> u32 {
    let few = chunk.div_ceil(VECTOR).saturating_mul(u64::from(widest(rank, false))) <= FEW_VECTORS;
    if few { settings.threads_per_block.min(FEW_THREADS) } else { settings.threads_per_block }
}

/// The most chunks of one operation: those that one block handles, or all blocks `together`.
fn widest(rank: &RankPlan, together: bool) -> u32 {
    let blocks = |moved: &Move| if together { 1 } else { moved.share.map_or(1, |share| share.of.max(1)) };
    let ops = rank.blocks.iter().filter(|block| !block.copy_engine).flat_map(Block::all_ops);
    let moves = ops.filter_map(|op| match op {
        Op::Move(moved) => Some(moved.count.div_ceil(blocks(moved))),
        _ => None,
    });
    moves.max().unwrap_or(0)
}
