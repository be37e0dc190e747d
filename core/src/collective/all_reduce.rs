//! All-reduce.

use std::collections::HashMap;
use std::sync::Arc;

use aqueduct_ptx::abi;
use aqueduct_ptx::collective::{self as shape, ElementType, HbLayout, ReduceOp};

use super::algorithm::{Algorithm, one_shot_limit};
use super::geometry::agreed_geometry;
use super::region::{PendingRegion, Region, RegionSpec};
use crate::channel::{Geometry, load_kernels};
use crate::comm::Communicator;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, DeviceSlice, Function, KeepAlive, LaunchConfig, Stream, arg};

/// Settings of [`AllReduce::prepare`]. Every rank must pass the same.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AllReduceConfig {
    /// The element types and reductions that will be used; all of them if empty. Each is a module to compile.
    pub(crate) variants: Vec<(ElementType, ReduceOp)>,
    /// Use this algorithm for every size it can serve, instead of choosing by size.
    pub(crate) algorithm: Option<Algorithm>,
}

impl AllReduceConfig {
    /// The same with these element types and reductions only.
    #[must_use]
    pub fn with_variants(mut self, variants: impl IntoIterator<Item = (ElementType, ReduceOp)>) -> Self {
        self.variants = variants.into_iter().collect();
        self
    }

    /// The same with one algorithm for every size it can serve.
    #[must_use]
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }
}

/// All-reduce over all ranks of a communicator: prepared once, then launched on streams.
///
/// Elements are combined in the order rank 0, 1, ... on every rank, so all ranks get the same bits. 16-bit types
/// accumulate in binary32 and round once. Every rank calls with the same count, type and reduction, in the same order;
/// all calls of one `AllReduce` belong on one stream, or on streams the caller orders, because they share scratch.
#[derive(Clone, Debug)]
pub struct AllReduce {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Keeps this rank in the group while a peer's kernels may wait for this rank's.
    comm: Communicator,
    one_shot_limit: usize,
    functions: HashMap<(ElementType, ReduceOp), Variant>,
    one_shot: Region,
    two_shot: Region,
    layout: HbLayout,
    fixed: Option<Algorithm>,
    /// The same on every rank.
    geometry: Geometry,
}

#[derive(Debug)]
struct Variant {
    one_shot: Function,
    two_shot: Function,
}

