//! A block's operations as steps of a kernel.

use std::collections::BTreeMap;

use aqueduct_ptx::plan as ptx;
use ptx::Number::Fixed;

use super::averages::Averages;
use super::check::LOOP_UNIT;
use super::control::{Control, Counters};
use super::ir::{
    Buffer, Channel, ChannelKind, Form, Loop, Move, Op, Operand, Operation, Place, Plan, PortPut, RankPlan,
    Reduction,
};
use super::mark::number;
use super::operands::{Address, Addresses, Store, by_multicast, expanded, in_store, shared};
use super::position::Position;
use super::refusal::refused;
use super::rows;
use super::teams::Team;
use super::ways::Ways;
use crate::error::Result;

/// How a kernel reduces.
#[derive(Clone, Copy)]
pub(super) struct Reductions<'p, 'a> {
    pub(super) element: ptx::Element,
    /// In place of the plan's own.
    pub(super) reduction: Option<Reduction>,
    pub(super) averages: &'a Averages<'p>,
}

/// The steps of every block of a rank that has threads.
pub(super) fn of_rank(
    plan: &Plan,
    rank: u32,
    control: &Control,
    reductions: Reductions<'_, '_>,
    addresses: &mut Addresses,
    ways: Ways<'_>,
) -> Result<Vec<Vec<ptx::Step>>> {
    let rank_plan = &plan.ranks[rank as usize];
    single_users(rank, rank_plan)?;
    let mut translator = Translator::new(plan, rank, control, reductions, addresses, ways);
    let blocks = (0..).zip(&rank_plan.blocks).filter(|(_, block)| !block.copy_engine);
    blocks
        .map(|(index, block)| {
            let at = |op: usize, inner| Position::of(plan, rank, index, op, inner);
            translator.steps(&block.ops, None, &|op| at(op, None), &at)
        })
        .collect()
}

/// The steps of some control operations of a block, which need no sync between each other.
pub(super) fn of_controls<'p>(
    plan: &Plan,
    rank: u32,
    control: &Control,
    averages: &Averages<'_>,
    ops: impl IntoIterator<Item = (Position, &'p Op)>,
    addresses: &mut Addresses,
) -> Result<Vec<ptx::Step>> {
    let reductions = Reductions { element: ptx::Element::U8, reduction: None, averages };
    let mut translator = Translator::new(plan, rank, control, reductions, addresses, Ways::default());
    let mut steps = Vec::new();
    for (position, op) in ops {
        join(&mut steps, translator.step(op, position)?);
    }
    Ok(steps)
}

struct Translator<'p, 'a> {
    plan: &'p Plan,
    rank: u32,
    rank_plan: &'p RankPlan,
    control: &'p Control,
    reductions: Reductions<'p, 'a>,
    addresses: &'a mut Addresses,
    ways: Ways<'a>,
    /// The control areas of peers so far: each takes a walk over all of a peer's operations.
    controls: BTreeMap<u32, Control>,
    /// The peer and its end of each memory channel.
    ends: Vec<Option<(u32, Channel)>>,
}

/// The position of an operation of a list, and that of one in a loop of it.
type At<'f> = &'f dyn Fn(usize) -> Position;
type Inside<'f> = &'f dyn Fn(usize, Option<usize>) -> Position;

impl<'p, 'a> Translator<'p, 'a> {
    fn new(
        plan: &'p Plan,
        rank: u32,
        control: &'p Control,
        reductions: Reductions<'p, 'a>,
        addresses: &'a mut Addresses,
        ways: Ways<'a>,
    ) -> Self {
        let (rank_plan, controls, ends) =
            (&plan.ranks[rank as usize], BTreeMap::new(), other_ends(plan, rank));
        Self { plan, rank, rank_plan, control, reductions, addresses, ways, controls, ends }
    }

    /// Steps of a block, or of the loop that is its operation `within`.
    fn steps(
        &mut self,
        ops: &[Operation],
        within: Option<usize>,
        at: At<'_>,
        inside: Inside<'_>,
    ) -> Result<Vec<ptx::Step>> {
        let mut steps = Vec::new();
        for (index, operation) in ops.iter().enumerate() {
            if self.ways.records.is_some() && !matches!(operation.op, Op::Loop(_)) {
                let number = within.map_or_else(|| number(index, None), |op| number(op, Some(index)));
                steps.push(ptx::Step::Mark { number });
            }
            match &operation.op {
                Op::Loop(repeated) => {
                    let inner = |inner| inside(index, Some(inner));
                    steps.push(self.repeated(repeated, index, at(index), &inner)?);
                }
                op => join(&mut steps, self.step(op, at(index))?),
            }
        }
        Ok(steps)
    }

