//! Options of `aqueduct perf`. The letters are those of nccl-tests.

use std::path::PathBuf;

use aqueduct::plan::{Element, Kind, Reduction};
use clap::ValueEnum;

use super::checker::CheckBy;
use super::names::{reductions, types};
use super::pace::Pace;
use super::sweep::Sweep;
use super::timing::Plan;

/// Largest number of samples of a row, unless the user says otherwise: of calls timed from outside, and of launches of a
/// kernel that times its own round trips.
pub(super) const BATCHES: u32 = 10;
const LAUNCHES: u32 = 5;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// MemoryChannel put: 16-byte stores to the peer's memory (HB)
    Put,
    /// MemoryChannel get: 16-byte loads from the peer's memory (HB)
    Get,
    /// LL8 packets, 4 bytes of data and 4 of flag, one way
    Ll8,
    /// LL16 packets, 8 bytes of data and 8 of flags, one way
    Ll16,
    /// LL128 packets, 120 bytes of data and 8 of flag, one way
    Ll128,
    /// Semaphore signal and wait, one way
    Signal,
    /// All-reduce over all ranks
    AllReduce,
    /// All-gather: every rank gets all inputs
    AllGather,
    /// Reduce-scatter: every rank gets its part of the reduction
    ReduceScatter,
    /// All-to-all: every rank gets its part of every input
    AllToAll,
    /// Broadcast: every rank gets the root's input
    Broadcast,
    /// Reduce: the root gets the reduction
    Reduce,
    /// Gather: the root gets all inputs
    Gather,
    /// Scatter: every rank gets its part of the root's input
    Scatter,
    /// Send-receive: every rank sends to the next one
    SendRecv,
    /// All-to-all of parts of different sizes, which only the device knows
    AllToAllV,
    /// All-gather of parts of different sizes, which only the device knows
    AllGatherV,
    /// Reduce-scatter of parts of different sizes, which only the device knows
    ReduceScatterV,
    /// A group of sends and receives, one from every rank to every rank, in one launch
    PointToPoint,
}

impl Operation {
    pub(crate) fn name(self) -> String {
        value_name(self)
    }

    /// The collective that is run by built-in plans, if it is one.
    pub(super) fn collective(self, root: u32) -> Option<Kind> {
        match self {
            Self::AllReduce => Some(Kind::AllReduce),
            Self::AllGather => Some(Kind::AllGather),
            Self::ReduceScatter => Some(Kind::ReduceScatter),
            Self::AllToAll => Some(Kind::AllToAll),
            Self::Broadcast => Some(Kind::Broadcast { root }),
            Self::Reduce => Some(Kind::Reduce { root }),
            Self::Gather => Some(Kind::Gather { root }),
            Self::Scatter => Some(Kind::Scatter { root }),
            Self::SendRecv => Some(Kind::SendRecv),
            _ => None,
        }
    }

    /// The collective that NCCL has, too.
    pub(super) fn compared(self, root: u32) -> Option<Kind> {
        match self {
            Self::Gather | Self::Scatter => None,
            _ => self.collective(root),
        }
    }

    /// The collective whose parts have sizes of their own, if it is one, or that moves the messages of a group.
    pub(super) fn variable(self) -> Option<Kind> {
        match self {
            Self::AllToAllV | Self::PointToPoint => Some(Kind::AllToAll),
            Self::AllGatherV => Some(Kind::AllGather),
            Self::ReduceScatterV => Some(Kind::ReduceScatter),
            _ => None,
        }
    }

    /// Whether any number of ranks can run it.
    pub(super) fn is_collective(self) -> bool {
        self.collective(0).is_some() || self.variable().is_some()
    }

    /// Whether it combines elements.
    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::ReduceScatterV | Self::Reduce)
    }

    /// Whether one rank differs from the others.
    pub(super) fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether a kernel bounces messages, so that round trips are counted.
    pub(super) fn bounces(self) -> bool {
        matches!(self, Self::Ll8 | Self::Ll16 | Self::Ll128 | Self::Signal)
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Operation
    #[arg(value_enum)]
    pub(crate) operation: Option<Operation>,
    #[command(flatten)]
    pub(crate) common: Common,
    /// Let both ranks of a pair put or get at the same time; bus bandwidth counts both directions
    #[arg(long)]
    pub(crate) bidirectional: bool,
    /// The rank that broadcasts or scatters, gathers or gets the reduction
    #[arg(short = 'r', long, default_value_t = 0)]
    pub(crate) root: u32,
    /// Show the buffers to the peers before the calls (1), so that large messages go directly between them, or pass buffers
    /// that the library sees first in the call (0)
    #[arg(short = 'R', long, default_value_t = 1, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) local_register: u8,
    /// Say above the table why each size takes the algorithm that it takes
    #[arg(long)]
    pub(crate) explain: bool,
}

