//! Replication: several instances of a program, each on its own part of the data.
//!
//! Every chunk of the plan becomes as many as there are instances, and instance i does on its chunks what the plan did on the
//! whole: with its own blocks, channels, semaphores, barriers and scratch. Instances have nothing in common, so that the
//! result and the order of each instance are those of the plan.

use super::check::MAX_BLOCKS;
use super::collective::Kind;
use super::ir::{
    Barrier, Block, Buffer, Channel, Loop, Move, Op, Operand, Operation, Place, Plan, PortPut, RankPlan,
};
use super::{checked, refused};
use crate::error::Result;

/// Which chunks, blocks and channels of the new plan belong to an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Each in turn: chunk c of instance i of n is `c * n + i`. The parts of an old chunk stay where it was, so that each byte of
    /// the message is handled as before.
    #[default]
    Interleaved,
    /// One instance after the other: chunks that were neighbours stay so. Chunks for or of one rank are still together, as the
    /// collective demands: within each rank's part, instance i has the i-th run.
    None,
}

/// Makes `instances` of a plan.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan's structure is wrong, if there are no instances or too many to
/// count, or if chunks of a collective that only its author knows are not interleaved.
pub fn replicate(plan: &Plan, instances: u32, policy: Policy) -> Result<Plan> {
    checked(plan)?;
    if instances == 0 {
        return Err(refused("a plan of no instances; use one or more"));
    }
    let most = plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
    if most.saturating_mul(instances as usize) > MAX_BLOCKS {
        return Err(refused(format!(
            "{instances} instances of {most} blocks: a rank has at most {MAX_BLOCKS} blocks"
        )));
    }
    if policy == Policy::None && instances > 1 && matches!(plan.collective.kind, Kind::Custom(_)) {
        return Err(refused(
            "only its author knows which chunks of a custom collective go together; interleave its instances",
        ));
    }
    let mut replicated = plan.clone();
    for (rank, slot) in plan.ranks.iter().zip(&mut replicated.ranks) {
        *slot = all(plan, rank, instances, policy)?;
    }
    Ok(replicated)
}

fn times(number: u32, instances: u32) -> Result<u32> {
    number
        .checked_mul(instances)
        .ok_or_else(|| refused(format!("{instances} instances are too many to count")))
}

/// A rank with all instances.
fn all(plan: &Plan, rank: &RankPlan, instances: u32, policy: Policy) -> Result<RankPlan> {
    let chunks = |buffer| times(rank.chunks(buffer), instances);
    let barriers = barriers(rank);
    let instance = |number| Instance { plan, rank, number, of: instances, policy, barriers };
    times(barriers, instances)?;
    for count in [rank.memory_channels.len(), rank.port_channels.len(), rank.semaphores.len()] {
        times(count.try_into().unwrap_or(u32::MAX), instances)?;
    }
    Ok(RankPlan {
        input_chunks: chunks(Buffer::Input)?,
        output_chunks: chunks(Buffer::Output)?,
        scratch_chunks: match policy {
            Policy::Interleaved => chunks(Buffer::Scratch)?,
            Policy::None => times(scratch(plan, rank), instances)?,
        },
        memory_channels: repeated(&rank.memory_channels, instances, policy, |_, &peer| peer),
        port_channels: repeated(&rank.port_channels, instances, policy, |_, &peer| peer),
        // A switch holds no state: all instances use the same.
        switches: rank.switches.clone(),
        semaphores: repeated(&rank.semaphores, instances, policy, |_, &value| value),
        blocks: repeated(&rank.blocks, instances, policy, |number, block| Block {
            ops: instance(number).operations(&block.ops),
            copy_engine: block.copy_engine,
        }),
    })
}

/// Chunks of scratch that every instance has: as many at all ranks if a switch is over scratch, because it names the same chunk
/// at all its members.
fn scratch(plan: &Plan, rank: &RankPlan) -> u32 {
    let over = |rank: &RankPlan| rank.switches.iter().any(|switch| switch.buffer == Buffer::Scratch);
    match plan.ranks.iter().any(over) {
        true => plan.ranks.iter().map(|rank| rank.scratch_chunks).max().unwrap_or(0),
        false => rank.scratch_chunks,
    }
}

