//! The intermediate representation: everything that builders, files, checks, passes and back ends exchange.
//!
//! Four decisions shape it; `docs/plans.md` gives their reasons at length.
//! - One [`Move`] stands for every operation in which a block's threads touch data: k sources, reduced if there are several,
//!   to m targets, each plain or as packets, here, at a peer or at a switch's group.
//! - Threads of a block are ordered by [`Op::Sync`] and by nothing else, so that a back end may start what stands between
//!   two syncs in any order.
//! - Operands count chunks. A chunk has no size until a plan runs.
//! - Operations are small (24 bytes, and 16 for each operand of a move), because a plan of 1,024 ranks has millions.

use std::hash::{Hash, Hasher};

use super::collective::Collective;
pub use super::reduction::Reduction;

/// The work of every rank in one collective. A value that names no device: check, simulate or compile it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Name, for people and for caches.
    pub name: String,
    /// The result that the plan promises.
    pub collective: Collective,
    /// Settings that hold for all ranks.
    pub settings: Settings,
    /// One entry for each rank.
    pub ranks: Vec<RankPlan>,
}

/// Settings that hold for all ranks of a [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How data crosses between ranks, for people and for files; the operations say it exactly.
    pub protocol: Protocol,
    /// Threads of every thread block.
    pub threads_per_block: u32,
    /// Bytes to which the parts of a chunk are aligned.
    pub alignment: u32,
    /// Consecutive calls alternate between two halves of the scratch buffer.
    pub double_scratch: bool,
    /// Chunks of input and output have places and sizes of their own, which each rank's numbers say at run time: chunk r is what goes
    /// to rank r, or comes from it. Ranks tell each other these numbers when they begin a call, with the first signal that a block
    /// sends to each other rank.
    pub variable_chunks: bool,
    /// Calls on different buffers share one context and its scratch.
    pub reuse_resources: bool,
    /// The smallest message that the plan's author means it for, in bytes.
    pub min_bytes: u64,
    /// The largest such message.
    pub max_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            protocol: Protocol::Simple,
            threads_per_block: 1024,
            alignment: 16,
            double_scratch: false,
            variable_chunks: false,
            reuse_resources: false,
            min_bytes: 0,
            max_bytes: u64::MAX,
        }
    }
}

/// How data crosses between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Plain data and signals.
    Simple,
    /// Packets that carry their own flag: 8 bytes of data and 8 of flags (LL16).
    Ll,
    /// Packets of 120 bytes of data and 8 of flag (LL128), which take 16 / 15 of the bytes instead of twice as many. Only where
    /// NVLink joins the ranks, or they are on one device: other paths do not keep 128 bytes whole.
    Ll128,
}

/// One rank's part of a [`Plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankPlan {
    /// Chunks of the input buffer.
    pub input_chunks: u32,
    /// Chunks of the output buffer.
    pub output_chunks: u32,
    /// Chunks of the scratch buffer (of one half, if scratch is double).
    pub scratch_chunks: u32,
    /// Peer of each memory channel. The k-th channel to a peer pairs with the peer's k-th channel to this rank.
    pub memory_channels: Vec<u32>,
    /// Peer of each port channel, paired like memory channels.
    pub port_channels: Vec<u32>,
    /// Switch channels.
    pub switches: Vec<Switch>,
    /// Initial value of each semaphore between thread blocks.
    pub semaphores: Vec<u32>,
    /// Thread blocks.
    pub blocks: Vec<Block>,
}

/// A group of ranks whose buffers a switch reduces from and broadcasts to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Switch {
    /// The buffer that takes part, at every rank.
    pub buffer: Buffer,
    /// Members.
    pub ranks: Vec<u32>,
}

/// A thread block: operations in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// Operations. Only [`Op::Sync`] and [`Op::Barrier`] order data against what follows.
    pub ops: Vec<Operation>,
    /// A copy engine does the moves, in a stream of the block's own, and no threads: copies of one plain operand each, with signals,
    /// waits and semaphores between them.
    pub copy_engine: bool,
}

/// An [`Op`] and where it came from.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The operation.
    pub op: Op,
    /// Index, among its block's or loop's operations as the author wrote them, of the operation that this one came from.
    /// Passes keep it, so that messages name what the author wrote. Not part of the meaning: comparisons ignore it.
    pub origin: u32,
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.op == other.op
    }
}

