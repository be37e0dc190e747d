//! A rank's kernels for a variant of a plan, and the launch that a call takes.

use std::collections::HashMap;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::{self as ptx, Element};

use super::grid::{Form, Grid, Grids};
use super::ir::{RankPlan, Reduction};
use super::load::Wanted;
use super::lower::{Address, Lowered};
use super::sizes::divisor;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Function, LaunchConfig};

/// An element type, and a reduction if the plan reduces.
pub(super) type Variant = (Element, Option<Reduction>);

/// Stands for every variant of a plan that only moves data.
pub(super) const ANY: Variant = (Element::U8, None);

/// This rank's kernels by variant: none for a rank without operations of threads.
pub(super) type Kernels = HashMap<Variant, Option<Kernel>>;

/// A rank's kernels for one element type and reduction, and what their parameter consists of.
#[derive(Debug)]
pub(super) struct Kernel {
    /// With as many threads as the plan says.
    all: Launch,
    /// With fewer, if the plan has more.
    few: Option<Launch>,
    grids: Grids,
    pub(super) addresses: Vec<Address>,
    /// Words behind the addresses.
    pub(super) rows: Vec<u64>,
}

/// The same before it is compiled.
#[derive(Debug)]
pub(super) struct Unloaded {
    kernel: ptx::Kernel,
    grids: Grids,
    addresses: Vec<Address>,
}

/// A function and its largest launch.
#[derive(Debug)]
struct Launch {
    function: Function,
    config: LaunchConfig,
}

impl Unloaded {
    /// The kernels of a rank.
    pub(super) fn new(lowered: Lowered, plan: &RankPlan) -> Self {
        let Lowered { kernel, addresses } = lowered;
        let blocks = u32::try_from(kernel.blocks.len()).unwrap_or(u32::MAX);
        let form =
            Form { any_grid: kernel.runs_with_any_grid(), lines: kernel.packets == ptx::PacketForm::Ll128 };
        let grids = Grids::new(plan, [blocks, kernel.threads], form);
        Self { kernel, grids, addresses }
    }

    /// What there is to compile, in the order of [`loaded`](Self::loaded).
    pub(super) fn kernels(&self) -> impl Iterator<Item = Wanted<'_>> {
        let kernel = &self.kernel;
        let threads = std::iter::once(kernel.threads).chain(self.grids.few());
        threads.map(move |threads| Wanted { kernel, threads })
    }

    /// With the next functions of `functions`.
    pub(super) fn loaded(self, functions: &mut impl Iterator<Item = Function>) -> Result<Kernel> {
        let Self { kernel, grids, addresses } = self;
        let rows = kernel.args_rows();
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair[1]) << 32;
        let rows = rows.chunks_exact(2).map(pair).collect();
        let blocks = u32::try_from(kernel.blocks.len()).unwrap_or(u32::MAX).max(1);
        let mut launch = |threads| {
            let missing = || Error::new(ErrorKind::Internal, "Executor::prepare", "a kernel was not loaded");
            launch(functions.next().ok_or_else(missing)?, LaunchConfig::linear(blocks, threads))
        };
        let all = launch(kernel.threads)?;
        let few = grids.few().map(launch).transpose()?;
        Ok(Kernel { all, few, grids, addresses, rows })
    }
}

impl Kernel {
    /// Its functions and their largest launches.
    pub(super) fn launches(&self) -> impl Iterator<Item = (&Function, &LaunchConfig)> {
        std::iter::once(&self.all).chain(&self.few).map(|launch| (&launch.function, &launch.config))
    }

    /// The launch of a call, whose parameter it completes.
    pub(super) fn launch(&self, args: &mut PlanArgs) -> (&Function, LaunchConfig) {
        let Grid { blocks, threads } = self.grids.of_call(u64::from(args.vectors));
        let few = self.few.as_ref().filter(|few| few.config.block[0] == threads);
        let Launch { function, config } = few.unwrap_or(&self.all);
        if !self.grids.any() {
            return (function, *config);
        }
        (args.grid_magic, args.grid_shift) = divisor(blocks);
        (function, LaunchConfig::linear(blocks, threads))
    }
}

fn launch(function: Function, config: LaunchConfig) -> Result<Launch> {
    // Blocks wait for those of peers, which wait for others of this rank: all of them must fit the device at once. A cooperative
    // launch would see to it, too, but takes 0.2 to 0.8 us longer on H200. What else runs on the device ends by itself, and
    // `Room` sees to other plans.
    function.validate(&if config.grid[0] > 1 { config.cooperative() } else { config })?;
    Ok(Launch { function, config })
}
