//! A rank's kernels for a plan, and how much scratch they need.

use std::collections::HashMap;

use aqueduct_ptx::plan::{self as ptx, Element};

use super::agreement::Agreed;
use super::arena::{Uses, neighbours};
use super::check;
use super::config::ExecutorConfig;
use super::ir::{Op, Plan, RankPlan, Reduction};
use super::lower::{Address, Control, Lowered, lower};
use super::sizes::{Chunks, refused};
use crate::channel::load_plan;
use crate::comm::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Function, LaunchConfig};

const PREPARE: &str = "Executor::prepare";

/// An element type, and a reduction if the plan reduces.
pub(super) type Variant = (Element, Option<Reduction>);

/// Threads of a block for short messages: on 2 H200, an all-reduce of 1 KiB by two blocks takes 3.2 us with 256 threads a block and
/// 3.7 us with 1024, which all have to be started and to meet.
const FEW_THREADS: u32 = 256;
/// Vectors of a block's largest operation up to which few threads are as fast: four packets for each.
const FEW_VECTORS: u64 = 2 * FEW_THREADS as u64;

/// A rank's kernels for one element type and reduction, and what their parameter consists of.
#[derive(Debug)]
pub(super) struct Kernel {
    /// With as many threads as the plan says.
    all: Launch,
    /// With [`FEW_THREADS`], if the plan has more.
    few: Option<Launch>,
    /// The most chunks that a block handles in one operation.
    widest: u32,
    pub(super) addresses: Vec<Address>,
    /// Words behind the addresses.
    pub(super) rows: Vec<u64>,
}

/// A function and the shape of its launch.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) function: Function,
    pub(super) config: LaunchConfig,
}

impl Kernel {
    /// The launch for a message of which a chunk has so many vectors.
    pub(super) fn launch(&self, vectors: u32) -> &Launch {
        let most = u64::from(vectors) * u64::from(self.widest);
        self.few.as_ref().filter(|_| most <= FEW_VECTORS).unwrap_or(&self.all)
    }
}

/// Stands for every variant of a plan that only moves data.
pub(super) const ANY: Variant = (Element::U8, None);

/// This rank's kernels, and the layout of its control area.
pub(super) fn compile(
    comm: &Communicator,
    plan: &Plan,
    config: &ExecutorConfig,
) -> Result<(Control, HashMap<Variant, Kernel>)> {
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
    for peer in neighbours(rank, &plan.ranks[rank as usize]) {
        if !comm.topology().peer(peer).is_some_and(|peer| peer.is_reachable()) {
            let message = format!(
                "rank {rank} cannot load from and store to the memory of rank {peer}, as the plan's memory channels do"
            );
            return Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer));
        }
    }
    let own = plan.reductions().next();
    let wanted: Vec<Variant> = match own {
        None => vec![ANY],
        Some(_) => config.variants.iter().map(|&(element, reduction)| (element, reduction.or(own))).collect(),
    };
    let control = Control::of(plan, &plan.ranks[rank as usize])?;
    let mut kernels = HashMap::new();
    for variant in wanted {
        let lowered = lower(plan, rank, variant.0, variant.1)?;
        kernels.insert(variant, kernel(comm, lowered, widest(&plan.ranks[rank as usize]))?);
    }
    Ok((control, kernels))
}

fn kernel(comm: &Communicator, lowered: Lowered, widest: u32) -> Result<Kernel> {
    let Lowered { mut kernel, addresses } = lowered;
    let all = launch(comm, &kernel)?;
    let rows = kernel.args_rows();
    let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair[1]) << 32;
    let rows = rows.chunks_exact(2).map(pair).collect();
    let few = (kernel.threads > FEW_THREADS).then(|| {
        kernel.threads = FEW_THREADS;
        launch(comm, &kernel)
    });
    Ok(Kernel { all, few: few.transpose()?, widest, addresses, rows })
}

fn launch(comm: &Communicator, kernel: &ptx::Kernel) -> Result<Launch> {
    let function = load_plan(comm.context(), kernel, comm.config().cache.as_deref())?;
    let blocks = u32::try_from(kernel.blocks.len()).unwrap_or(u32::MAX);
    let config = LaunchConfig::linear(blocks.max(1), kernel.threads);
    // Blocks wait for those of peers, which wait for others of this rank: all of them must fit the device at once. A cooperative
    // launch would see to it, too, but takes 0.2 to 0.8 us longer on H200. What else runs on the device ends by itself, and plans
    // are launched in one order on all ranks.
    function.validate(&if blocks > 1 { config.cooperative() } else { config })?;
    Ok(Launch { function, config })
}

/// The most chunks that one block handles in one operation.
fn widest(rank: &RankPlan) -> u32 {
    let moves = rank.all_ops().filter_map(|op| match op {
        Op::Move(moved) => Some(moved.count.div_ceil(moved.share.map_or(1, |share| share.of.max(1)))),
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
    let weight = most * halves * Uses::of(plan).weight();
    let wanted = config.max_bytes.unwrap_or(plan.settings.max_bytes);
    if weight == 0 {
        return Ok((128, wanted));
    }
    let fits = agreed.scratch_bytes / weight / 128 * 128;
    let distance = chunks.scratch(wanted);
    if distance <= fits {
        return Ok((distance, wanted));
    }
    if config.max_bytes.is_some() || fits == 0 {
        let needed = u128::from(distance) * u128::from(weight);
        return Err(Error::usage(
            PREPARE,
            format!(
                "messages of {wanted} bytes need {needed} bytes of scratch, and the least that a rank allows is {}; \
             set AQUEDUCT_SCRATCH_BYTES or a smaller ExecutorConfig::with_max_bytes",
                agreed.scratch_bytes
            ),
        ));
    }
    Ok((fits, chunks.largest(fits)))
}
