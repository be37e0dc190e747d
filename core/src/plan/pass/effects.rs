//! The memory that operations read and write, and who else uses it.

use super::geometry::{Layout, operands};
use super::ir::{Block, Buffer, Form, Op, Operand, Operation, Place, Plan, PortPut, RankPlan};

/// Some chunks of a rank's memory. Input and output that share memory are the same chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Span {
    pub(in crate::plan) rank: u32,
    /// First chunk, and the first behind.
    pub(in crate::plan) start: u64,
    pub(in crate::plan) end: u64,
    pub(in crate::plan) packets: bool,
    /// Input or output, which its rank's caller uses between calls.
    pub(in crate::plan) callers: bool,
}

impl Span {
    pub(in crate::plan) fn overlaps(&self, other: &Self) -> bool {
        self.rank == other.rank && self.start < other.end && other.start < self.end
    }

    /// Chunks as indices of the rank's memory.
    fn range(&self) -> std::ops::Range<usize> {
        // A plan of right structure has all of them, and few enough.
        let index = |chunk| usize::try_from(chunk).unwrap_or(0);
        index(self.start)..index(self.end)
    }
}

/// The chunks that an operation reads and writes.
#[derive(Clone, Debug, Default)]
pub(in crate::plan) struct Effects {
    pub(in crate::plan) reads: Vec<Span>,
    pub(in crate::plan) writes: Vec<Span>,
}

/// Most chunks of all ranks that a pass looks at, as many as the checks.
const CHUNKS: u64 = 1 << 27;

/// Where every rank's buffers lie.
#[derive(Debug)]
pub(in crate::plan) struct Map<'p> {
    pub(in crate::plan) plan: &'p Plan,
    layouts: Vec<Layout>,
}

impl<'p> Map<'p> {
    pub(in crate::plan) fn of(plan: &'p Plan) -> Self {
        let layouts = (0..).zip(&plan.ranks).map(|(rank, _)| Layout::of(plan, rank)).collect();
        Self { plan, layouts }
    }

    /// Chunks of each rank's memory.
    fn chunks(&self) -> impl Iterator<Item = usize> {
        // `small` plans have few enough.
        self.layouts.iter().map(|layout| usize::try_from(layout.chunks).unwrap_or(0))
    }

    /// Whether the plan has so few chunks that a pass may look at each.
    pub(in crate::plan) fn small(&self) -> bool {
        let total = self.layouts.iter().fold(0, |sum: u64, layout| sum.saturating_add(layout.chunks));
        total <= CHUNKS
    }

    fn span(&self, rank: u32, (buffer, first): (Buffer, u32), count: u32, form: Form) -> Span {
        let start = self.layouts[rank as usize].chunk(buffer, first, 0);
        let end = start + u64::from(count);
        Span { rank, start, end, packets: form == Form::Packets, callers: buffer != Buffer::Scratch }
    }

    /// Chunks of input and output, which come first.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::plan) fn callers(&self, rank: u32) -> u64 {
        self.layouts[rank as usize].scratch()
    }

    /// The chunks that an operand of one of `rank`'s moves names: several ranks' for a switch.
    pub(in crate::plan) fn spans(&self, rank: u32, operand: &Operand, count: u32) -> Vec<Span> {
        let Operand { place, first, form } = *operand;
        match place {
            Place::Local(buffer) => vec![self.span(rank, (buffer, first), count, form)],
            Place::Remote { rank, buffer } => vec![self.span(rank, (buffer, first), count, form)],
            Place::Switch(index) => {
                let switch = &self.plan.ranks[rank as usize].switches[index as usize];
                let member = |&member: &u32| self.span(member, (switch.buffer, first), count, form);
                switch.ranks.iter().map(member).collect()
            }
        }
    }

    /// The chunks that an operation of `rank` reads and writes; a port put's effects are its proxy's.
    pub(in crate::plan) fn effects(&self, rank: u32, op: &Op) -> Effects {
        match op {
            Op::Move(moved) => {
                let all = |side: &[Operand]| {
                    side.iter().flat_map(|operand| self.spans(rank, operand, moved.count)).collect()
                };
                debug_assert!(operands(moved).count() > 0);
                Effects { reads: all(&moved.sources), writes: all(&moved.targets) }
            }
            Op::Port(put) => {
                self.put(rank, self.plan.ranks[rank as usize].port_channels[put.channel as usize], put)
            }
            _ => Effects::default(),
        }
    }

    /// The chunks that the proxy of a put to `peer` reads and writes.
    pub(in crate::plan) fn put(&self, rank: u32, peer: u32, put: &PortPut) -> Effects {
        // Only a put that forwards waits for the packets that it reads.
        let form = if put.forward { put.form } else { Form::Plain };
        let reads = vec![self.span(rank, put.source, put.count, form)];
        Effects { reads, writes: vec![self.span(peer, put.target, put.count, put.form)] }
    }
}

/// Stands for no timeline, or for several, in [`Sharing`].
const NOBODY: u32 = u32::MAX;
const SEVERAL: u32 = u32::MAX - 1;

