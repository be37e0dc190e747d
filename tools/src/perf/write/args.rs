//! Options of `aqueduct perf write|write-lat|flush`.

use aqueduct::comm::Transport;
use clap::ValueEnum;

use crate::perf::args;

/// Where a memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Memory {
    Host,
    Device,
}

/// The pairs of ranks that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Pattern {
    /// From rank 0 to 1, from 2 to 3, ...
    Pairs,
    /// From every rank to every other, each beginning with the next
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
    /// Writes before a flush; by default enough for 64 MiB, at most 1000
    #[arg(short = 'W', long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) window: Option<u32>,
    /// Connections to each peer, used in turn
    #[arg(short = 'k', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) connections: u32,
    /// Which ranks write to which
    #[arg(short = 'p', long, value_enum, default_value = "pairs")]
    pub(super) pattern: Pattern,
    #[command(flatten)]
    pub(super) sweep: args::Sweep,
    /// Timed windows, round trips or flushes per size [default: 10 windows, 1000 round trips or flushes]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iterations: Option<u32>,
    /// Warm-up windows, round trips or flushes per size, not timed [default: 1 window, 100 round trips or flushes]
    #[arg(short = 'w', long)]
    pub(super) warmup: Option<u32>,
    /// Check all data this many times per size (0 turns the check off)
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(super) check: u32,
    #[command(flatten)]
    pub(super) files: args::Files,
}
