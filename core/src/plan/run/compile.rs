//! What a rank compiles for a plan, and how much scratch it needs.

use std::collections::{HashMap, HashSet};

use super::agreement::{Agreed, Offer};
use super::arena::{Uses, exchange_packets, neighbours};
use super::config::ExecutorConfig;
use super::ir::{Plan, Protocol};
use super::kernel::{ANY, Kernel, Kernels, Unloaded, Variant};
use super::lane::{Lane, Step};
use super::load::Wanted;
use super::lower::{Address, Averages, Control, Part, Team, Ways, copies, lower};
use super::ports::transport;
use super::sizes::Chunks;
use super::verdict::checked;
use crate::comm::{Communicator, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, Function};

const PREPARE: &str = "Executor::prepare";

/// The most blocks of these kernels, and how many of each the device runs at once: of the one with the largest blocks. Beside a
/// kernel, each block that a copy engine runs has one block that waits.
pub(super) fn demand(compiled: &Compiled) -> Result<(u32, u32)> {
    let mut demand = (0, u32::MAX);
    let lanes = compiled.lanes.iter().flat_map(Lane::kernels);
    let kernels = compiled.kernels.values().chain(compiled.multicast.values()).flatten().chain(lanes);
    for (function, config) in kernels.flat_map(Kernel::launches) {
        let capacity = function.max_resident_blocks(config.block[0], config.shared_bytes)?;
        demand = (demand.0.max(config.grid[0]), demand.1.min(capacity));
    }
    let grids = compiled.kernels.values().any(Option::is_some);
    let waiting = u32::try_from(compiled.lanes.len()).unwrap_or(u32::MAX);
    demand.0 = if grids { demand.0.saturating_add(waiting) } else { waiting };
    Ok(demand)
}

/// This rank's kernels.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) control: Control,
    pub(super) kernels: Kernels,
    /// Those that access switches by multicast addresses, for variants that have any.
    pub(super) multicast: Kernels,
    /// What copy engines do, for all variants.
    pub(super) lanes: Vec<Lane>,
}

/// The same before the kernels are loaded.
#[derive(Debug)]
pub(super) struct Uncompiled {
    control: Control,
    kernels: Vec<(Variant, Option<Unloaded>)>,
    multicast: Vec<(Variant, Unloaded)>,
    lanes: Vec<Vec<Step<Unloaded>>>,
}

impl Uncompiled {
    /// What there is to compile, in the order of [`loaded`](Self::loaded).
    pub(super) fn kernels(&self) -> impl Iterator<Item = Wanted<'_>> {
        let own = self.kernels.iter().filter_map(|(_, kernel)| kernel.as_ref());
        let multicast = self.multicast.iter().map(|(_, kernel)| kernel);
        let lanes = self.lanes.iter().flatten().filter_map(Step::kernel);
        own.chain(multicast).chain(lanes).flat_map(Unloaded::kernels)
    }

    /// With the next functions of `functions`.
    pub(super) fn loaded(
        self,
        context: &Context,
        functions: &mut impl Iterator<Item = Function>,
    ) -> Result<Compiled> {
        let (mut kernels, mut multicast, mut lanes) = (HashMap::new(), HashMap::new(), Vec::new());
        for (variant, kernel) in self.kernels {
            kernels.insert(variant, kernel.map(|kernel| kernel.loaded(functions)).transpose()?);
        }
        for (variant, kernel) in self.multicast {
            multicast.insert(variant, Some(kernel.loaded(functions)?));
        }
        let threads = kernels.values().any(Option::is_some);
        for steps in self.lanes {
            let steps = steps.into_iter().map(|step| step.loaded(functions)).collect::<Result<_>>()?;
            lanes.push(Lane::new(context, steps, threads || !lanes.is_empty())?);
        }
        Ok(Compiled { control: self.control, kernels, multicast, lanes })
    }
}