impl AllReduce {
    /// Allocates and exchanges scratch memory and loads the kernels. Collective: every rank calls it, with the same
    /// `config`, in the same order as other collective calls.
    ///
    /// # Errors
    /// `Unsupported` where not every rank can reach every other's memory; `InvalidUsage` where the scratch limit is
    /// too small; `Timeout`; a driver error.
    pub fn prepare(
        comm: &Communicator,
        config: AllReduceConfig,
        deadline: impl Into<Deadline>,
    ) -> Result<Self> {
        // First, so that ranks agree on tags even after a call that failed on some of them.
        let tags = [comm.next_internal_tag(), comm.next_internal_tag()];
        let ranks = comm.size();
        if let Some(far) = comm.topology().peers().iter().find(|peer| !peer.is_reachable()) {
            let message = format!(
                "rank {} cannot load from and store to the memory of rank {}; all-reduce needs peer access between all ranks",
                comm.rank(),
                far.rank
            );
            return Err(Error::new(ErrorKind::Unsupported, "AllReduce::prepare", message).with_peer(far.rank));
        }
        let geometry = agreed_geometry(comm);
        let functions = load_variants(comm, &config)?;
        let blocks = max_blocks(geometry);
        let limit = one_shot_limit(ranks, geometry.software);
        let (one_shot, two_shot, layout) = specs(ranks, blocks, limit, comm.config().scratch_bytes)?;
        let begun = PendingRegion::begin(comm, tags[0], one_shot)
            .and_then(|one_shot| Ok((one_shot, PendingRegion::begin(comm, tags[1], two_shot)?)));
        let (one_shot, two_shot) = begun.inspect_err(|_| comm.withdraw(&tags))?;
        comm.setup(deadline)?;
        let inner = Inner {
            comm: comm.clone(),
            one_shot_limit: limit,
            functions,
            one_shot: one_shot.finish(comm)?,
            two_shot: two_shot.finish(comm)?,
            layout,
            fixed: config.algorithm,
            geometry,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The algorithm that serves a call of `bytes`.
    pub fn algorithm(&self, bytes: usize) -> Algorithm {
        let limit = self.inner.one_shot_limit;
        match self.inner.fixed {
            Some(Algorithm::OneShotLl16) if bytes > limit => Algorithm::TwoShotHb,
            Some(algorithm) => algorithm,
            None => Algorithm::select(bytes, limit),
        }
    }

    /// Enqueues `output = reduction over all ranks of input`, `count` elements. In place if both begin at the same
    /// address; otherwise they must not overlap. Both need the alignment of one element only; multiples of 16 bytes are
    /// faster. The stream keeps buffers and scratch alive.
    ///
    /// Safe in a captured graph: nothing of a call is decided by the host at replay.
    ///
    /// # Errors
    /// `InvalidUsage` for buffers that are too small, misaligned or overlapping, or a variant that was not prepared;
    /// `PeerLost` once a rank is lost or has left; `Aborted` once the communicator is aborted; a driver error.
    pub fn launch(
        &self,
        stream: &Stream,
        input: &DeviceSlice,
        output: &DeviceSlice,
        count: usize,
        ty: ElementType,
        op: ReduceOp,
    ) -> Result<()> {
        self.inner.comm.check_all("all-reduce")?;
        let Some(variant) = self.inner.functions.get(&(ty, op)) else {
            let message =
                format!("{} {} was not prepared; name it in AllReduceConfig::variants", ty.name(), op.name());
            return Err(Error::usage("all-reduce", message));
        };
        let bytes = check_buffers(self.inner.comm.context(), input, output, count, ty)?;
        let launched = match self.algorithm(bytes) {
            Algorithm::OneShotLl16 => self.one_shot(&variant.one_shot, stream, [input, output], count, bytes),
            Algorithm::TwoShotHb => self.two_shot(&variant.two_shot, stream, [input, output], count, bytes),
        };
        self.inner.comm.report_to(stream);
        launched
    }

    /// The objects that the kernel of a call uses.
    fn keep(&self, buffers: [&DeviceSlice; 2]) -> [KeepAlive; 3] {
        let [input, output] = buffers.map(|buffer| Arc::clone(buffer.keep_alive()));
        [input, output, self.inner.clone()]
    }

    fn one_shot(
        &self,
        function: &Function,
        stream: &Stream,
        buffers: [&DeviceSlice; 2],
        count: usize,
        bytes: usize,
    ) -> Result<()> {
        let region = &self.inner.one_shot.handle;
        let shape = shape::one_shot_shape(bytes as u64, region.max_blocks);
        let config = LaunchConfig::linear(shape.grid, shape.block);
        let ([input, output], count) = (buffers.map(DeviceSlice::ptr), count as u64);
        let args = [arg(region), arg(&input), arg(&output), arg(&count)];
        // SAFETY: the arguments are those of the catalog row; buffers and region are large enough (`launch` checked the
        // buffers, `specs` sized the region), live as long as the stream retains them, and are never Rust references. A
        // kernel that waits in vain leaves when the abort word is set. No block waits for a block of its own grid.
        unsafe { function.launch_keeping(stream, &config, &args, self.keep(buffers)) }
    }

    fn two_shot(
        &self,
        function: &Function,
        stream: &Stream,
        buffers: [&DeviceSlice; 2],
        count: usize,
        bytes: usize,
    ) -> Result<()> {
        let (region, layout) = (&self.inner.two_shot.handle, &self.inner.layout);
        let (grid, block) = two_shot_shape(self.inner.geometry, layout, bytes);
        let config = LaunchConfig::linear(grid, block).cooperative();
        let slice = layout.slice_bytes(bytes as u64, grid);
        let ([input, output], count) = (buffers.map(DeviceSlice::ptr), count as u64);
        let args =
            [arg(region), arg(&input), arg(&output), arg(&count), arg(&layout.slot_bytes), arg(&slice)];
        // SAFETY: as for one-shot. All blocks are resident: the launch is cooperative.
        unsafe { function.launch_keeping(stream, &config, &args, self.keep(buffers)) }
    }
}

/// Blocks of the largest launch.
fn max_blocks(geometry: Geometry) -> u32 {
    if geometry.software { 8 } else { 64 }
}

/// Grid and block of the two-shot kernel: a tile of `ranks` slices per block and step; slices of 4 KiB at least, so
/// that a signal is worth its latency.
fn two_shot_shape(geometry: Geometry, layout: &HbLayout, bytes: usize) -> (u32, u32) {
    let tile = layout.ranks as usize * 4096;
    let most = if geometry.software { geometry.sms.min(2) } else { geometry.sms };
    let grid =
        u32::try_from(bytes.div_ceil(tile)).unwrap_or(u32::MAX).clamp(1, layout.max_blocks.min(most.max(1)));
    (grid, if geometry.software { 128 } else { 512 })
}

fn specs(
    ranks: u32,
    blocks: u32,
    limit: usize,
    scratch: usize,
) -> Result<(RegionSpec, RegionSpec, HbLayout)> {
    let half = shape::one_shot_half_bytes(ranks as usize, limit as u64);
    let one_shot = RegionSpec {
        format: abi::PACKET_FORMAT_LL16,
        bytes: 2 * half,
        half_bytes: half,
        max_blocks: blocks,
        entry_bytes: size_of::<u32>(),
    };
    let rest = (scratch as u64).checked_sub(2 * half);
    let layout = rest.and_then(|rest| HbLayout::within(ranks, blocks, rest)).ok_or_else(|| {
        let message = format!(
            "{scratch} bytes of scratch are too few for {ranks} ranks; set AQUEDUCT_SCRATCH_BYTES to {} or more",
            2 * half + (1 << 20)
        );
        Error::usage("AllReduce::prepare", message)
    })?;
    let two_shot = RegionSpec {
        format: abi::PACKET_FORMAT_HB,
        bytes: layout.bytes(),
        half_bytes: 0,
        max_blocks: layout.max_blocks,
        entry_bytes: size_of::<u64>(),
    };
    Ok((one_shot, two_shot, layout))
}

fn load_variants(
    comm: &Communicator,
    config: &AllReduceConfig,
) -> Result<HashMap<(ElementType, ReduceOp), Variant>> {
    let all =
        || ElementType::ALL.into_iter().flat_map(|ty| ReduceOp::ALL.into_iter().map(move |op| (ty, op)));
    let wanted: Vec<_> = if config.variants.is_empty() { all().collect() } else { config.variants.clone() };
    let ranks = shape::ranks_variant(comm.size() as usize);
    wanted
        .into_iter()
        .map(|(ty, op)| {
            let params = [("TYPE", ty.name()), ("OP", op.name()), ("RANKS", ranks)];
            let one = |kernel| {
                load_kernels(comm.context(), kernel, &params)?.pop().ok_or_else(|| {
                    Error::new(ErrorKind::Internal, "AllReduce::prepare", format!("{kernel} has no entry"))
                })
            };
            Ok(((ty, op), Variant { one_shot: one("all_reduce_ll16")?, two_shot: one("all_reduce_hb")? }))
        })
        .collect()
}

/// Returns the size of a call in bytes, or an error unless its buffers fit.
fn check_buffers(
    context: &Context,
    input: &DeviceSlice,
    output: &DeviceSlice,
    count: usize,
    ty: ElementType,
) -> Result<usize> {
    let refuse = |message: String| Err(Error::usage("all-reduce", message));
    let Some(bytes) = count.checked_mul(ty.bytes()) else {
        return refuse(format!("{count} elements of {} bytes exceed the address space", ty.bytes()));
    };
    for (name, slice) in [("input", input), ("output", output)] {
        slice.check_context("all-reduce", context)?;
        if slice.len() < bytes {
            return refuse(format!(
                "{count} elements of {} need {bytes} bytes, the {name} has {}",
                ty.name(),
                slice.len()
            ));
        }
        if !slice.ptr().is_multiple_of(ty.bytes() as u64) {
            return refuse(format!(
                "the {name} at {:#x} is not aligned to its elements of {} bytes",
                slice.ptr(),
                ty.bytes()
            ));
        }
    }
    let (a, b) = (input.ptr(), output.ptr());
    if a != b && a.abs_diff(b) < bytes as u64 {
        return refuse(
            "input and output overlap; they must be disjoint, or begin at the same address".to_owned(),
        );
    }
    Ok(bytes)
}