impl Eq for Operation {}

impl Hash for Operation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.op.hash(state);
    }
}

/// One step of a block, or of one of its threads.
///
/// Control operations (all but `Sync`, `Barrier`, `Move` and `Loop`) of a block take effect in program order. Moves are
/// ordered against each other and against control operations only by `Sync` and `Barrier`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// All threads of the block have done what stands before when any begins what stands after.
    Sync,
    /// [`Op::Sync`] of several blocks of the rank.
    Barrier(Barrier),
    /// Adds one to the peer's count of a channel. Unless relaxed, it publishes what was synced before.
    Signal {
        /// Through which channel.
        channel: Channel,
        /// Publishes only what the rank's stream did before the call (docs/memory-model.md, "The start of a kernel").
        relaxed: bool,
    },
    /// Waits for one more signal of the peer, and makes visible what that published, to what follows the next sync.
    Wait {
        /// At which channel.
        channel: Channel,
    },
    /// Waits until everything put before into a port channel has arrived.
    Flush {
        /// Index into [`RankPlan::port_channels`].
        channel: u32,
    },
    /// Waits until a semaphore of this rank is positive and takes one.
    Acquire {
        /// Index into [`RankPlan::semaphores`].
        semaphore: u32,
    },
    /// Adds one to a semaphore of this rank and publishes what was synced before.
    Release {
        /// Index into [`RankPlan::semaphores`].
        semaphore: u32,
    },
    /// Moves and reduces data by the block's threads.
    Move(Box<Move>),
    /// Asks the proxy to move data through a port channel.
    Port(Box<PortPut>),
    /// Repeats operations over slices of their chunks.
    Loop(Box<Loop>),
}

/// A meeting of several thread blocks of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// Number of the barrier among those of its rank.
    pub id: u32,
    /// How many blocks meet.
    pub blocks: u32,
}

/// A memory or port channel of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// Which list of the rank the index is of.
    pub kind: ChannelKind,
    /// Index into [`RankPlan::memory_channels`] or [`RankPlan::port_channels`].
    pub index: u32,
}

/// How a channel moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChannelKind {
    /// Loads and stores to the peer's memory.
    Memory,
    /// Requests to a proxy thread.
    Port,
}

/// A rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// Data that the caller sends.
    Input,
    /// Data that the caller receives.
    Output,
    /// The library's own, kept between calls.
    Scratch,
}

/// Moves `count` chunks: element by element, the reduction of all sources goes to every target.
///
/// All operands have `count` chunks. The order of sources is the order of the reduction, so that every run gives the same
/// bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Operands read, at least one.
    pub sources: Vec<Operand>,
    /// Operands written, at least one.
    pub targets: Vec<Operand>,
    /// Chunks of every operand.
    pub count: u32,
    /// How sources combine; `None` with one source that is not a switch.
    pub reduction: Option<Reduction>,
    /// The part of the range that this block handles, if a group of blocks shares it.
    pub share: Option<Share>,
}

/// Some chunks as one side of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The memory's owner.
    pub place: Place,
    /// The first chunk.
    pub first: u32,
    /// Plain data or packets.
    pub form: Form,
}

/// The owner of an [`Operand`]'s memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A buffer of the block's own rank.
    Local(Buffer),
    /// A buffer of a peer, through a memory channel.
    Remote {
        /// The peer.
        rank: u32,
        /// Its buffer.
        buffer: Buffer,
    },
    /// The same chunk of all members of one of the rank's switches: the reduction of all when read, all of them when written.
    Switch(u32),
}

/// How data lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As the user sees it.
    Plain,
    /// Packets of data and flag, in scratch only. Who reads waits until the flag is this call's.
    Packets,
}

/// A block's part of a range that a group of blocks shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// This block's place in the group.
    pub member: u32,
    /// Blocks of the group.
    pub of: u32,
}

