//! Blocks out of steps: who does each, and the signals, semaphores and barriers that keep the steps' order where it matters.

use std::collections::{BTreeMap, BTreeSet};

use super::dice::Dice;
use super::effects::{Effects, Map, Span};
use super::ir::{Barrier, Block, Channel, ChannelKind, Loop, Move, Op, Operation, Place, Plan, Share};
use super::steps::{Step, Work};

/// An access: the block and its number among the block's steps.
type Event = (usize, u32);
/// A chunk of a rank's memory.
type Cell = (u32, u64);

#[derive(Default)]
struct Accesses {
    writes: Vec<Event>,
    reads: Vec<Event>,
    /// Ranks that ever access it.
    ranks: BTreeSet<u32>,
}

/// A block and what it knows.
#[derive(Clone)]
struct Worker {
    rank: u32,
    ops: Vec<Op>,
    /// Steps done.
    steps: u32,
    /// Steps of each block that are known.
    known: Vec<u32>,
    /// Ranks of which it is known that they have begun the call.
    begun: BTreeSet<u32>,
    /// The last operation is a step's move, alone.
    open: bool,
}

struct Weaver<'w> {
    plan: &'w mut Plan,
    dice: &'w mut Dice,
    workers: Vec<Worker>,
    cells: BTreeMap<Cell, Accesses>,
    /// Index of the channel at the first and at the second block.
    channels: BTreeMap<(ChannelKind, usize, usize), (u32, u32)>,
    semaphores: BTreeMap<(usize, usize), u32>,
    barriers: u32,
}

/// Gives a plan the blocks that do the steps.
pub(super) fn order(plan: &mut Plan, steps: &[Step], dice: &mut Dice) {
    let mut workers = Vec::new();
    for (rank, _) in (0..).zip(&plan.ranks) {
        let one = Worker {
            rank,
            ops: Vec::new(),
            steps: 0,
            known: Vec::new(),
            begun: BTreeSet::from([rank]),
            open: false,
        };
        workers.extend(std::iter::repeat_n(one, 1 + dice.index(3)));
    }
    let all = workers.len();
    workers.iter_mut().for_each(|worker| worker.known = vec![0; all]);
    let (cells, channels, semaphores) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut weaver = Weaver { plan, dice, workers, cells, channels, semaphores, barriers: 0 };
    // Everybody who ever uses a chunk must have begun the call before it is written again.
    for step in steps {
        let effects = weaver.effects(step);
        for span in effects.reads.iter().chain(&effects.writes) {
            for cell in cells_of(span) {
                weaver.cells.entry(cell).or_default().ranks.insert(step.rank);
            }
        }
    }
    steps.iter().for_each(|step| weaver.step(step));
    weaver.end();
    let Weaver { plan, workers, .. } = weaver;
    for worker in workers {
        let ops: Vec<Operation> = (0..).zip(worker.ops).map(|(origin, op)| op.at(origin)).collect();
        plan.ranks[worker.rank as usize].blocks.push(Block::new(ops));
    }
}

fn cells_of(span: &Span) -> impl Iterator<Item = Cell> + use<> {
    let rank = span.rank;
    (span.start..span.end).map(move |chunk| (rank, chunk))
}