    fn repeated(
        &mut self,
        repeated: &Loop,
        index: usize,
        position: Position,
        at: At<'_>,
    ) -> Result<ptx::Step> {
        if !repeated.unit.is_multiple_of(LOOP_UNIT) {
            let message = format!(
                "{position}: a loop's unit of {} bytes is no multiple of {LOOP_UNIT}; round it",
                repeated.unit
            );
            return Err(refused(message));
        }
        // A loop in a loop is refused by the checks of structure.
        let body = self.steps(&repeated.body, Some(index), at, &|inner, _| at(inner))?;
        Ok(ptx::Step::Loop { unit: repeated.unit, chunks: Fixed(repeated.chunks), body })
    }

    fn step(&mut self, op: &Op, position: Position) -> Result<ptx::Step> {
        Ok(match op {
            Op::Sync => ptx::Step::Sync,
            Op::Barrier(barrier) => {
                let state = self.control.barrier(barrier.id).unwrap_or_default();
                ptx::Step::Barrier { state: Fixed(state), blocks: Fixed(barrier.blocks) }
            }
            Op::Signal { channel, .. } if channel.kind == ChannelKind::Port => {
                self.asked(channel.index, true, false)
            }
            Op::Wait { channel, .. } if channel.kind == ChannelKind::Port => {
                ptx::Step::PortWait { channel: self.handle(channel.index, Buffer::Scratch, Buffer::Scratch) }
            }
            Op::Signal { channel, relaxed } => {
                ptx::Step::Signal(vec![self.signal(*channel, *relaxed, position)?])
            }
            Op::Wait { channel } => ptx::Step::Wait(vec![self.wait(*channel, position)?]),
            Op::Acquire { semaphore } => ptx::Step::Acquire { at: Fixed(self.control.semaphore(*semaphore)) },
            Op::Release { semaphore } => ptx::Step::Release { at: Fixed(self.control.semaphore(*semaphore)) },
            Op::Move(moved) => {
                if self.plan.settings.variable_chunks {
                    return rows::moved(
                        self.plan,
                        self.rank,
                        moved,
                        self.reduced(moved),
                        position,
                        self.addresses,
                    )
                    .map(ptx::Step::Move);
                }
                let mut step = self.moved(moved);
                if step.reduction == Some(ptx::Reduction::Avg) {
                    let sources = moved.sources.iter().map(|source| self.members(source)).sum();
                    step.reduction = Some(self.reductions.averages.reduction(position, sources)?);
                }
                ptx::Step::Move(step)
            }
            Op::Flush { channel } => self.asked(*channel, false, true),
            Op::Port(put) => self.put(put, position)?,
            Op::Loop(_) => return Err(refused(format!("{position}: a loop within a loop"))),
        })
    }

    fn signal(&mut self, channel: Channel, relaxed: bool, position: Position) -> Result<ptx::Signal> {
        let (peer, end) = self.other_end(channel, position)?;
        if !self.controls.contains_key(&peer) {
            self.controls.insert(peer, Control::of(self.plan, &self.plan.ranks[peer as usize])?);
        }
        let theirs = self.controls[&peer].channel(end.index);
        let mine = self.control.channel(channel.index);
        Ok(signal(mine, peer, theirs, relaxed, self.addresses))
    }

    fn wait(&mut self, channel: Channel, position: Position) -> Result<ptx::Wait> {
        let (peer, _) = self.other_end(channel, position)?;
        let mine = self.control.channel(channel.index);
        Ok(wait(mine, peer))
    }

    fn other_end(&self, channel: Channel, position: Position) -> Result<(u32, Channel)> {
        let end = self.ends.get(channel.index as usize).copied().flatten();
        end.ok_or_else(|| refused(format!("{position}: its channel has no other end")))
    }

    fn put(&mut self, put: &PortPut, position: Position) -> Result<ptx::Step> {
        let peer = self.rank_plan.port_channels.get(put.channel as usize).copied();
        let peer =
            peer.ok_or_else(|| refused(format!("{position}: there is no port channel {}", put.channel)))?;
        if self.plan.settings.variable_chunks {
            let data = rows::put(self.plan, self.rank, put, peer, position, self.addresses)?;
            let channel = self.handle(put.channel, put.source.0, put.target.0);
            return Ok(ptx::Step::Port(ptx::Port {
                channel,
                put: Some(data),
                signal: put.signal,
                flush: put.flush,
            }));
        }
        let source = in_store(self.rank, put.source, put.form, self.addresses);
        let target = in_store(peer, put.target, put.form, self.addresses);
        let awaits = put.forward.then(|| {
            let mine = self.addresses.index(Address::Packets(self.rank));
            ptx::Operand { address: Fixed(mine), ..source }
        });
        let channel = self.handle(put.channel, put.source.0, put.target.0);
        let data = ptx::PortPut { source, target, count: Fixed(put.count), awaits, by_rows: false };
        Ok(ptx::Step::Port(ptx::Port { channel, put: Some(data), signal: put.signal, flush: put.flush }))
    }

