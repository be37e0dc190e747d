//! A rank's kernels for a plan, and how much scratch they need.

use std::collections::HashMap;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::{self as ptx, Element};

use super::agreement::Agreed;
use super::arena::{Uses, neighbours};
use super::check;
use super::config::ExecutorConfig;
use super::ir::{Move, Op, Plan, Protocol, RankPlan, Reduction, Settings};
use super::lower::{Address, Averages, Control, Lowered, Team, Ways, lower};
use super::sizes::{Chunks, VECTOR, divisor, refused};
use crate::channel::load_plan;
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Function, LaunchConfig};

const PREPARE: &str = "Executor::prepare";

/// An element type, and a reduction if the plan reduces.
pub(super) type Variant = (Element, Option<Reduction>);

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
    /// The most chunks that a block handles in one operation, or all blocks together where the grid grows.
    widest: u32,
    pub(super) addresses: Vec<Address>,
    /// Words behind the addresses.
    pub(super) rows: Vec<u64>,
}

/// A function and its largest launch.
#[derive(Debug)]
struct Launch {
    function: Function,
    config: LaunchConfig,
}

impl Kernel {
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
        let of_block =
            |threads: u32| if self.lines { u64::from(threads / 32) * LINE_UNITS } else { u64::from(threads) };
        let small = |few: &&Launch| {
            let most = if self.lines {
                u64::from(few.config.grid[0]) * of_block(few.config.block[0])
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

/// The most blocks of these kernels, and how many of each the device runs at once: of the one with the largest blocks.
pub(super) fn demand(compiled: &Compiled) -> Result<(u32, u32)> {
    let mut demand = (0, u32::MAX);
    let kernels = compiled.kernels.values().chain(compiled.multicast.values()).flatten();
    for Launch { function, config } in
        kernels.flat_map(|kernel| std::iter::once(&kernel.all).chain(&kernel.few))
    {
        let capacity = function.max_resident_blocks(config.block[0], config.shared_bytes)?;
        demand = (demand.0.max(config.grid[0]), demand.1.min(capacity));
    }
    Ok(demand)
}

/// Stands for every variant of a plan that only moves data.
pub(super) const ANY: Variant = (Element::U8, None);

/// This rank's kernels by variant: none for a rank without operations.
pub(super) type Kernels = HashMap<Variant, Option<Kernel>>;

/// This rank's kernels.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) control: Control,
    pub(super) kernels: Kernels,
    /// Those that access switches by multicast addresses, for variants that have any.
    pub(super) multicast: Kernels,
}

/// This rank's kernels, and the layout of its control area. Those with multicast addresses are made only for the plan's `teams`.
pub(super) fn compile(
    comm: &Communicator,
    plan: &Plan,
    config: &ExecutorConfig,
    teams: &[Team],
) -> Result<Compiled> {
    if plan.ranks.len() != comm.size() as usize {
        let message =
            format!("the plan is one of {} ranks, the communicator has {}", plan.ranks.len(), comm.size());
        return Err(Error::usage(PREPARE, message));
    }
    let findings = if config.unchecked { check::structure(plan) } else { check::check(plan) };
    if let Some(finding) = findings.first() {
        return Err(refused(finding.to_string()));
    }
    let rank = comm.rank();
    for peer in neighbours(rank, plan) {
        if !comm.topology().peer(peer).is_some_and(|peer| peer.is_reachable()) {
            let message = format!(
                "rank {rank} cannot load from and store to the memory of rank {peer}, as memory channels, switches, and packets \
                 through port channels need; to a rank of another host, put plain data through a port channel"
            );
            return Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer));
        }
    }
    lines_stay_whole(comm, plan)?;
    let own = plan.reductions().next();
    if own.is_some() && config.variants.is_empty() {
        let message =
            "the plan reduces; name its element types and reductions with ExecutorConfig::with_variants";
        return Err(Error::usage(PREPARE, message));
    }
    let wanted: Vec<Variant> = match own {
        None => vec![ANY],
        Some(_) => config.variants.iter().map(|&(element, reduction)| (element, reduction.or(own))).collect(),
    };
    let control = Control::of(plan, &plan.ranks[rank as usize])?;
    let averages = Averages::of(plan);
    let (mut kernels, mut multicast) = (HashMap::new(), HashMap::new());
    let lowered = |(element, reduction): Variant, teams| {
        let ways = Ways { records: config.records(), teams };
        lower(plan, rank, element, reduction, &averages, ways)
    };
    for variant in wanted {
        let own = |lowered| kernel(comm, lowered, &plan.ranks[rank as usize]);
        kernels.insert(variant, lowered(variant, &[])?.map(own).transpose()?);
        let by_multicast = if teams.is_empty() { None } else { lowered(variant, teams)? };
        let differs = |address: &Address| matches!(address, Address::Multicast(..));
        if let Some(by_multicast) = by_multicast.filter(|lowered| lowered.addresses.iter().any(differs)) {
            multicast.insert(variant, Some(own(by_multicast)?));
        }
    }
    Ok(Compiled { control, kernels, multicast })
}

