//! The data movement of a random program: steps in one order for all ranks, after which the collective's result is there.

use super::collective::{Collective, Kind};
use super::dice::Dice;
use super::ir::{
    Buffer, Form, Move, Operand, Place, Plan, PortPut, Protocol, RankPlan, Reduction, Settings, Switch,
};

/// A step of one rank.
pub(super) struct Step {
    pub(super) rank: u32,
    pub(super) work: Work,
}

pub(super) enum Work {
    Move(Move),
    /// A put to a peer. Its channel is still to be chosen.
    Put(u32, PortPut),
}

/// Where some chunks are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct At {
    rank: u32,
    buffer: Buffer,
    first: u32,
}

struct Author<'d> {
    dice: &'d mut Dice,
    plan: Plan,
    steps: Vec<Step>,
    reduction: Reduction,
}

/// A plan without blocks and the steps that it should have.
pub(super) fn steps(dice: &mut Dice) -> (Plan, Vec<Step>) {
    let ranks = 2 + dice.below(3);
    let collective = collective(dice, ranks);
    let part = 1 + dice.below(3);
    let (input, output) = match collective.kind {
        Kind::AllGather | Kind::Gather { .. } => (part, part * ranks),
        Kind::ReduceScatter | Kind::Scatter { .. } => (part * ranks, part),
        Kind::AllToAll => (part * ranks, part * ranks),
        _ => (part, part),
    };
    let all: Vec<u32> = (0..ranks).collect();
    let switches = [Buffer::Input, Buffer::Scratch].map(|buffer| Switch { buffer, ranks: all.clone() });
    let rank = RankPlan {
        input_chunks: input,
        output_chunks: output,
        switches: switches.to_vec(),
        ..RankPlan::default()
    };
    let settings =
        Settings { protocol: Protocol::Simple, double_scratch: dice.one_in(2), ..Settings::default() };
    let plan = Plan { name: "random".into(), collective, settings, ranks: vec![rank; ranks as usize] };
    let reduction = dice.pick(&[Reduction::Sum, Reduction::Max]);
    let mut author = Author { dice, plan, steps: Vec::new(), reduction };
    author.all();
    (author.plan, author.steps)
}

/// A random collective.
fn collective(dice: &mut Dice, ranks: u32) -> Collective {
    let root = dice.below(ranks);
    let kind = dice.pick(&[
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::Broadcast { root },
        Kind::Reduce { root },
        Kind::Gather { root },
        Kind::Scatter { root },
        Kind::SendRecv,
    ]);
    Collective { kind, in_place: dice.one_in(2) }
}