    /// A request that carries no data.
    fn asked(&mut self, channel: u32, signal: bool, flush: bool) -> ptx::Step {
        let channel = self.handle(channel, Buffer::Scratch, Buffer::Scratch);
        ptx::Step::Port(ptx::Port { channel, put: None, signal, flush })
    }

    /// The handle of a port channel between two memories.
    fn handle(&mut self, channel: u32, source: Buffer, target: Buffer) -> ptx::Number {
        let (source, target) = (Store::of(source), Store::of(target));
        Fixed(self.addresses.index(Address::Port { channel, source, target }))
    }

    fn moved(&mut self, moved: &Move) -> ptx::Move {
        let reduction = self.reduced(moved);
        let loads = |source: &Operand| {
            let element = self.reductions.element;
            let reduces = reduction.is_some_and(|reduction| ptx::reduces_by_multicast(element, reduction));
            self.team(source).filter(|_| reduces && source.form == Form::Plain)
        };
        let by_multicast: Vec<_> = moved.sources.iter().map(loads).collect();
        let stores: Vec<_> = moved.targets.iter().map(|target| self.team(target)).collect();
        let sources = self.sides(&moved.sources, &by_multicast);
        let targets = self.sides(&moved.targets, &stores);
        // A switch of one rank reduces nothing.
        let reduction = reduction.filter(|_| sources.len() > 1 || sources.iter().any(|side| side.multicast));
        let share = moved.share.map(shared);
        ptx::Move { sources, targets, count: Fixed(moved.count), reduction, share, by_rows: false }
    }

    /// Operands of a kernel for those of a move, each with the number of its team if it is accessed by a multicast address.
    fn sides(&mut self, operands: &[Operand], teams: &[Option<u32>]) -> Vec<ptx::Operand> {
        let mut sides = Vec::new();
        for (operand, team) in operands.iter().zip(teams) {
            match (operand.place, team) {
                (Place::Switch(index), Some(number)) => {
                    let switch = &self.rank_plan.switches[index as usize];
                    sides.push(by_multicast(*number, switch, operand, self.addresses));
                }
                _ => sides.extend(expanded(self.rank, self.rank_plan, operand, self.addresses)),
            }
        }
        sides
    }

    /// The team whose multicast address reaches an operand, if there is one.
    fn team(&self, operand: &Operand) -> Option<u32> {
        let Place::Switch(index) = operand.place else { return None };
        let team = Team::of(self.plan, &self.rank_plan.switches[index as usize])?;
        let number = self.ways.teams.binary_search(&team).ok()?;
        u32::try_from(number).ok()
    }

    /// The ranks whose data an operand has.
    fn members(&self, operand: &Operand) -> usize {
        match operand.place {
            Place::Switch(index) => self.rank_plan.switches[index as usize].ranks.len(),
            Place::Local(_) | Place::Remote { .. } => 1,
        }
    }

    /// How a move reduces in this kernel.
    fn reduced(&self, moved: &Move) -> Option<ptx::Reduction> {
        moved.reduction.map(|own| kind(self.reductions.reduction.unwrap_or(own)))
    }
}

/// Adds a step; signals behind signals, and waits behind waits, become one list unless they share a counter.
pub(super) fn join(steps: &mut Vec<ptx::Step>, step: ptx::Step) {
    match (steps.last_mut(), step) {
        (Some(ptx::Step::Signal(list)), ptx::Step::Signal(more))
            if more.iter().all(|new| list.iter().all(|old| old.outbound != new.outbound)) =>
        {
            list.extend(more);
        }
        (Some(ptx::Step::Wait(list)), ptx::Step::Wait(more))
            if more.iter().all(|new| list.iter().all(|old| old.inbound != new.inbound)) =>
        {
            list.extend(more);
        }
        (_, step) => steps.push(step),
    }
}

