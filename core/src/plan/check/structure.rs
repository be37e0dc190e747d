//! Each operation alone: ranges, types, channels, counts.

use std::collections::HashMap;

use super::collective::Kind;
use super::copy_engine;
use super::ends::Ends;
use super::finding::{Finding, FindingKind, Location, MOST};
use super::geometry::operands;
use super::ir::{
    Barrier, Buffer, Channel, ChannelKind, Form, Loop, Move, Op, Operand, Operation, Place, Plan, PortPut,
    Protocol, RankPlan,
};
use super::position::Position;

/// Most blocks that share a range: a kernel multiplies a remainder by a member in 32 bits.
const MOST_SHARES: u32 = 1 << 16;
/// Most turns of a loop: as many chunks as a check can follow.
const MOST_TURNS: u32 = 1 << 23;

/// Mistakes that each operation shows alone. A plan without any can be walked without further checks of ranges.
pub fn structure(plan: &Plan) -> Vec<Finding> {
    let mut structure = Structure { plan, ends: Ends::of(plan), findings: Vec::new() };
    structure.settings();
    for rank in 0..plan.ranks.len() {
        structure.rank(u32::try_from(rank).unwrap_or(u32::MAX));
    }
    structure.findings.truncate(MOST);
    structure.findings
}

struct Structure<'p> {
    plan: &'p Plan,
    ends: Ends,
    findings: Vec<Finding>,
}

