//! The steps of a plan's kernel.

use super::Reduction;

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
    /// All threads of the block write this rank's rows into the tables of all ranks that it reaches. Sync next, signal these ranks, and
    /// put the rows to the others.
    ShowRows,
    /// All threads of a block that shows no rows find those that the first block has shown and been sent. Meet that block next.
    FindRows,
    /// Asks the proxy to put this rank's rows into the tables of a peer that the rank does not reach, and signals it.
    PutRows {
        /// Index of the address of a [`PortChannelHandle`](crate::abi::PortChannelHandle) in device memory, whose memories begin with
        /// the control areas.
        channel: Number,
    },
    /// All threads of the block compare the rows of all ranks, once signals of all have been waited for and the block has met. If
    /// one does not fit, all blocks of all ranks leave.
    JudgeRows,
    /// Moves and reduces data.
    Move(Move),
    /// Asks the proxy of a port channel to put, to signal, to flush, or for several of these.
    Port(Port),
    /// Waits for one more signal of the peer of a port channel.
    PortWait {
        /// Index of the address of a [`PortChannelHandle`](crate::abi::PortChannelHandle) in device memory.
        channel: Number,
    },
    /// Repeats steps over slices of their ranges: as often as `unit` / 16 vectors fit into those of `chunks` chunks, the last
    /// time perhaps with fewer. In iteration k each step handles vectors `k * unit / 16 ..` of its own range.
    Loop {
        /// Bytes of a slice: a multiple of 16.
        unit: u64,
        /// Chunks of the range.
        chunks: Number,
        /// Steps; no loop.
        body: Vec<Step>,
    },
    /// Repeats steps, at least twice. In turn k an entry of the block's row is that `k * stride` behind the one that the step
    /// names.
    Repeat {
        /// Number of turns.
        turns: u32,
        /// Entries of a turn.
        stride: u32,
        /// Steps; no loop, no repetition.
        body: Vec<Step>,
    },
    /// Notes the time at which the first thread comes here, and a number.
    Mark {
        /// For the reader of the trace.
        number: u64,
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
    /// Publishes nothing that this kernel did; what its stream did before it, the kernel's start has published (`kernel.start`).
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
    /// Each operand of input or output is one chunk of a size of its own: its `first` is the row that speaks of it. The row of the first
    /// source that is an input has the size of all, also of sources in scratch, which begin where their chunks do.
    pub by_rows: bool,
}

impl Move {
    /// Whether the move is that of member `nth` of all `of` blocks, which move the same but for their shares.
    pub(super) fn is_shared_by_all(&self, nth: usize, row: &[u32], of: usize) -> bool {
        let value = |number| match number {
            Number::Fixed(value) => Some(value as usize),
            Number::Row(entry) => row.get(entry as usize).map(|&value| value as usize),
        };
        let mut operands = self.sources.iter().chain(&self.targets);
        operands.all(|side| {
            [side.address, side.first, side.rank].iter().all(|number| matches!(number, Number::Fixed(_)))
        }) && self.share.is_some_and(|share| value(share.member) == Some(nth) && value(share.of) == Some(of))
    }
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
    /// The address is one of a multicast object: a load gives the reduction of what all its devices hold, by the move's
    /// reduction ([`reduces_by_multicast`](super::reduces_by_multicast)) and in an order that hardware chooses; a store reaches all
    /// of them. Of a user's buffer only whole vectors are accessed, so that chunks and buffers must be multiples of 16 bytes.
    pub multicast: bool,
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
    /// Somebody's scratch for packets, aligned to 128 bytes. LL16: packet k of a chunk holds its bytes 8k to 8k + 7, at 16k of the
    /// chunk's `2 * scratch_chunk` bytes. LL128: unit k of a chunk holds its bytes 960k to 960k + 959 as 8 lines, at 1024k of the
    /// chunk's `1024 * lines` bytes.
    Packets,
}

/// A block's part of a range: the vectors of all its chunks are cut at equal fractions, rounded down.
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

/// Data that a proxy puts. The handle's memories are arenas: each buffer lies at an offset that the caller passes like an
/// address.
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
    /// The source, and a target in an output, are chunks of sizes of their own, as in a [`Move`]. The source's row has the size.
    pub by_rows: bool,
}