/// An error if the plan has LL128 packets, and some path of this rank's may divide their lines.
fn lines_stay_whole(comm: &Communicator, plan: &Plan) -> Result<()> {
    let rank = comm.rank();
    let whole = |&peer: &u32| comm.topology().peer(peer).is_some_and(|peer| peer.is_nvlink());
    match neighbours(rank, plan).into_iter().find(|peer| !whole(peer)) {
        Some(peer) if plan.settings.protocol == Protocol::Ll128 && Uses::of(plan).any_packets() => {
            let message = format!(
                "the plan's LL128 packets need NVLink, and it does not join rank {rank} and rank {peer} as far as rank {rank} \
                 sees; give the plan protocol LL"
            );
            Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer))
        }
        _ => Ok(()),
    }
}

fn kernel(comm: &Communicator, lowered: Lowered, plan: &RankPlan) -> Result<Kernel> {
    let Lowered { mut kernel, addresses } = lowered;
    let any_grid = kernel.runs_with_any_grid();
    let lines = kernel.packets == ptx::PacketForm::Ll128;
    let all = launch(comm, &kernel)?;
    let rows = kernel.args_rows();
    let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair[1]) << 32;
    let rows = rows.chunks_exact(2).map(pair).collect();
    let few_threads = if any_grid { SMALL_THREADS } else { FEW_THREADS };
    let few = (kernel.threads > few_threads).then(|| {
        kernel.threads = few_threads;
        launch(comm, &kernel)
    });
    Ok(Kernel {
        all,
        few: few.transpose()?,
        any_grid,
        lines,
        widest: widest(plan, any_grid),
        addresses,
        rows,
    })
}

fn launch(comm: &Communicator, kernel: &ptx::Kernel) -> Result<Launch> {
    let function = load_plan(comm.context(), kernel, comm.config().cache.as_deref())?;
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
    let moves = rank.all_ops().filter_map(|op| match op {
        Op::Move(moved) => Some(moved.count.div_ceil(blocks(moved))),
        _ => None,
    });
    moves.max().unwrap_or(0)
}

/// The distance of chunks of scratch, and the longest message.
pub(super) fn scratch(
    plan: &Plan,
    chunks: Chunks,
    config: &ExecutorConfig,
    agreed: Agreed,
) -> Result<(u64, u64)> {
    let halves = if plan.settings.double_scratch { 2 } else { 1 };
    let most = plan.ranks.iter().map(|rank| u64::from(rank.scratch_chunks)).max().unwrap_or(0);
    let (all, uses) = (most * halves, Uses::of(plan));
    let wanted = config.max_bytes.unwrap_or(plan.settings.max_bytes);
    if all == 0 || !uses.any() {
        return Ok((128, wanted));
    }
    let distance = chunks.scratch(wanted);
    let needed = u128::from(uses.chunk(plan, distance).unwrap_or(u64::MAX)) * u128::from(all);
    if needed <= u128::from(agreed.scratch_bytes) {
        return Ok((distance, wanted));
    }
    let fits = uses.distance(plan, agreed.scratch_bytes / all);
    if config.max_bytes.is_some() || fits == 0 {
        return Err(Error::usage(
            PREPARE,
            format!(
                "messages of {wanted} bytes need {needed} bytes of scratch, and the least that a rank allows is {}; \
                 set AQUEDUCT_SCRATCH_BYTES to {needed} or more, or a smaller ExecutorConfig::with_max_bytes",
                agreed.scratch_bytes
            ),
        ));
    }
    Ok((fits, chunks.largest(fits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples;

    /// The error of too little scratch names an amount: it is enough, and one byte less is not.
    #[test]
    fn the_scratch_that_an_error_names_is_enough() {
        for protocol in [Protocol::Ll, Protocol::Ll128] {
            let mut plan = samples::one_shot(2, true);
            plan.settings.protocol = protocol;
            for bytes in [1 << 20, 960, 12_345] {
                let config = ExecutorConfig::default().with_max_bytes(bytes);
                let with = |scratch_bytes| {
                    scratch(&plan, Chunks::of(&plan), &config, Agreed { scratch_bytes, multicast: None })
                };
                let error = with(1).unwrap_err().to_string();
                let named = error.split("need ").nth(1).and_then(|rest| rest.split(' ').next());
                let needed: u64 =
                    named.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{error}"));
                assert_eq!(with(needed).unwrap().1, bytes, "{protocol:?}");
                assert!(with(needed - 1).is_err(), "{protocol:?}");
            }
            // Without a size the largest message takes what there is, and no more.
            let config = ExecutorConfig::default();
            for scratch_bytes in [10_000, 100_000, 1 << 26] {
                let (distance, _) =
                    scratch(&plan, Chunks::of(&plan), &config, Agreed { scratch_bytes, multicast: None })
                        .unwrap();
                let chunk = Uses::of(&plan).chunk(&plan, distance).unwrap();
                assert!(
                    4 * chunk <= scratch_bytes && 5 * chunk > scratch_bytes - 8192,
                    "{protocol:?} {distance}"
                );
            }
        }
    }
}