/// What this rank has to compile for a plan that it can run, and the layout of its control area. There are kernels with multicast
/// addresses only for the plan's `teams`.
pub(super) fn describe(
    comm: &Communicator,
    plan: &Plan,
    config: &ExecutorConfig,
    offer: &Offer,
    teams: &[Team],
) -> Result<Uncompiled> {
    let rank = comm.rank();
    if plan.ranks.len() != comm.size() as usize {
        let message =
            format!("the plan is one of {} ranks, the communicator has {}", plan.ranks.len(), comm.size());
        return Err(Error::usage(PREPARE, message));
    }
    checked(plan, config, offer, comm.config().cache.as_deref())?;
    for peer in neighbours(rank, plan) {
        if !comm.topology().peer(peer).is_some_and(|peer| peer.is_reachable()) {
            let message = format!(
                "rank {rank} cannot load from and store to the memory of rank {peer}, as memory channels and switches need; to a \
                 rank of another host, put data through a port channel"
            );
            return Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer));
        }
    }
    lines_stay_whole(comm, plan)?;
    packets_stay_whole(comm, plan, config)?;
    ports_reach(comm, plan, config)?;
    kernels(plan, rank, config, teams)
}

/// The kernels of `rank` for a plan of right structure.
pub(super) fn kernels(plan: &Plan, rank: u32, config: &ExecutorConfig, teams: &[Team]) -> Result<Uncompiled> {
    let own = plan.reductions().next();
    if own.is_some() && config.variants.is_empty() {
        let message =
            "the plan reduces; name its element types and reductions with ExecutorConfig::with_variants";
        return Err(Error::usage(PREPARE, message));
    }
    let mut wanted: Vec<Variant> = match own {
        None => vec![ANY],
        Some(_) => config.variants.iter().map(|&(element, reduction)| (element, reduction.or(own))).collect(),
    };
    let mut seen = HashSet::new();
    wanted.retain(|variant| seen.insert(*variant));
    let mine = &plan.ranks[rank as usize];
    let control = Control::of(plan, mine)?;
    let averages = Averages::of(plan);
    let (mut kernels, mut multicast) = (Vec::new(), Vec::new());
    let lowered = |(element, reduction): Variant, teams| {
        let ways = Ways { records: config.records(), teams };
        lower(plan, rank, element, reduction, &averages, ways)
    };
    let unloaded = |lowered| Unloaded::new(lowered, mine);
    for variant in wanted {
        kernels.push((variant, lowered(variant, &[])?.map(unloaded)));
        let by_multicast = if teams.is_empty() { None } else { lowered(variant, teams)? };
        let differs = |address: &Address| matches!(address, Address::Multicast(..));
        let by_multicast = by_multicast.filter(|lowered| lowered.addresses.iter().any(differs));
        multicast.extend(by_multicast.map(|lowered| (variant, unloaded(lowered))));
    }
    let steps = |parts: Vec<Part>| parts.into_iter().map(|part| Step::new(part, mine)).collect();
    let lanes = copies(plan, rank, &averages)?.into_iter().map(steps).collect();
    Ok(Uncompiled { control, kernels, multicast, lanes })
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

/// An error if a NIC would bring packets: it may write a flag before its data, which is registered for relaxed ordering.
fn packets_stay_whole(comm: &Communicator, plan: &Plan, config: &ExecutorConfig) -> Result<()> {
    let by_nic = |peer: &u32| matches!(transport(comm, *peer, config.port_transport), Transport::Ib(_));
    match exchange_packets(comm.rank(), plan).find(by_nic) {
        Some(peer) => {
            let message = format!(
                "the plan puts packets through a port channel between rank {} and rank {peer}, and a NIC may write a packet's \
                 flag before its data; choose another transport with ExecutorConfig::with_port_transport, or put plain data",
                comm.rank()
            );
            Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer))
        }
        None => Ok(()),
    }
}

/// An error if port channels are to go over CudaIpc to a rank whose memory this one does not reach.
fn ports_reach(comm: &Communicator, plan: &Plan, config: &ExecutorConfig) -> Result<()> {
    if config.port_transport != Some(Transport::CudaIpc) {
        return Ok(());
    }
    let reached = |peer: &u32| comm.topology().peer(*peer).is_some_and(|peer| peer.is_reachable());
    match plan.ranks[comm.rank() as usize].port_channels.iter().find(|&peer| !reached(peer)) {
        None => Ok(()),
        Some(&peer) => {
            let message = format!(
                "port channels over CudaIpc need memory of rank {peer} that rank {} reaches, and it is out of reach; choose Ethernet or a NIC \
                 with with_port_transport, or none",
                comm.rank()
            );
            Err(Error::new(ErrorKind::Unsupported, PREPARE, message).with_peer(peer))
        }
    }
}

/// The part of what is left that a plan takes which names no size.
const UNSIZED: u64 = 16;