impl Weaver<'_> {
    fn effects(&self, step: &Step) -> Effects {
        let map = Map::of(self.plan);
        match &step.work {
            Work::Move(moved) => map.effects(step.rank, &Op::Move(Box::new(moved.clone()))),
            Work::Put(peer, put) => map.put(step.rank, *peer, put),
        }
    }

    fn blocks_of(&self, rank: u32) -> Vec<usize> {
        (0..self.workers.len()).filter(|&block| self.workers[block].rank == rank).collect()
    }

    fn step(&mut self, step: &Step) {
        let mut blocks = self.blocks_of(step.rank);
        self.dice.shuffle(&mut blocks);
        let group = matches!(step.work, Work::Move(_)) && self.dice.one_in(5);
        blocks.truncate(if group { blocks.len() } else { 1 });
        let effects = self.effects(step);
        self.reach(step, blocks[0]);
        let mut needs: Vec<Event> = Vec::new();
        for (spans, writes) in [(&effects.reads, false), (&effects.writes, true)] {
            for span in spans {
                for cell in cells_of(span) {
                    let accesses = &self.cells[&cell];
                    // Packets tell their reader that they are there.
                    if writes || !span.packets {
                        needs.extend(&accesses.writes);
                    }
                    if writes {
                        needs.extend(&accesses.reads);
                    }
                    let peers: Vec<u32> = match span.callers {
                        true => vec![cell.0],
                        false if writes => accesses.ranks.iter().copied().collect(),
                        false => Vec::new(),
                    };
                    for peer in peers {
                        self.begun(&blocks, peer);
                    }
                }
            }
        }
        needs.sort_unstable();
        needs.dedup();
        match &step.work {
            Work::Move(moved) => {
                if !self.pipelined(&blocks, &needs, moved) {
                    self.know(&blocks, &needs);
                    self.moved(&blocks, moved);
                }
            }
            Work::Put(peer, put) => {
                self.know(&blocks, &needs);
                let reader = self.blocks_of(*peer);
                let reader = self.dice.pick(&reader);
                let (channel, theirs) = self.channel(ChannelKind::Port, blocks[0], reader);
                let mut put = *put;
                put.channel = channel;
                put.flush &= put.signal;
                self.emit(blocks[0], Op::Port(Box::new(put)));
                if !put.flush {
                    self.emit(blocks[0], Op::Flush { channel });
                }
                self.workers[blocks[0]].steps += 1;
                if put.signal {
                    let channel = Channel { kind: ChannelKind::Port, index: theirs };
                    // The signal tells of the put and of what the block knew.
                    self.told(blocks[0], reader, false);
                    self.emit(reader, Op::Wait { channel });
                }
            }
        }
        let events: Vec<Event> = blocks.iter().map(|&block| (block, self.workers[block].steps)).collect();
        for span in &effects.reads {
            for cell in cells_of(span) {
                self.cells.entry(cell).or_default().reads.extend(&events);
            }
        }
        for span in &effects.writes {
            for cell in cells_of(span) {
                let accesses = self.cells.entry(cell).or_default();
                (accesses.writes, accesses.reads) = (events.clone(), Vec::new());
            }
        }
    }

    fn emit(&mut self, block: usize, op: Op) {
        self.workers[block].ops.push(op);
        self.workers[block].open = false;
    }

    /// Makes sure that there is a memory channel to each peer whose memory is reached.
    fn reach(&mut self, step: &Step, block: usize) {
        let Work::Move(moved) = &step.work else { return };
        let places = moved.sources.iter().chain(&moved.targets).map(|operand| operand.place);
        for place in places.collect::<Vec<Place>>() {
            if let Place::Remote { rank: peer, .. } = place
                && !self.plan.ranks[step.rank as usize].memory_channels.contains(&peer)
            {
                let other = self.blocks_of(peer)[0];
                self.channel(ChannelKind::Memory, block, other);
            }
        }
    }

    fn moved(&mut self, blocks: &[usize], moved: &Move) {
        let of = u32::try_from(blocks.len()).unwrap_or(1);
        for (member, &block) in (0..).zip(blocks) {
            let share = (of > 1).then_some(Share { member, of });
            let op = Op::Move(Box::new(Move { share, ..moved.clone() }));
            let alone = of == 1 && self.dice.one_in(6);
            let open = of == 1 && !alone;
            if alone {
                let unit = self.unit();
                self.emit(block, looped(unit, moved.count, vec![op]));
            } else {
                self.emit(block, op);
            }
            self.workers[block].steps += 1;
            self.workers[block].open = open;
        }
    }

    fn unit(&mut self) -> u64 {
        self.dice.pick(&[32, 64])
    }

    /// Makes two loops of this move and the one that it needs, slice by slice, if these are two neighbours.
    fn pipelined(&mut self, blocks: &[usize], needs: &[Event], moved: &Move) -> bool {
        let [second] = *blocks else { return false };
        let new = |&&(block, step): &&Event| block != second && self.workers[second].known[block] < step;
        let mut missing = needs.iter().filter(new);
        let (Some(&(first, step)), None) = (missing.next(), missing.next()) else { return false };
        if !self.workers[first].open || self.workers[first].steps != step || self.dice.one_in(3) {
            return false;
        }
        let map = Map::of(self.plan);
        let Some(Op::Move(before)) = self.workers[first].ops.last() else { return false };
        let op = Op::Move(Box::new(moved.clone()));
        let (a, b) = (
            map.effects(self.workers[first].rank, &Op::Move(before.clone())),
            map.effects(self.workers[second].rank, &op),
        );
        let aligned = |a: &Span, b: &Span| !a.overlaps(b) || a.start == b.start;
        let spans = |effects: &Effects| [&effects.reads[..], &effects.writes].concat();
        let aligned = spans(&a).iter().all(|a| spans(&b).iter().all(|b| aligned(a, b)));
        if !aligned || before.count != moved.count {
            return false;
        }
        let (tells, learns) = self.edge(first, second, false);
        let unit = self.unit();
        if let Some(before) = self.workers[first].ops.pop() {
            self.emit(first, looped(unit, moved.count, vec![before, tells]));
        }
        self.emit(second, looped(unit, moved.count, vec![learns, op]));
        self.told(first, second, false);
        self.workers[second].steps += 1;
        true
    }

    /// Lets all blocks know some steps.
    fn know(&mut self, blocks: &[usize], needs: &[Event]) {
        for &block in blocks {
            for &(other, step) in needs {
                if other != block && self.workers[block].known[other] < step {
                    self.tell(other, block, false);
                }
            }
        }
    }

    /// Lets all blocks know that a rank has begun the call, and what it did before.
    fn begun(&mut self, blocks: &[usize], peer: u32) {
        for &block in blocks {
            if !self.workers[block].begun.contains(&peer) {
                let others = self.blocks_of(peer);
                let other = self.dice.pick(&others);
                let relaxed = self.dice.one_in(2);
                self.tell(other, block, relaxed);
            }
        }
    }

    /// Lets a block tell another what it has done and knows.
    fn tell(&mut self, from: usize, to: usize, relaxed: bool) {
        if self.workers[from].rank == self.workers[to].rank && self.dice.one_in(3) {
            let barrier = Op::Barrier(Barrier { id: self.barriers, blocks: 2 });
            self.barriers += 1;
            self.emit(from, barrier.clone());
            self.emit(to, barrier);
            self.told(to, from, false);
        } else {
            let (tells, learns) = self.edge(from, to, relaxed);
            self.emit(from, tells);
            self.emit(to, learns);
        }
        self.told(from, to, relaxed);
    }

    /// The operations by which one block tells another.
    fn edge(&mut self, from: usize, to: usize, relaxed: bool) -> (Op, Op) {
        let rank = self.workers[from].rank;
        if rank == self.workers[to].rank {
            let semaphores = &mut self.plan.ranks[rank as usize].semaphores;
            let semaphore = *self.semaphores.entry((from, to)).or_insert_with(|| {
                semaphores.push(0);
                u32::try_from(semaphores.len() - 1).unwrap_or(0)
            });
            return (Op::Release { semaphore }, Op::Acquire { semaphore });
        }
        let port = !relaxed && self.dice.one_in(4);
        let kind = if port { ChannelKind::Port } else { ChannelKind::Memory };
        let (mine, theirs) = self.channel(kind, from, to);
        let end = |index| Channel { kind, index };
        (Op::Signal { channel: end(mine), relaxed }, Op::Wait { channel: end(theirs) })
    }

    fn told(&mut self, from: usize, to: usize, relaxed: bool) {
        let teller = self.workers[from].clone();
        let worker = &mut self.workers[to];
        // A relaxed signal publishes nothing that its kernel has done or heard.
        worker.begun.insert(teller.rank);
        if !relaxed {
            worker.begun.extend(teller.begun);
            worker.known.iter_mut().zip(teller.known).for_each(|(mine, theirs)| *mine = theirs.max(*mine));
            worker.known[from] = worker.known[from].max(teller.steps);
        }
    }

    /// The two ends of a channel between two blocks.
    fn channel(&mut self, kind: ChannelKind, from: usize, to: usize) -> (u32, u32) {
        if let Some(&(mine, theirs)) = self.channels.get(&(kind, from, to)) {
            return (mine, theirs);
        }
        let mut add = |rank: u32, peer: u32| {
            let rank = &mut self.plan.ranks[rank as usize];
            let list = match kind {
                ChannelKind::Memory => &mut rank.memory_channels,
                ChannelKind::Port => &mut rank.port_channels,
            };
            list.push(peer);
            u32::try_from(list.len() - 1).unwrap_or(0)
        };
        let (a, b) = (self.workers[from].rank, self.workers[to].rank);
        let (mine, theirs) = (add(a, b), add(b, a));
        self.channels.insert((kind, from, to), (mine, theirs));
        self.channels.insert((kind, to, from), (theirs, mine));
        (mine, theirs)
    }

    /// A rank's call may end only when its peers are done with its input and output.
    fn end(&mut self) {
        let callers: Vec<u64> =
            (0..).zip(&self.plan.ranks).map(|(rank, _)| Map::of(self.plan).callers(rank)).collect();
        let mut needs: BTreeMap<u32, BTreeSet<Event>> = BTreeMap::new();
        for (&(rank, chunk), accesses) in &self.cells {
            if chunk < callers[rank as usize] {
                let remote = |&&(block, _): &&Event| self.workers[block].rank != rank;
                let events = accesses.writes.iter().chain(&accesses.reads).filter(remote).copied();
                needs.entry(rank).or_default().extend(events);
            }
        }
        for (rank, events) in needs {
            for (other, step) in events {
                let blocks = self.blocks_of(rank);
                if blocks.iter().all(|&block| self.workers[block].known[other] < step) {
                    let block = self.dice.pick(&blocks);
                    self.tell(other, block, false);
                }
            }
        }
    }
}

fn looped(unit: u64, chunks: u32, body: Vec<Op>) -> Op {
    let body = (0..).zip(body).map(|(origin, op)| op.at(origin)).collect();
    Op::Loop(Box::new(Loop { unit, chunks, body }))
}