/// A request to a proxy: put chunks of this rank into a peer's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortPut {
    /// Index into [`RankPlan::port_channels`]; the peer is the channel's.
    pub channel: u32,
    /// Buffer and first chunk read.
    pub source: (Buffer, u32),
    /// The peer's buffer and first chunk written.
    pub target: (Buffer, u32),
    /// Chunks put.
    pub count: u32,
    /// Both sides are packets. With `forward` the block first waits until all of them are valid.
    pub form: Form,
    /// Waits for the source's packets before putting them on.
    pub forward: bool,
    /// Signals the peer after the data.
    pub signal: bool,
    /// Waits until data and signal have arrived.
    pub flush: bool,
}

/// Operations repeated over slices of their chunks: in iteration k every operation handles bytes `k * unit ..` of its range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Bytes of a slice.
    pub unit: u64,
    /// Chunks of each operation of the body.
    pub chunks: u32,
    /// Operations; no loop.
    pub body: Vec<Operation>,
}

impl Block {
    /// A block of threads.
    pub const fn new(ops: Vec<Operation>) -> Self {
        Self { ops, copy_engine: false }
    }

    /// All operations: those of loops, instead of the loops.
    pub(super) fn all_ops(&self) -> impl Iterator<Item = &Op> {
        let flat = self.ops.iter().flat_map(|operation| match &operation.op {
            Op::Loop(repeated) => repeated.body.as_slice(),
            _ => std::slice::from_ref(operation),
        });
        flat.map(|operation| &operation.op)
    }
}

impl Op {
    /// The operation, from place `origin` of what its author wrote.
    pub fn at(self, origin: u32) -> Operation {
        Operation { op: self, origin }
    }
}

impl Operand {
    /// Plain chunks of the block's own rank.
    pub const fn local(buffer: Buffer, first: u32) -> Self {
        Self { place: Place::Local(buffer), first, form: Form::Plain }
    }

    /// Plain chunks of a peer.
    pub const fn remote(rank: u32, buffer: Buffer, first: u32) -> Self {
        Self { place: Place::Remote { rank, buffer }, first, form: Form::Plain }
    }

    /// Plain chunks of all members of a switch.
    pub const fn switch(index: u32, first: u32) -> Self {
        Self { place: Place::Switch(index), first, form: Form::Plain }
    }

    /// The same chunks as packets.
    #[must_use]
    pub const fn packets(self) -> Self {
        Self { form: Form::Packets, ..self }
    }
}

impl RankPlan {
    /// All operations: those of loops, instead of the loops.
    pub(super) fn all_ops(&self) -> impl Iterator<Item = &Op> {
        self.blocks.iter().flat_map(Block::all_ops)
    }

    /// Chunks of one of the buffers.
    pub fn chunks(&self, buffer: Buffer) -> u32 {
        match buffer {
            Buffer::Input => self.input_chunks,
            Buffer::Output => self.output_chunks,
            Buffer::Scratch => self.scratch_chunks,
        }
    }

    /// Peers of the channels of one kind.
    pub fn peers(&self, kind: ChannelKind) -> &[u32] {
        match kind {
            ChannelKind::Memory => &self.memory_channels,
            ChannelKind::Port => &self.port_channels,
        }
    }
}

impl Plan {
    /// The other end of a channel: the peer and the index of its channel. `None` if there is none.
    pub fn other_end(&self, rank: u32, channel: Channel) -> Option<(u32, Channel)> {
        let peers = self.ranks.get(rank as usize)?.peers(channel.kind);
        let peer = *peers.get(channel.index as usize)?;
        let nth = peers[..channel.index as usize].iter().filter(|&&other| other == peer).count();
        let theirs = self.ranks.get(peer as usize)?.peers(channel.kind);
        let (index, _) = theirs.iter().enumerate().filter(|&(_, &other)| other == rank).nth(nth)?;
        Some((peer, Channel { kind: channel.kind, index: u32::try_from(index).ok()? }))
    }

    /// The reductions that moves name.
    pub(super) fn reductions(&self) -> impl Iterator<Item = Reduction> {
        self.ranks.iter().flat_map(RankPlan::all_ops).filter_map(|op| match op {
            Op::Move(moved) => moved.reduction,
            _ => None,
        })
    }

    /// Number of operations, each counted once however often a loop repeats it.
    pub fn operations(&self) -> usize {
        self.ranks.iter().flat_map(RankPlan::all_ops).count()
    }
}
