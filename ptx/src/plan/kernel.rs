//! The description of a plan's kernel.

/// The kernel of one rank: one launch is one call of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Symbol of the entry point: a PTX identifier.
    pub symbol: String,
    /// Type of the elements that reductions combine. Moves without a reduction copy bytes.
    pub element: Element,
    /// Ranks of the plan: the divisor of [`Reduction::Avg`].
    pub ranks: u32,
    /// Threads of each block: a multiple of 32, at most 1024.
    pub threads: u32,
    /// Addresses behind [`PlanArgs`](crate::abi::PlanArgs) in the kernel's parameter.
    pub addresses: u32,
    /// Offset in the control area of `blocks` counters of calls (u64). Each block counts its own: the flag of a call's packets is
    /// the lower half, which goes from 2^32 - 1 to 2, and the half of double scratch is its lowest bit. Not touched if there are
    /// neither packets nor double scratch.
    pub calls: u32,
    /// Calls alternate between two halves of scratch.
    pub double_scratch: bool,
    /// How ranks meet before a new lap of flags; `None` if no step reads or writes packets.
    pub laps: Option<Laps>,
    /// Bodies.
    pub shapes: Vec<Shape>,
    /// Blocks of the grid.
    pub blocks: Vec<Block>,
}

/// How the ranks that exchange packets begin a new lap of flags, once in 2^32 calls: each waits until the others have ended their
/// last call of the old lap, all its blocks zero its packets, and it waits until the others have done the same. The flag of an
/// old packet could otherwise pass for that of a new one. All blocks must be resident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Laps {
    /// Index of the address of this rank's packets.
    pub packets: u32,
    /// Multiple of `scratch_chunk` that its packets take, both halves included: twice the chunks, times the halves.
    pub chunks: u32,
    /// Offset of the state of a barrier of all blocks in the control area.
    pub barrier: u32,
    /// Counters raised at the ranks with which this one exchanges packets, either way: twice in a new lap. They serve nothing
    /// else, and their numbers are fixed.
    pub signals: Vec<Signal>,
    /// Counters that the same ranks raise.
    pub waits: Vec<Wait>,
}

/// Threads that do the same but for numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One thread block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index into [`Kernel::shapes`].
    pub shape: u32,
    /// Numbers that the shape asks for. Blocks of one shape have equally many.
    pub row: Vec<u32>,
}

/// A number of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// The same in every block of the shape.
    Fixed(u32),
    /// Entry of the block's row.
    Row(u32),
}

/// One step of a shape. Steps but moves are one thread's, or one thread's of a warp, and take effect in program order; moves are
/// ordered against them and each other by [`Step::Sync`] and [`Step::Barrier`] only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// All threads of the block meet.
    Sync,
    /// All threads of several blocks meet.
    Barrier {
        /// Offset of a [`GridBarrierState`](crate::abi::GridBarrierState) in the control area.
        state: Number,
        /// Blocks that meet.
        blocks: Number,
    },
    /// Raises counters at peers, one after the other or at once.
    Signal(Vec<Signal>),
    /// Waits for counters that peers raise, one after the other or at once.
    Wait(Vec<Wait>),
    /// Waits until a semaphore is positive and takes one.
    Acquire {
        /// Offset of its u32 in the control area.
        at: Number,
    },
    /// Adds one to a semaphore; releases what was synced before.
    Release {
        /// Offset of its u32 in the control area.
        at: Number,
    },
    /// Moves and reduces data.
    Move(Move),
    /// Asks the proxy of a port channel to put, to signal, to flush, or for several of these.
    Port(Port),
    /// Waits for one more signal of the peer of a port channel.
    PortWait {
        /// Index of the address of a [`PortChannelHandle`](crate::abi::PortChannelHandle) in device memory.
        channel: Number,
    },
    /// Repeats steps over slices of their ranges: as often as `unit` / 16 vectors fit into those of `chunks` chunks, the last time
    /// perhaps with fewer. In iteration k each step handles vectors `k * unit / 16 ..` of its own range.
    Loop {
        /// Bytes of a slice: a multiple of 16.
        unit: u64,
        /// Chunks of the range.
        chunks: Number,
        /// Steps; no loop.
        body: Vec<Step>,
    },
}