/// The users of each chunk. A timeline is a block or the proxy of a port channel.
#[derive(Debug)]
pub(in crate::plan) struct Sharing<'p> {
    pub(in crate::plan) map: Map<'p>,
    /// Number of each rank's first proxy.
    proxies: Vec<u32>,
    /// For each rank and chunk, who writes it and who reads or writes it.
    users: Vec<Vec<[u32; 2]>>,
}

/// A block's number as a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Timeline(u32);

impl<'p> Sharing<'p> {
    pub(in crate::plan) fn of(plan: &'p Plan) -> Self {
        let map = Map::of(plan);
        let users = map.chunks().map(|chunks| vec![[NOBODY; 2]; chunks]).collect();
        let mut next = 0;
        let first = |rank: &RankPlan| {
            let first = next;
            next += u32::try_from(rank.port_channels.len()).unwrap_or(0);
            first
        };
        let proxies = plan.ranks.iter().map(first).collect();
        let mut sharing = Self { map, proxies, users };
        for (block, rank, contents) in blocks(plan) {
            for op in contents.ops.iter().flat_map(flat) {
                let timeline = match op {
                    Op::Port(put) => sharing.proxy(rank, put.channel),
                    _ => block,
                };
                sharing.note(timeline, &sharing.map.effects(rank, op));
            }
        }
        sharing
    }

    /// The timeline of a port channel's proxy: numbered downwards, as blocks are upwards.
    fn proxy(&self, rank: u32, channel: u32) -> Timeline {
        Timeline(SEVERAL - 1 - self.proxies[rank as usize] - channel)
    }

    fn note(&mut self, Timeline(timeline): Timeline, effects: &Effects) {
        let sides = [(&effects.reads, 1..2), (&effects.writes, 0..2)];
        for (spans, users) in sides {
            for span in spans {
                let chunks = &mut self.users[span.rank as usize];
                for user in chunks[span.range()].iter_mut().flat_map(|chunk| &mut chunk[users.clone()]) {
                    *user = if *user == NOBODY || *user == timeline { timeline } else { SEVERAL };
                }
            }
        }
    }

    /// Whether anybody other than the timeline, a block of `rank`, may access these chunks so that the order matters: other
    /// blocks and proxies, and, if they are a peer's input or output, the peer's caller.
    pub(in crate::plan) fn shared(
        &self,
        Timeline(timeline): Timeline,
        rank: u32,
        span: &Span,
        write: bool,
    ) -> bool {
        if span.callers && span.rank != rank {
            return true;
        }
        let side = usize::from(write);
        self.users[span.rank as usize][span.range()].iter().any(|users| {
            let user = users[side];
            user != NOBODY && user != timeline
        })
    }
}

/// All blocks, each with its timeline and rank.
pub(in crate::plan) fn blocks(plan: &Plan) -> impl Iterator<Item = (Timeline, u32, &Block)> {
    let all = (0..).zip(&plan.ranks).flat_map(|(rank, plan)| plan.blocks.iter().map(move |b| (rank, b)));
    (0..).zip(all).map(|(number, (rank, block))| (Timeline(number), rank, block))
}

/// An operation and, if it is a loop, those in it.
pub(in crate::plan) fn flat(operation: &Operation) -> impl Iterator<Item = &Op> {
    let inner = match &operation.op {
        Op::Loop(repeated) => &repeated.body[..],
        _ => &[],
    };
    std::iter::once(&operation.op).chain(inner.iter().map(|operation| &operation.op))
}

/// How many operations read each chunk, of all ranks.
#[derive(Debug)]
pub(in crate::plan) struct Readers(Vec<Vec<u32>>);

impl Readers {
    pub(in crate::plan) fn of(plan: &Plan) -> Self {
        let map = Map::of(plan);
        let mut readers = Self(map.chunks().map(|chunks| vec![0; chunks]).collect());
        for (_, rank, block) in blocks(plan) {
            for op in block.ops.iter().flat_map(flat) {
                readers.each(&map.effects(rank, op).reads, |count| *count = count.saturating_add(1));
            }
        }
        readers
    }

    fn each(&mut self, spans: &[Span], change: impl Fn(&mut u32)) {
        for span in spans {
            self.0[span.rank as usize][span.range()].iter_mut().for_each(&change);
        }
    }

    /// An operation reads these chunks no more.
    pub(in crate::plan) fn forget(&mut self, spans: &[Span]) {
        self.each(spans, |count| *count = count.saturating_sub(1));
    }

    /// Whether any operation reads any of the chunks.
    pub(in crate::plan) fn any(&self, spans: &[Span]) -> bool {
        spans.iter().any(|span| self.0[span.rank as usize][span.range()].iter().any(|&count| count > 0))
    }

    /// Whether one operation at most reads each of the chunks.
    pub(in crate::plan) fn only(&self, spans: &[Span]) -> bool {
        spans.iter().all(|span| self.0[span.rank as usize][span.range()].iter().all(|&count| count <= 1))
    }
}