impl Author<'_> {
    fn ranks(&self) -> u32 {
        u32::try_from(self.plan.ranks.len()).unwrap_or(0)
    }

    fn any_rank(&mut self) -> u32 {
        let ranks = self.ranks();
        self.dice.below(ranks)
    }

    /// Scratch that nothing has used.
    fn fresh(&mut self, rank: u32, count: u32) -> At {
        let chunks = &mut self.plan.ranks[rank as usize].scratch_chunks;
        let first = *chunks;
        *chunks += count;
        At { rank, buffer: Buffer::Scratch, first }
    }

    /// Scratch that nothing has used, of the same number at all ranks.
    fn fresh_everywhere(&mut self, count: u32) -> u32 {
        let first = self.plan.ranks.iter().map(|rank| rank.scratch_chunks).max().unwrap_or(0);
        self.plan.ranks.iter_mut().for_each(|rank| rank.scratch_chunks = first + count);
        first
    }

    fn moved(&mut self, rank: u32, sources: Vec<Operand>, targets: Vec<Operand>, count: u32) {
        let switch = matches!(sources[0].place, Place::Switch(_));
        let reduction = (sources.len() > 1 || switch).then_some(self.reduction);
        self.steps
            .push(Step { rank, work: Work::Move(Move { sources, targets, count, reduction, share: None }) });
    }

    /// All chunks of the collective, in runs and in any order.
    fn all(&mut self) {
        let (kind, in_place) = (self.plan.collective.kind.clone(), self.plan.collective.in_place);
        let (input, output) = (self.plan.ranks[0].input_chunks, self.plan.ranks[0].output_chunks);
        let ranks = self.ranks();
        let at = |rank, buffer, first| At { rank, buffer, first };
        let whole = match kind {
            Kind::AllGather
            | Kind::AllReduce
            | Kind::Broadcast { .. }
            | Kind::Reduce { .. }
            | Kind::Gather { .. } => input,
            Kind::AllToAll => input / ranks,
            _ => output,
        };
        // Rank that gives or gets, first chunk and count of each piece.
        let mut pieces = Vec::new();
        let owners = match kind {
            Kind::AllReduce | Kind::Broadcast { .. } | Kind::Reduce { .. } | Kind::Custom(_) => 1,
            _ => ranks,
        };
        for owner in 0..owners {
            let mut first = 0;
            while first < whole {
                let count = 1 + self.dice.below(whole - first);
                pieces.push((owner, first, count));
                first += count;
            }
        }
        self.dice.shuffle(&mut pieces);
        let mut later = Vec::new();
        for (owner, first, count) in pieces {
            let all: Vec<u32> = (0..ranks).collect();
            match kind {
                Kind::AllReduce => {
                    let to = self.any_rank();
                    let sum = at(to, Buffer::Output, first);
                    self.reduce(Buffer::Input, first, sum, count);
                    let others = all.iter().filter(|&&rank| rank != to);
                    let others = others.map(|&rank| at(rank, Buffer::Output, first)).collect();
                    self.spread(sum, others, count);
                }
                Kind::Reduce { root } => {
                    self.reduce(Buffer::Input, first, at(root, Buffer::Output, first), count);
                }
                Kind::ReduceScatter => {
                    self.reduce(
                        Buffer::Input,
                        owner * output + first,
                        at(owner, Buffer::Output, first),
                        count,
                    );
                }
                Kind::Broadcast { root } => {
                    let others = all.iter().filter(|&&rank| rank != root || !in_place);
                    let others = others.map(|&rank| at(rank, Buffer::Output, first)).collect();
                    self.spread(at(root, Buffer::Input, first), others, count);
                }
                Kind::AllGather => {
                    let others = all.iter().filter(|&&rank| rank != owner || !in_place);
                    let others =
                        others.map(|&rank| at(rank, Buffer::Output, owner * input + first)).collect();
                    self.spread(at(owner, Buffer::Input, first), others, count);
                }
                Kind::Gather { root } if owner == root && in_place => {}
                Kind::Gather { root } => {
                    let to = at(root, Buffer::Output, owner * input + first);
                    self.spread(at(owner, Buffer::Input, first), vec![to], count);
                }
                Kind::Scatter { root } if owner == root && in_place => {}
                Kind::Scatter { root } => {
                    let from = at(root, Buffer::Input, owner * output + first);
                    self.spread(from, vec![at(owner, Buffer::Output, first)], count);
                }
                Kind::AllToAll => {
                    for to in all.into_iter().filter(|&to| to != owner || !in_place) {
                        let from = at(owner, Buffer::Input, to * whole + first);
                        let to = at(to, Buffer::Output, owner * whole + first);
                        later.extend(self.staged(from, to, count, in_place));
                    }
                }
                Kind::SendRecv => {
                    let from = at(owner, Buffer::Input, first);
                    let to = at((owner + 1) % ranks, Buffer::Output, first);
                    later.extend(self.staged(from, to, count, in_place));
                }
                Kind::Custom(_) => {}
            }
        }
        for (from, to, count) in later {
            self.send(from, to, count, 1);
        }
    }

    /// Sends chunks; if the target is somebody's input, as far as its scratch, and returns the rest of the way.
    fn staged(&mut self, from: At, to: At, count: u32, in_place: bool) -> Option<(At, At, u32)> {
        if !in_place {
            self.send(from, to, count, 2);
            return None;
        }
        let between = self.fresh(to.rank, count);
        self.send(from, between, count, 2);
        Some((between, to, count))
    }

    /// Sends chunks on a random way of `hops` at most.
    fn send(&mut self, from: At, to: At, count: u32, hops: u32) {
        let same = from.rank == to.rank;
        match self.dice.below(8) {
            0 if hops > 1 => {
                let rank = self.any_rank();
                let between = self.fresh(rank, count);
                self.send(from, between, count, hops - 1);
                self.send(between, to, count, hops - 1);
            }
            1 | 2 => {
                // As packets, written by whoever has the data and read by whoever needs it.
                let slot = self.fresh(to.rank, count);
                let packets = |rank| operand(rank, slot).packets();
                self.moved(from.rank, vec![operand(from.rank, from)], vec![packets(from.rank)], count);
                self.moved(to.rank, vec![packets(to.rank)], vec![operand(to.rank, to)], count);
            }
            3 if !same => self.put(from, to, count, Form::Plain),
            4 if !same => {
                let (made, came) = (self.fresh(from.rank, count), self.fresh(to.rank, count));
                let local = operand(from.rank, made).packets();
                self.moved(from.rank, vec![operand(from.rank, from)], vec![local], count);
                self.put(made, came, count, Form::Packets);
                self.moved(
                    to.rank,
                    vec![operand(to.rank, came).packets()],
                    vec![operand(to.rank, to)],
                    count,
                );
            }
            5 => {
                let rank = self.any_rank();
                self.moved(rank, vec![operand(rank, from)], vec![operand(rank, to)], count);
            }
            way => {
                let rank = if way % 2 == 0 { from.rank } else { to.rank };
                self.moved(rank, vec![operand(rank, from)], vec![operand(rank, to)], count);
            }
        }
    }

    fn put(&mut self, from: At, to: At, count: u32, form: Form) {
        let put = PortPut {
            channel: 0,
            source: (from.buffer, from.first),
            target: (to.buffer, to.first),
            count,
            form,
            forward: form == Form::Packets,
            signal: self.dice.one_in(2),
            flush: self.dice.one_in(2),
        };
        self.steps.push(Step { rank: from.rank, work: Work::Put(to.rank, put) });
    }

    /// Brings chunks to several places.
    fn spread(&mut self, from: At, mut tos: Vec<At>, count: u32) {
        self.dice.shuffle(&mut tos);
        let (rank, everywhere) = (from.rank, tos.len() + 1 >= self.plan.ranks.len());
        match self.dice.below(4) {
            0 if !tos.is_empty() => {
                let targets = tos.iter().map(|&to| operand(rank, to)).collect();
                self.moved(rank, vec![operand(rank, from)], targets, count);
            }
            // A switch takes it to all ranks' scratch.
            1 if everywhere => {
                let first = self.fresh_everywhere(count);
                let form = self.dice.pick(&[Form::Plain, Form::Packets]);
                let target = Operand { form, ..Operand::switch(1, first) };
                self.moved(rank, vec![operand(rank, from)], vec![target], count);
                for to in tos {
                    let came = Operand { form, ..Operand::local(Buffer::Scratch, first) };
                    self.moved(to.rank, vec![came], vec![operand(to.rank, to)], count);
                }
            }
            way => {
                let mut from = from;
                for to in tos {
                    self.send(from, to, count, 2);
                    // A chain instead of a star.
                    from = if way == 2 { to } else { from };
                }
            }
        }
    }

    /// Reduces the same chunks of all ranks.
    fn reduce(&mut self, buffer: Buffer, first: u32, to: At, count: u32) {
        let mut from: Vec<At> = (0..self.ranks()).map(|rank| At { rank, buffer, first }).collect();
        self.dice.shuffle(&mut from);
        if self.dice.one_in(5) {
            return self.moved(to.rank, vec![Operand::switch(0, first)], vec![operand(to.rank, to)], count);
        }
        if self.dice.one_in(3) && from.len() > 2 {
            // A partial sum first, somewhere.
            let rank = self.any_rank();
            let partial = self.fresh(rank, count);
            let some = from.split_off(1);
            self.reduce_at(rank, &some, partial, count);
            from.push(partial);
        }
        self.reduce_at(to.rank, &from, to, count);
    }

    fn reduce_at(&mut self, rank: u32, from: &[At], to: At, count: u32) {
        let mut sources = Vec::new();
        let accumulates = self.dice.one_in(3);
        for &part in from {
            let source = match self.dice.below(4) {
                0 => {
                    let slot = self.fresh(rank, count);
                    self.send(part, slot, count, 1);
                    operand(rank, slot)
                }
                1 => {
                    let slot = self.fresh(rank, count);
                    let packets = operand(part.rank, slot).packets();
                    self.moved(part.rank, vec![operand(part.rank, part)], vec![packets], count);
                    operand(rank, slot).packets()
                }
                _ => operand(rank, part),
            };
            sources.push(source);
        }
        let mut targets = vec![operand(rank, to)];
        if accumulates && sources.len() > 2 {
            // Two sums instead of one, over scratch.
            let rest = sources.split_off(2);
            let sum = operand(rank, self.fresh(rank, count));
            self.moved(rank, sources, vec![sum], count);
            sources = [vec![sum], rest].concat();
        }
        if self.dice.one_in(4) {
            let other = self.any_rank();
            let copy = self.fresh(other, count);
            targets.push(operand(rank, copy));
        }
        self.moved(rank, sources, targets, count);
    }
}

/// Chunks as an operand of one of `rank`'s moves.
fn operand(rank: u32, at: At) -> Operand {
    if at.rank == rank {
        Operand::local(at.buffer, at.first)
    } else {
        Operand::remote(at.rank, at.buffer, at.first)
    }
}