/// One counter of a peer that is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// Offset of my outbound counter (u64) in my control area.
    pub outbound: Number,
    /// Index of the address of the peer's control area.
    pub peer: Number,
    /// Offset of its inbound counter (u64) there.
    pub inbound: Number,
    /// Publishes nothing.
    pub relaxed: bool,
}

/// One counter that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Offset of my inbound counter (u64) in my control area.
    pub inbound: Number,
    /// Offset of the value to expect (u64) there.
    pub expected: Number,
    /// The peer's rank, for the abort record.
    pub rank: Number,
    /// Makes nothing visible.
    pub relaxed: bool,
}

/// Reads the sources, reduces them in their order if there are several, and writes the result to all targets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Operands read, at least one.
    pub sources: Vec<Operand>,
    /// Operands written, at least one.
    pub targets: Vec<Operand>,
    /// Chunks of each operand.
    pub count: Number,
    /// How sources combine.
    pub reduction: Option<Reduction>,
    /// The block's part, if several blocks handle the range together.
    pub share: Option<Share>,
}

/// One side of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The kind of memory, which decides how far chunks are apart.
    pub base: Base,
    /// Index of the address of chunk 0.
    pub address: Number,
    /// The first chunk.
    pub first: Number,
    /// The rank that writes these packets, for the abort record; of no meaning otherwise.
    pub rank: Number,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Somebody's input, aligned to one element.
    Input,
    /// Somebody's output, aligned to one element.
    Output,
    /// Somebody's plain scratch, aligned to 128 bytes.
    Scratch,
    /// Somebody's scratch for LL16 packets, aligned to 128 bytes: packet k of a chunk holds its bytes 8k to 8k + 7, at 16k of the
    /// chunk's `2 * scratch_chunk` bytes.
    Packets,
}

/// A block's part of a range: the vectors of all its chunks are cut as evenly as they can be, the first members get one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its place among the blocks.
    pub member: Number,
    /// The blocks.
    pub of: Number,
}

/// A request to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// Index of the address of a [`PortChannelHandle`](crate::abi::PortChannelHandle) in device memory.
    pub channel: Number,
    /// Data to put.
    pub put: Option<PortPut>,
    /// Signals the peer, behind the data.
    pub signal: bool,
    /// Waits until all that was asked of the channel has completed.
    pub flush: bool,
}

/// Data that a proxy puts. The handle's memories are arenas: each buffer lies at an offset that the caller passes like an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortPut {
    /// Read here: `address` indexes an offset in the handle's memory instead of an address.
    pub source: Operand,
    /// Written at the peer: the same.
    pub target: Operand,
    /// Chunks.
    pub count: Number,
    /// Waits for the source's packets first, which `source` of this operand finds in memory.
    pub awaits: Option<Operand>,
}

/// How sources combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// Smallest; a NaN loses against a number, and -0 is below +0.
    Min,
    /// Largest; a NaN loses against a number, and -0 is below +0.
    Max,
    /// Sum of all ranks, divided by their number and rounded to the type once; the sum of integers wraps, its quotient rounds towards
    /// zero.
    Avg,
}

/// Type of an element. Floating-point types of 8 and 16 bits are combined in f32 and rounded once at the end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// FP8 with 4 exponent bits (OCP 8-bit floating point, E4M3): no infinity; saturates.
    F8E4m3,
    /// FP8 with 5 exponent bits (OCP 8-bit floating point, E5M2); saturates.
    F8E5m2,
    /// 8 bits, two's complement.
    I8,
    /// 8 bits.
    U8,
    /// 32 bits, two's complement.
    I32,
    /// 32 bits.
    U32,
    /// 64 bits, two's complement.
    I64,
    /// 64 bits.
    U64,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// Bytes of one element, also the alignment that kernels assume of users' data.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F8E4m3 | Self::F8E5m2 | Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8e4m3",
            Self::F8E5m2 => "f8e5m2",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }
}