/// Of the scratch that errors name, so many bytes for each rank: plans of a `Collective` are made for more than the least, if there is more.
const MODEST: u64 = 4096;

/// Too little scratch is left for a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shortage {
    /// Bytes of the longest message.
    wanted: u64,
    /// Bytes of scratch that it takes.
    needed: u128,
    /// Bytes that a rank has left.
    left: u64,
    /// It names no size, and gets by with less.
    any_size: bool,
}

impl Shortage {
    /// Bytes without which this plan does not get by.
    pub(super) fn missing(self) -> u64 {
        let missing = self.needed.saturating_sub(u128::from(self.left));
        if self.any_size { 1 } else { u64::try_from(missing).unwrap_or(u64::MAX) }
    }

    /// The error of a call, all of whose plans get by with `more` bytes more, if any number of bytes helps.
    #[cold]
    pub(super) fn error(self, agreed: Agreed, more: Option<u64>, ranks: u32) -> Error {
        let Self { wanted, needed, left, any_size } = self;
        let more = more.map_or(needed.saturating_sub(u128::from(left)), u128::from);
        let what = if any_size {
            "a plan that names no size takes a part of the scratch, too small a one here".to_owned()
        } else {
            format!("messages of {wanted} bytes need {needed} bytes of scratch")
        };
        let all = u128::from(agreed.scratch_bytes) + more;
        let all = all.max(u128::from(MODEST * u64::from(ranks))) + u128::from(agreed.taken_bytes);
        let taken = agreed.taken_bytes > 0 || left < agreed.scratch_bytes;
        Error::usage(
            PREPARE,
            format!(
                "{what}, and the least that a rank has left is {left}; \
                 set AQUEDUCT_SCRATCH_BYTES to {all} or more (or CommunicatorConfig::with_scratch_bytes), or prepare for \
                 shorter messages (ExecutorConfig::with_max_bytes, or with_packet_bytes, with_line_bytes and with_staging_bytes of a \
                 CollectiveConfig){}",
                if taken { ", or drop plans that are done with" } else { "" }
            ),
        )
    }
}

/// The distance of chunks of scratch, and the longest message, with so many bytes of scratch `left`.
pub(super) fn scratch(
    plan: &Plan,
    chunks: Chunks,
    config: &ExecutorConfig,
    left: u64,
) -> std::result::Result<(u64, u64), Shortage> {
    let halves = if plan.settings.double_scratch { 2 } else { 1 };
    let most = plan.ranks.iter().map(|rank| u64::from(rank.scratch_chunks)).max().unwrap_or(0);
    let (all, uses) = (most * halves, Uses::of(plan));
    let wanted = config.max_bytes.unwrap_or(plan.settings.max_bytes);
    if all == 0 || !uses.any() {
        return Ok((128, wanted));
    }
    let distance = chunks.scratch(wanted);
    let needed = u128::from(uses.chunk(plan, distance).unwrap_or(u64::MAX)) * u128::from(all);
    if needed <= u128::from(left) {
        return Ok((distance, wanted));
    }
    // A plan that names no size leaves the most of it to others.
    let fits = |bytes: u64| Some(uses.distance(plan, bytes / all)).filter(|&distance| distance > 0);
    let fits = fits(left / UNSIZED).or_else(|| fits(left)).unwrap_or(0);
    if config.max_bytes.is_some() || fits == 0 {
        return Err(Shortage { wanted, needed, left, any_size: config.max_bytes.is_none() });
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
                let with = |left| scratch(&plan, Chunks::of(&plan), &config, left);
                let needed = u64::try_from(with(1).unwrap_err().needed).unwrap();
                assert_eq!(with(needed).unwrap().1, bytes, "{protocol:?}");
                assert!(with(needed - 1).is_err(), "{protocol:?}");
            }
            // Without a size the largest message takes its part of what there is, and no more.
            let config = ExecutorConfig::default();
            for scratch_bytes in [10_000, 100_000, 1 << 26] {
                let (distance, _) =
                    scratch(&plan, Chunks::of(&plan), &config, UNSIZED * scratch_bytes).unwrap();
                let chunk = Uses::of(&plan).chunk(&plan, distance).unwrap();
                assert!(
                    4 * chunk <= scratch_bytes && 5 * chunk > scratch_bytes - 8192,
                    "{protocol:?} {distance}"
                );
            }
        }
    }
}