/// One number more than the largest of a rank's barriers.
fn barriers(rank: &RankPlan) -> u32 {
    let ops = rank.blocks.iter().flat_map(|block| &block.ops).flat_map(super::effects::flat);
    let ids = ops.filter_map(|op| match op {
        Op::Barrier(barrier) => Some(barrier.id),
        _ => None,
    });
    ids.max().map_or(0, |id| id.saturating_add(1))
}

/// Every item once for each instance, in the places that [`Instance::place`] gives.
fn repeated<T, U>(items: &[T], instances: u32, policy: Policy, make: impl Fn(u32, &T) -> U) -> Vec<U> {
    match policy {
        Policy::Interleaved => {
            items.iter().flat_map(|item| (0..instances).map(|i| make(i, item)).collect::<Vec<U>>()).collect()
        }
        Policy::None => {
            (0..instances).flat_map(|i| items.iter().map(|item| make(i, item)).collect::<Vec<U>>()).collect()
        }
    }
}

/// An instance of a rank.
#[derive(Clone, Copy)]
struct Instance<'p> {
    plan: &'p Plan,
    rank: &'p RankPlan,
    number: u32,
    of: u32,
    policy: Policy,
    /// Barriers of the rank before.
    barriers: u32,
}

impl Instance<'_> {
    /// Number of something of which the rank has had `all`.
    fn place(&self, index: u32, all: usize) -> u32 {
        match self.policy {
            Policy::Interleaved => index * self.of + self.number,
            Policy::None => self.number * u32::try_from(all).unwrap_or(0) + index,
        }
    }

    /// Number of a chunk of a buffer of any rank.
    fn chunk(&self, rank: &RankPlan, buffer: Buffer, chunk: u32) -> u32 {
        if self.policy == Policy::Interleaved {
            return chunk * self.of + self.number;
        }
        let part = self.part(rank, buffer).max(1);
        (chunk / part * self.of + self.number) * part + chunk % part
    }

    /// Chunks that go together: those of or for one rank.
    fn part(&self, rank: &RankPlan, buffer: Buffer) -> u32 {
        let ranks = u32::try_from(self.plan.ranks.len()).unwrap_or(1);
        match (&self.plan.collective.kind, buffer) {
            (_, Buffer::Scratch) => scratch(self.plan, rank),
            (Kind::AllGather | Kind::Gather { .. }, _) => rank.input_chunks,
            (Kind::ReduceScatter | Kind::Scatter { .. }, _) => rank.output_chunks,
            (Kind::AllToAll, _) => rank.input_chunks / ranks,
            _ => rank.chunks(buffer),
        }
    }

    fn operations(&self, ops: &[Operation]) -> Vec<Operation> {
        let mut made = Vec::with_capacity(ops.len());
        for operation in ops {
            let mut add = |op: Op| made.push(op.at(operation.origin));
            match &operation.op {
                Op::Move(moved) => {
                    // Blocks that share ranges share each chunk, so that the same block has the same elements of every range.
                    let whole = moved.share.is_none();
                    self.runs(moved.count, whole, |chunk| self.shifted(moved, chunk))
                        .into_iter()
                        .for_each(|moved| add(Op::Move(Box::new(moved))));
                }
                Op::Port(put) => {
                    let mut puts = self.runs(put.count, true, |chunk| self.put(put, chunk));
                    if let Some((last, others)) = puts.split_last_mut() {
                        (last.signal, last.flush) = (put.signal, put.flush);
                        others.iter_mut().for_each(|put| (put.signal, put.flush) = (false, false));
                    }
                    puts.into_iter().for_each(|put| add(Op::Port(Box::new(put))));
                }
                // A loop on the other side of a signal goes around as often only if both are cut alike: at each chunk.
                Op::Loop(repeated) => (0..repeated.chunks).for_each(|chunk| {
                    let body = self.turn(&repeated.body, chunk);
                    add(Op::Loop(Box::new(Loop { body, chunks: 1, unit: repeated.unit })));
                }),
                op => add(self.control(op)),
            }
        }
        made
    }

    /// A loop's body for one of its chunks.
    fn turn(&self, body: &[Operation], chunk: u32) -> Vec<Operation> {
        let one = |operation: &Operation| {
            let op = match &operation.op {
                Op::Move(moved) => Op::Move(Box::new(self.shifted(moved, chunk))),
                Op::Port(put) => Op::Port(Box::new(self.put(put, chunk))),
                op => self.control(op),
            };
            op.at(operation.origin)
        };
        body.iter().map(one).collect()
    }

    /// `count` pieces of one chunk each, joined where all their chunks are neighbours, if they may be.
    fn runs<T: Piece>(&self, count: u32, whole: bool, piece: impl Fn(u32) -> T) -> Vec<T> {
        let mut runs: Vec<T> = Vec::new();
        for chunk in 0..count {
            let next = piece(chunk);
            match runs.last_mut() {
                Some(last) if whole && last.followed_by(&next) => *last.count() += 1,
                _ => runs.push(next),
            }
        }
        runs
    }

    /// One chunk of a move.
    fn shifted(&self, moved: &Move, chunk: u32) -> Move {
        let one = |operand: &Operand| {
            let (rank, buffer) = match operand.place {
                Place::Local(buffer) => (self.rank, buffer),
                Place::Remote { rank, buffer } => (&self.plan.ranks[rank as usize], buffer),
                Place::Switch(switch) => (self.rank, self.rank.switches[switch as usize].buffer),
            };
            Operand { first: self.chunk(rank, buffer, operand.first + chunk), ..*operand }
        };
        let all = |operands: &[Operand]| operands.iter().map(one).collect();
        Move { sources: all(&moved.sources), targets: all(&moved.targets), count: 1, ..*moved }
    }

    /// One chunk of a put.
    fn put(&self, put: &PortPut, chunk: u32) -> PortPut {
        let peer = self.rank.port_channels[put.channel as usize];
        let at = |rank: &RankPlan, (buffer, first): (Buffer, u32)| {
            (buffer, self.chunk(rank, buffer, first + chunk))
        };
        let (source, target) = (at(self.rank, put.source), at(&self.plan.ranks[peer as usize], put.target));
        let channel = self.place(put.channel, self.rank.port_channels.len());
        PortPut { channel, source, target, count: 1, ..*put }
    }

    fn control(&self, op: &Op) -> Op {
        let end = |channel: Channel| {
            let index = self.place(channel.index, self.rank.peers(channel.kind).len());
            Channel { index, ..channel }
        };
        let semaphore = |index| self.place(index, self.rank.semaphores.len());
        match *op {
            Op::Barrier(Barrier { id, blocks }) => {
                Op::Barrier(Barrier { id: self.place(id, self.barriers as usize), blocks })
            }
            Op::Signal { channel, relaxed } => Op::Signal { channel: end(channel), relaxed },
            Op::Wait { channel } => Op::Wait { channel: end(channel) },
            Op::Flush { channel } => {
                Op::Flush { channel: self.place(channel, self.rank.port_channels.len()) }
            }
            Op::Acquire { semaphore: index } => Op::Acquire { semaphore: semaphore(index) },
            Op::Release { semaphore: index } => Op::Release { semaphore: semaphore(index) },
            _ => op.clone(),
        }
    }
}

/// An operation over neighbouring chunks.
trait Piece {
    fn count(&mut self) -> &mut u32;
    /// Whether `next`, of one chunk, goes on where this ends.
    fn followed_by(&self, next: &Self) -> bool;
}

impl Piece for Move {
    fn count(&mut self) -> &mut u32 {
        &mut self.count
    }

    fn followed_by(&self, next: &Self) -> bool {
        let pairs = self.sources.iter().zip(&next.sources).chain(self.targets.iter().zip(&next.targets));
        { pairs }.all(|(mine, other)| mine.first + self.count == other.first)
    }
}

impl Piece for PortPut {
    fn count(&mut self) -> &mut u32 {
        &mut self.count
    }

    fn followed_by(&self, next: &Self) -> bool {
        self.source.1 + self.count == next.source.1 && self.target.1 + self.count == next.target.1
    }
}
