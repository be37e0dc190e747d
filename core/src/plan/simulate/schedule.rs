//! The scheduler: who goes next.

use std::collections::VecDeque;

use super::config::{Config, refused};
use super::cursor::Cursor;
use super::element::Element;
use super::geometry::Turn;
use super::ir::{Op, Plan};
use super::machine::{Control, Machine, Task};
use super::memory::Sizes;
use super::position::Position;
use crate::error::Result;

/// Most blocks that a deadlock's message names.
const NAMED: usize = 8;

/// Numbers that a seed decides (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit.max(1) as u64).unwrap_or(0)
    }
}

/// A block between two syncs: moves that may run in any order, and control operations in order.
#[derive(Debug, Default)]
struct Running<'p> {
    cursor: Cursor,
    moves: Vec<Task<'p>>,
    controls: VecDeque<Control<'p>>,
    /// All up to the next sync is queued.
    at_sync: bool,
    done: bool,
}

struct Scheduler<'p, T> {
    machine: Machine<'p, T>,
    dice: Dice,
    ranks: Vec<Vec<Running<'p>>>,
    outputs: Vec<Vec<Vec<T>>>,
}

pub(super) fn run<T: Element>(
    plan: &Plan,
    sizes: Sizes,
    calls: &[Vec<Vec<T>>],
    config: Config,
) -> Result<Vec<Vec<Vec<T>>>> {
    let mut scheduler = Scheduler {
        machine: Machine::new(plan, sizes, config)?,
        dice: Dice(config.seed),
        ranks: plan.ranks.iter().map(|_| Vec::new()).collect(),
        outputs: plan.ranks.iter().map(|_| Vec::new()).collect(),
    };
    scheduler.all(calls)?;
    let mut by_rank: Vec<_> = scheduler.outputs.into_iter().map(Vec::into_iter).collect();
    Ok(calls.iter().map(|_| by_rank.iter_mut().filter_map(Iterator::next).collect()).collect())
}

impl<'p, T: Element> Scheduler<'p, T> {
    /// Runs until every rank has ended every call.
    fn all(&mut self, calls: &[Vec<Vec<T>>]) -> Result<()> {
        loop {
            if self.outputs.iter().all(|outputs| outputs.len() == calls.len()) {
                return Ok(());
            }
            // A few steps at random, and where these lead nowhere, a look at everything.
            let ranks = self.ranks.len();
            let lucky = (0..4).any(|_| {
                let rank = self.dice.below(ranks);
                self.rank(rank, calls)
            });
            if lucky || self.proxies() {
                continue;
            }
            let start = self.dice.below(ranks);
            // A put that waits for its own flush has asked its proxy, though its block has not gone on.
            let moved = (0..ranks).any(|offset| self.rank((start + offset) % ranks, calls));
            if !moved && !self.proxies() {
                return Err(self.deadlock());
            }
        }
    }

    /// Lets a proxy that has something to do go on, sometimes. Always does if nothing else can.
    fn proxies(&mut self) -> bool {
        let mut busy: Vec<(u32, u32)> =
            self.machine.proxies.iter().filter(|(_, queue)| !queue.is_empty()).map(|(&key, _)| key).collect();
        if busy.is_empty() {
            return false;
        }
        busy.sort_unstable();
        let (rank, channel) = busy[self.dice.below(busy.len())];
        let most = self.most();
        self.machine.serve(rank, channel, most);
        true
    }

    /// Elements until someone else may go on: often few, sometimes all.
    fn most(&mut self) -> u64 {
        match self.dice.below(3) {
            0 => 1 + self.dice.below(8) as u64,
            1 => 1 + self.dice.below(1024) as u64,
            _ => u64::MAX,
        }
    }