impl Structure<'_> {
    fn add(&mut self, kind: FindingKind, position: impl Into<Option<Position>>, message: impl Into<String>) {
        if self.findings.len() < MOST {
            self.findings.push(Finding::new(kind, position, message));
        }
    }

    fn settings(&mut self) {
        let (plan, settings) = (self.plan, &self.plan.settings);
        let ranks = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
        let mut say =
            |message: String| self.findings.push(Finding::new(FindingKind::Settings, None, message));
        if ranks == 0 {
            return say("the plan has no ranks".into());
        }
        let threads = settings.threads_per_block;
        if threads == 0 || threads > 1024 || threads % 32 != 0 {
            say(format!("{threads} threads per block; use a multiple of 32 up to 1024"));
        }
        if !settings.alignment.is_power_of_two() {
            say(format!("an alignment of {} bytes; use a power of two", settings.alignment));
        }
        if settings.min_bytes > settings.max_bytes {
            say(format!(
                "the smallest message, {} bytes, is larger than the largest, {}",
                settings.min_bytes, settings.max_bytes
            ));
        }
        if let Some(root) = plan.collective.kind.root()
            && root >= ranks
        {
            say(format!("the root, rank {root}, is none of the plan's {ranks} ranks"));
        }
        if matches!(plan.collective.kind, Kind::Custom(_)) {
            return;
        }
        let first = &plan.ranks[0];
        if let Some(misfit) = plan.collective.kind.misfit(ranks, first.input_chunks, first.output_chunks) {
            say(misfit);
        }
        let counts = |rank: &RankPlan| (rank.input_chunks, rank.output_chunks);
        if let Some(rank) = plan.ranks.iter().position(|rank| counts(rank) != counts(first)) {
            say(format!(
                "rank {rank} has other numbers of input and output chunks than rank 0; all need the same"
            ));
        }
    }

    fn rank(&mut self, rank: u32) {
        let rank_plan = &self.plan.ranks[rank as usize];
        for kind in [ChannelKind::Memory, ChannelKind::Port] {
            for (index, &peer) in (0..).zip(rank_plan.peers(kind)) {
                let end = self.ends.end(rank, Channel { kind, index });
                if self.ends.other(end).is_none() {
                    let message = format!(
                        "{kind:?} channel {index} of rank {rank} leads to rank {peer}, which has no channel to pair it with; \
                         give both ranks as many channels to each other"
                    );
                    let first = self.first(rank, |op| self.uses(rank, Channel { kind, index }, op));
                    self.add(FindingKind::Bounds, first, message);
                }
            }
        }
        self.switches(rank);
        let mut barriers: HashMap<u32, (Barrier, Vec<u32>)> = HashMap::new();
        for (block, contents) in (0..).zip(&rank_plan.blocks) {
            for (index, operation) in contents.ops.iter().enumerate() {
                let position = Position::of(self.plan, rank, block, index, None);
                self.operation(position, &operation.op, None);
                if contents.copy_engine
                    && let Some(why) = copy_engine::refusal(&self.plan.settings, &operation.op)
                {
                    self.add(FindingKind::Operands, position, why);
                }
                if let Op::Loop(repeated) = &operation.op {
                    self.repeated(position, repeated);
                }
                for op in flat(operation) {
                    if let Op::Barrier(barrier) = op {
                        let (first, blocks) = barriers.entry(barrier.id).or_insert((*barrier, Vec::new()));
                        if first.blocks != barrier.blocks {
                            let message =
                                format!("barrier {} is of {} blocks elsewhere", barrier.id, first.blocks);
                            self.add(FindingKind::Operands, position, message);
                        }
                        if blocks.last() != Some(&block) {
                            blocks.push(block);
                        }
                    }
                }
            }
        }
        let mut barriers: Vec<_> = barriers.into_values().collect();
        barriers.sort_by_key(|(barrier, _)| barrier.id);
        for (barrier, blocks) in barriers {
            if barrier.blocks as usize != blocks.len() {
                let message = format!(
                    "barrier {} of rank {rank} is of {} blocks, but blocks {blocks:?} come to it",
                    barrier.id, barrier.blocks
                );
                let met = |op: &Op| matches!(op, Op::Barrier(other) if other.id == barrier.id);
                let first = self.first(rank, met);
                self.add(FindingKind::Pairing, first, message);
            }
        }
    }

    /// The first operation of a rank that `is` one, for a finding. None is looked for behind as many findings as are told: a file may have
    /// as many mistakes as operations.
    fn first(&self, rank: u32, is: impl Fn(&Op) -> bool) -> Option<Position> {
        (self.findings.len() < MOST).then(|| Position::first(self.plan, rank, is))?
    }

    fn uses(&self, rank: u32, channel: Channel, op: &Op) -> bool {
        let peer = self.plan.ranks[rank as usize].peers(channel.kind)[channel.index as usize];
        let reaches = |operand: &Operand| matches!(operand.place, Place::Remote { rank, .. } if rank == peer);
        match op {
            Op::Signal { channel: used, .. } | Op::Wait { channel: used, .. } => *used == channel,
            Op::Flush { channel: used } => *used == channel.index && channel.kind == ChannelKind::Port,
            Op::Port(put) => put.channel == channel.index && channel.kind == ChannelKind::Port,
            Op::Move(moved) => channel.kind == ChannelKind::Memory && operands(moved).any(reaches),
            _ => false,
        }
    }

    fn switches(&mut self, rank: u32) {
        for (index, switch) in self.plan.ranks[rank as usize].switches.iter().enumerate() {
            let mut sorted = switch.ranks.clone();
            sorted.sort_unstable();
            sorted.dedup();
            let all = self.plan.ranks.len();
            let absent = sorted.iter().find(|&&member| {
                self.plan.ranks.get(member as usize).is_none_or(|other| !other.switches.contains(switch))
            });
            let message = if sorted.len() != switch.ranks.len() || !sorted.contains(&rank) {
                format!("switch {index} of rank {rank} must have this rank and others, each once")
            } else if let Some(absent) = absent {
                format!(
                    "switch {index} of rank {rank} has rank {absent}, which of {all} ranks does not have the same switch"
                )
            } else {
                continue;
            };
            let uses =
                |operand: &Operand| matches!(operand.place, Place::Switch(used) if used as usize == index);
            let first = self.first(rank, |op| matches!(op, Op::Move(moved) if operands(moved).any(uses)));
            self.add(FindingKind::Bounds, first, message);
        }
    }

    fn repeated(&mut self, position: Position, repeated: &Loop) {
        if repeated.unit == 0 || repeated.chunks == 0 {
            self.add(
                FindingKind::Operands,
                position,
                "a loop needs a unit of at least one byte and at least one chunk",
            );
        }
        // Without a move, whose chunks must exist, a few bytes of a file could ask for any number of turns.
        let chunks = |rank: &RankPlan| rank.input_chunks.max(rank.output_chunks).max(rank.scratch_chunks);
        let most = self.plan.ranks.iter().map(chunks).max().unwrap_or(0).min(MOST_TURNS);
        if repeated.chunks > most {
            let message = format!("a loop over {} chunks; no buffer has more than {most}", repeated.chunks);
            self.add(FindingKind::Bounds, position, message);
        }
        for operation in &repeated.body {
            let position = Position { inner: Some(operation.origin), ..position };
            self.operation(position, &operation.op, Some(repeated));
        }
    }

    fn operation(&mut self, position: Position, op: &Op, within: Option<&Loop>) {
        let rank = &self.plan.ranks[position.rank as usize];
        let known = |count: usize, index: u32| (index as usize) < count;
        match op {
            Op::Sync => {}
            Op::Barrier(barrier) => {
                if barrier.blocks == 0 {
                    self.add(FindingKind::Operands, position, "a barrier of no blocks");
                }
            }
            Op::Signal { channel, .. } | Op::Wait { channel, .. } => {
                let all = rank.peers(channel.kind).len();
                if !known(all, channel.index) {
                    let message = format!(
                        "{:?} channel {} does not exist; the rank has {all}",
                        channel.kind, channel.index
                    );
                    self.add(FindingKind::Bounds, position, message);
                }
            }
            Op::Flush { channel } => self.port_channel(position, *channel),
            Op::Acquire { semaphore } | Op::Release { semaphore } => {
                let all = rank.semaphores.len();
                if !known(all, *semaphore) {
                    let message = format!("semaphore {semaphore} does not exist; the rank has {all}");
                    self.add(FindingKind::Bounds, position, message);
                }
            }
            Op::Move(moved) => {
                self.count(position, moved.count, within);
                self.moved(position, moved);
            }
            Op::Port(put) => {
                self.count(position, put.count, within);
                self.port(position, put);
                self.port_beside_lines(position, put, within.is_some());
            }
            Op::Loop(_) => {
                if within.is_some() {
                    self.add(FindingKind::Operands, position, "a loop cannot stand in a loop");
                }
            }
        }
    }

    fn count(&mut self, position: Position, count: u32, within: Option<&Loop>) {
        if count == 0 {
            self.add(FindingKind::Operands, position, "the operation is of no chunks");
        }
        if let Some(repeated) = within.filter(|repeated| repeated.chunks != count) {
            let message = format!(
                "the operation is of {count} chunks in a loop over {}; both must be equal",
                repeated.chunks
            );
            self.add(FindingKind::Operands, position, message);
        }
    }

    fn port_channel(&mut self, position: Position, channel: u32) {
        let all = self.plan.ranks[position.rank as usize].port_channels.len();
        if channel as usize >= all {
            let message = format!("port channel {channel} does not exist; the rank has {all}");
            self.add(FindingKind::Bounds, position, message);
        }
    }

    /// Checks that `count` chunks from `first` exist in a buffer.
    fn range(&mut self, position: Position, rank: u32, buffer: Buffer, first: u32, count: u32) {
        let Some(rank_plan) = self.plan.ranks.get(rank as usize) else { return };
        let all = rank_plan.chunks(buffer);
        let end = u64::from(first) + u64::from(count);
        if end > u64::from(all) {
            let chunk = first.max(all);
            let message = format!("chunks {first}..{end} do not exist; the buffer has {all}");
            if self.findings.len() < MOST {
                let finding = Finding::new(FindingKind::Bounds, position, message);
                self.findings.push(finding.about(Location { rank, buffer, chunk }));
            }
        }
    }

    fn moved(&mut self, position: Position, moved: &Move) {
        if moved.sources.is_empty() || moved.targets.is_empty() {
            self.add(FindingKind::Operands, position, "a move needs a source and a target");
        }
        let switch = moved.sources.iter().any(|source| matches!(source.place, Place::Switch(_)));
        if moved.reduction.is_some() != (moved.sources.len() > 1 || switch) {
            let message = "a reduction is needed with several sources or a switch, and only then";
            self.add(FindingKind::Operands, position, message);
        }
        if let Some(share) = moved.share.filter(|share| share.of > MOST_SHARES) {
            let message =
                format!("a group of {} blocks; kernels divide ranges by at most {MOST_SHARES}", share.of);
            self.add(FindingKind::Limit, position, message);
        }
        if let Some(share) = moved.share.filter(|share| share.member >= share.of) {
            let message = format!("block {} of a group of {}", share.member, share.of);
            self.add(FindingKind::Operands, position, message);
        }
        for operand in operands(moved) {
            self.operand(position, operand, moved.count);
        }
        self.overlap(position, moved);
    }

    /// A proxy copies bytes in any order, which would tear lines; and kernels cut slices where units of lines begin, which proxies
    /// do not.
    fn port_beside_lines(&mut self, position: Position, put: &PortPut, in_loop: bool) {
        if self.plan.settings.protocol != Protocol::Ll128 {
            return;
        }
        if put.form == Form::Packets {
            let message = "LL128 packets go by memory channels only, and this puts packets through a port; use protocol LL";
            self.add(FindingKind::Operands, position, message);
        }
        if in_loop {
            let message =
                "a port put in a loop has other slices than kernels with LL128 packets; use protocol LL";
            self.add(FindingKind::Operands, position, message);
        }
    }

    fn operand(&mut self, position: Position, operand: &Operand, count: u32) {
        let rank_plan = &self.plan.ranks[position.rank as usize];
        let buffer = match operand.place {
            Place::Local(buffer) => {
                self.range(position, position.rank, buffer, operand.first, count);
                buffer
            }
            Place::Remote { rank, buffer } => {
                if !rank_plan.memory_channels.contains(&rank) {
                    let message = format!("reaches rank {rank} without a memory channel to it; add one");
                    self.add(FindingKind::Bounds, position, message);
                }
                self.range(position, rank, buffer, operand.first, count);
                buffer
            }
            Place::Switch(index) => {
                let Some(switch) = rank_plan.switches.get(index as usize) else {
                    let message =
                        format!("switch {index} does not exist; the rank has {}", rank_plan.switches.len());
                    return self.add(FindingKind::Bounds, position, message);
                };
                for &member in &switch.ranks {
                    self.range(position, member, switch.buffer, operand.first, count);
                }
                switch.buffer
            }
        };
        if operand.form == Form::Packets && buffer != Buffer::Scratch {
            self.add(
                FindingKind::Operands,
                position,
                "packets lie in scratch only; the user's buffers hold plain data",
            );
        }
    }

    /// A source and a target, or two targets, may be the same chunks, but not shifted: elements would be moved in no order.
    fn overlap(&mut self, position: Position, moved: &Move) {
        for target in &moved.targets {
            let shifted = |other: &&Operand| {
                other.place == target.place
                    && other.first != target.first
                    && other.first.abs_diff(target.first) < moved.count
            };
            if operands(moved).any(|other| shifted(&other)) {
                self.add(FindingKind::Operands, position, "operands overlap in part; split the move");
                return;
            }
        }
        let twice = moved.targets.iter().enumerate().any(|(index, target)| {
            moved.targets[..index]
                .iter()
                .any(|other| other.place == target.place && other.first == target.first)
        });
        if twice {
            self.add(FindingKind::Operands, position, "two targets are the same chunks; remove one");
        }
    }

    fn port(&mut self, position: Position, put: &PortPut) {
        self.port_channel(position, put.channel);
        let peers = &self.plan.ranks[position.rank as usize].port_channels;
        let peer = peers.get(put.channel as usize).copied();
        self.range(position, position.rank, put.source.0, put.source.1, put.count);
        if let Some(peer) = peer {
            self.range(position, peer, put.target.0, put.target.1, put.count);
        }
        let scratch = put.source.0 == Buffer::Scratch && put.target.0 == Buffer::Scratch;
        if put.form == Form::Packets && !scratch {
            self.add(
                FindingKind::Operands,
                position,
                "packets lie in scratch only; the user's buffers hold plain data",
            );
        }
        if put.forward && put.form != Form::Packets {
            self.add(
                FindingKind::Operands,
                position,
                "only packets can be waited for before they are put on",
            );
        }
    }
}

/// An operation and, if it is a loop, those in it.
pub(super) fn flat(operation: &Operation) -> impl Iterator<Item = &Op> {
    let inner = match &operation.op {
        Op::Loop(repeated) => &repeated.body[..],
        _ => &[],
    };
    std::iter::once(&operation.op).chain(inner.iter().map(|operation| &operation.op))
}