/// The options of operations that are timed from outside.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    /// Timed iterations per size [default: 200 up to 1 MiB, 20 above; packets and signals 10000. On the software
    /// device 10 up to 64 KiB, 3 up to 1 MiB, 1 above; packets and signals 250]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: Option<u32>,
    /// Warm-up iterations per size, not timed [default: 5; packets and signals 100. On the software device 1, above 1 MiB
    /// none; packets and signals 5]
    #[arg(short = 'w', long)]
    pub(crate) warmup: Option<u32>,
    /// Check every value this many times per size (0 turns the check off)
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) check: u32,
    /// The side that makes and compares the data of a check
    #[arg(long, value_enum, default_value_t)]
    pub(crate) check_by: CheckBy,
    /// Reduction; avg is the sum divided by the number of ranks, rounded once
    #[arg(short = 'o', long = "op", default_value = "sum", value_parser = reductions())]
    pub(crate) op: Reduction,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float", value_parser = types())]
    pub(crate) datatype: Element,
    /// Time replays of a CUDA graph that holds this many calls (0: plain launches)
    #[arg(short = 'G', long = "graph", default_value_t = 0, value_name = "CALLS")]
    pub(crate) graph: u32,
    #[command(flatten)]
    pub(crate) pace: Pace,
    #[command(flatten)]
    pub(crate) results: Results,
}

/// How results are shown and written.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Results {
    /// Print percentiles, deviation and CPU time: a line for each row instead of the usual table
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) files: Files,
}

/// The files to write results to.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Files {
    /// Also write the results to this file, one JSON object per line (- for standard output instead of the table)
    #[arg(short = 'J', long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write the rows as comma-separated values to this file (- for standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Also write every sample as comma-separated values to this file (- for standard output instead of the table)
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,
}

impl Args {
    /// The options of the main job: all-reduce with defaults.
    pub(crate) fn all_reduce() -> Self {
        let common = Common {
            sweep: Sweep::default(),
            iterations: None,
            warmup: None,
            check: 1,
            check_by: CheckBy::Auto,
            op: Reduction::Sum,
            datatype: Element::F32,
            graph: 0,
            pace: Pace::default(),
            results: Results::default(),
        };
        Self {
            operation: Some(Operation::AllReduce),
            common,
            bidirectional: false,
            root: 0,
            local_register: 1,
            explain: false,
        }
    }
}

impl Common {
    /// The user's numbers for calls that are timed from outside, or defaults by size and device. Large transfers need fewer
    /// calls for a steady median; the software device's times say nothing, so of its large calls one is enough.
    pub(super) fn plan(&self, bytes: u64, software: bool) -> Plan {
        let (iterations, warmup) = match (software, bytes) {
            (true, b) if b <= 64 << 10 => (10, 1),
            (true, b) if !is_slow(b) => (3, 1),
            (true, _) => (1, 0),
            (false, b) if b <= 1 << 20 => (200, 5),
            (false, _) => (20, 5),
        };
        self.pace.plan(self.iterations.unwrap_or(iterations), self.warmup.unwrap_or(warmup), BATCHES)
    }

    /// The same for `iterations` round trips inside a kernel.
    pub(super) fn plan_of_round_trips(&self, iterations: Option<u32>, software: bool) -> Plan {
        let (usual, warmup) = if software { (250, 5) } else { (10_000, 100) };
        self.pace.plan(iterations.unwrap_or(usual), self.warmup.unwrap_or(warmup), LAUNCHES)
    }
}

/// Whether the software device, which interprets kernels, takes long for a call of so many bytes.
pub(super) fn is_slow(bytes: u64) -> bool {
    bytes > 1 << 20
}

/// The name of a value on the command line.
pub(super) fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