    /// One step of a rank. Returns whether anything happened.
    fn rank(&mut self, rank: usize, calls: &[Vec<Vec<T>>]) -> bool {
        let finished = self.outputs[rank].len();
        if finished == calls.len() {
            return false;
        }
        if self.machine.calls[rank] as usize == finished {
            self.machine.calls[rank] += 1;
            self.machine.memories[rank].begin(&calls[finished][rank]);
            self.ranks[rank] =
                self.machine.plan.ranks[rank].blocks.iter().map(|_| Running::default()).collect();
            return true;
        }
        if self.ranks[rank].iter().all(|block| block.done) {
            let output = self.machine.memories[rank].output();
            self.outputs[rank].push(output);
            return true;
        }
        let blocks = self.ranks[rank].len();
        let start = self.dice.below(blocks);
        (0..blocks).any(|offset| self.block(rank, (start + offset) % blocks))
    }

    fn block(&mut self, rank: usize, block: usize) -> bool {
        if self.ranks[rank][block].done {
            return false;
        }
        if !self.ranks[rank][block].at_sync {
            self.queue(rank, block);
            return true;
        }
        let running = &self.ranks[rank][block];
        if running.moves.is_empty() && running.controls.is_empty() {
            self.ranks[rank][block].at_sync = false;
            return true;
        }
        let moves = running.moves.len();
        let choices = moves + usize::from(!running.controls.is_empty());
        let start = self.dice.below(choices);
        (0..choices).any(|offset| {
            let choice = (start + offset) % choices;
            if choice == moves { self.control(rank, block) } else { self.moved(rank, block, choice) }
        })
    }

    fn control(&mut self, rank: usize, block: usize) -> bool {
        let running = &mut self.ranks[rank][block];
        // A barrier is also a sync: all moves before it are done first.
        let Some(control) = running.controls.front_mut().filter(|c| !c.syncs() || running.moves.is_empty())
        else {
            return false;
        };
        let done = self.machine.try_control(control);
        if done {
            running.controls.pop_front();
        }
        done
    }

    fn moved(&mut self, rank: usize, block: usize, index: usize) -> bool {
        let most = self.most();
        let running = &mut self.ranks[rank][block];
        let task = &mut running.moves[index];
        let moved = self.machine.advance(task, most);
        let done = task.done();
        if done {
            running.moves.swap_remove(index);
        }
        done || moved > 0
    }

    /// Queues everything up to the block's next sync.
    fn queue(&mut self, rank: usize, block: usize) {
        let plan = self.machine.plan;
        let ops = &plan.ranks[rank].blocks[block].ops;
        let running = &mut self.ranks[rank][block];
        let (rank, block) = (u32::try_from(rank).unwrap_or(0), u32::try_from(block).unwrap_or(0));
        running.at_sync = true;
        loop {
            let Some(step) = running.cursor.next(ops, |repeated| self.machine.iterations(repeated)) else {
                running.done = running.moves.is_empty() && running.controls.is_empty();
                return;
            };
            let position = Position::of(plan, rank, block, step.index, step.turn.map(|(_, inner, _)| inner));
            let turn = step
                .turn
                .map(|(repeated, _, iteration)| Turn { iteration, unit: self.machine.unit(repeated) });
            match step.op {
                Op::Sync => return,
                Op::Move(moved) => running.moves.push(self.machine.task(moved, turn, position)),
                op => running.controls.push_back(Machine::<T>::control(op, turn, position)),
            }
            if matches!(step.op, Op::Barrier(_)) {
                return;
            }
        }
    }

    fn deadlock(&self) -> crate::error::Error {
        let blocks = self.ranks.iter().flatten().filter(|block| !block.done);
        let waits: Vec<String> = blocks
            .filter_map(|block| {
                let control = block.controls.front().map(|control| control.waits(&self.machine));
                block.moves.first().map(Task::waits).or(control)
            })
            .collect();
        let more = waits.len().saturating_sub(NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        refused(format!("deadlock: {}{more}", waits[..waits.len().min(NAMED)].join("; ")))
    }
}
