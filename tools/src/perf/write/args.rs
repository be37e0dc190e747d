//! Options of `aqueduct perf write|read|write-lat|flush`.

use aqueduct::comm::Transport;
use clap::ValueEnum;

use crate::perf::args;
use crate::perf::checker::CheckBy;
use crate::perf::pace::Pace;
use crate::perf::sweep::{Sweep, parse_size};

/// Where a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::perf) enum Memory {
    Host,
    Device,
}

/// The ranks that write or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Pattern {
    /// Rank 0 with 1, 2 with 3, ...: the even rank writes or reads
    Pairs,
    /// Both ranks of each pair write or read at the same time; bus bandwidth counts both directions
    Bidirectional,
    /// Every rank with every other, each beginning with the next
    AllToAll,
}

impl Memory {
    pub(super) fn name(self) -> String {
        args::value_name(self)
    }
}

impl Pattern {
    pub(super) fn name(self) -> String {
        args::value_name(self)
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Transport: CudaIpc, Ethernet, Ib0, Ib1, ...
    #[arg(short = 't', long)]
    pub(super) transport: Transport,
    /// Kind of the source memory
    #[arg(short = 'm', long, value_enum, default_value = "device")]
    pub(super) memory: Memory,
    /// Kind of the target memory; by default that of the source
    #[arg(long, value_enum)]
    pub(super) peer_memory: Option<Memory>,
    /// Writes or reads before a flush [default: enough for 64 MiB, at most 1000]
    #[arg(short = 'W', long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) window: Option<u32>,
    /// Connections to each peer, used in turn
    #[arg(short = 'q', short_alias = 'k', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) connections: u32,
    /// Which ranks write or read
    #[arg(short = 'p', long, value_enum, default_value = "pairs")]
    pub(super) pattern: Pattern,
    /// Measure one row of these sizes together, such as 64,4K,1M: a call is one write or read of each
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
        conflicts_with_all = ["min_bytes", "max_bytes", "step_bytes", "step_factor"])]
    pub(super) mix: Option<Vec<u64>>,
    #[command(flatten)]
    pub(super) sweep: Sweep,
    /// Timed windows, round trips or flushes per size [default: 10 windows, 1000 round trips or flushes]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iterations: Option<u32>,
    /// Warm-up windows, round trips or flushes per size, not timed [default: 1 window, 100 round trips or flushes]
    #[arg(short = 'w', long)]
    pub(super) warmup: Option<u32>,
    /// Check all data this many times per size (0 turns the check off)
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(super) check: u32,
    /// The side that makes and compares the data of a check in device memory; host memory is the host's
    #[arg(long, value_enum, default_value_t)]
    pub(super) check_by: CheckBy,
    #[command(flatten)]
    pub(super) pace: Pace,
    #[command(flatten)]
    pub(super) results: args::Results,
}