/// The other end of each of a rank's memory channels: the k-th to a peer meets the peer's k-th back.
fn other_ends(plan: &Plan, rank: u32) -> Vec<Option<(u32, Channel)>> {
    let mut theirs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut used: BTreeMap<u32, usize> = BTreeMap::new();
    let end = |&peer: &u32| {
        let back = theirs.entry(peer).or_insert_with(|| {
            let channels = plan.ranks.get(peer as usize).map_or(&[][..], |peer| &peer.memory_channels);
            (0..).zip(channels).filter(|(_, back)| **back == rank).map(|(index, _)| index).collect()
        });
        let nth = used.entry(peer).or_default();
        let index = back.get(*nth).copied();
        *nth += 1;
        index.map(|index| (peer, Channel { kind: ChannelKind::Memory, index }))
    };
    plan.ranks[rank as usize].memory_channels.iter().map(end).collect()
}

pub(super) fn signal(
    mine: Counters,
    peer: u32,
    theirs: Counters,
    relaxed: bool,
    addresses: &mut Addresses,
) -> ptx::Signal {
    let area = addresses.index(Address::Control(peer));
    ptx::Signal { outbound: Fixed(mine.outbound), peer: Fixed(area), inbound: Fixed(theirs.inbound), relaxed }
}

pub(super) fn wait(mine: Counters, peer: u32) -> ptx::Wait {
    ptx::Wait { inbound: Fixed(mine.inbound), expected: Fixed(mine.expected), rank: Fixed(peer) }
}

fn kind(reduction: Reduction) -> ptx::Reduction {
    match reduction {
        Reduction::Sum => ptx::Reduction::Sum,
        Reduction::Prod => ptx::Reduction::Prod,
        Reduction::Min => ptx::Reduction::Min,
        Reduction::Max => ptx::Reduction::Max,
        Reduction::Avg => ptx::Reduction::Avg,
    }
}

/// An error unless each end of a channel has one block that signals and one that waits: a counter has one writer.
fn single_users(rank: u32, rank_plan: &RankPlan) -> Result<()> {
    let mut users: BTreeMap<(Channel, bool), u32> = BTreeMap::new();
    for (block, index) in rank_plan.blocks.iter().zip(0..) {
        for op in flat(&block.ops) {
            let (channel, waits) = match op {
                Op::Signal { channel, .. } => (*channel, false),
                Op::Wait { channel, .. } => (*channel, true),
                _ => continue,
            };
            let first = *users.entry((channel, waits)).or_insert(index);
            if channel.kind == ChannelKind::Memory && first != index {
                let does = if waits { "wait at" } else { "signal through" };
                let message = format!(
                    "rank {rank}: blocks {first} and {index} both {does} memory channel {}; give each a channel of its own",
                    channel.index
                );
                return Err(refused(message));
            }
        }
    }
    Ok(())
}

/// All operations, those of loops among them.
fn flat(ops: &[Operation]) -> impl Iterator<Item = &Op> {
    ops.iter()
        .flat_map(|operation| match &operation.op {
            Op::Loop(repeated) => repeated.body.as_slice(),
            _ => std::slice::from_ref(operation),
        })
        .map(|operation| &operation.op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{programs, samples};

    /// Lanes take all steps of a list at once, and each moves its counter by one.
    #[test]
    fn what_moves_one_counter_twice_is_in_no_list() {
        let at = |outbound| Counters { outbound, expected: outbound + 8, inbound: outbound + 16 };
        let signal = |from: Counters| signal(from, 1, at(240), false, &mut Addresses::default());
        let joined = |counters: [u32; 2]| {
            let (mut signals, mut waits) = (Vec::new(), Vec::new());
            for counters in counters.map(at) {
                join(&mut signals, ptx::Step::Signal(vec![signal(counters)]));
                join(&mut waits, ptx::Step::Wait(vec![wait(counters, 1)]));
            }
            (signals.len(), waits.len())
        };
        assert_eq!(joined([0, 24]), (1, 1), "of two channels");
        assert_eq!(joined([24, 24]), (2, 2), "of one channel");
    }

    #[test]
    fn the_other_ends_are_those_of_the_plan() {
        let choices = programs::Choices { chunk_factor: Some(4), ..Default::default() };
        let two_shot =
            programs::find("all-reduce", None).unwrap().program(3, &choices).unwrap().compile().unwrap();
        for plan in samples::all().into_iter().chain([two_shot]) {
            for rank in 0..u32::try_from(plan.ranks.len()).unwrap() {
                let channels = 0..u32::try_from(plan.ranks[rank as usize].memory_channels.len()).unwrap();
                let end = |index| plan.other_end(rank, Channel { kind: ChannelKind::Memory, index });
                assert_eq!(other_ends(&plan, rank), channels.map(end).collect::<Vec<_>>(), "{}", plan.name);
            }
        }
    }
}
