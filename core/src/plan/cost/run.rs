//! Runs the operations of all blocks in the order of their times.

use std::cmp::Reverse;

use super::ir::{ChannelKind, Op, Plan};
use super::links::Time;
use super::machine::Machine;
use super::refusal::refused;
use super::sizes::Sizes;
use super::timeline::Span;
use super::{check, cursor, execute, links, packets, sizes};
use crate::error::Result;
use state::{Run, number};

mod control;
mod copies;
mod moves;
mod port;
mod start;
mod state;

/// Most operations of a run, those of loops once for each iteration.
const STEPS: u64 = 1 << 26;
/// Most spans of a timeline.
const SPANS: usize = 1_000_000;

/// Runs calls of a plan. Returns when each ends at the last rank that ends it.
pub(super) fn run(
    plan: &Plan,
    machine: &Machine,
    bytes: u64,
    calls: u32,
    spans: Option<&mut Vec<Span>>,
) -> Result<Vec<Time>> {
    if let Some(finding) = check::structure(plan).first() {
        return Err(refused(finding.to_string()));
    }
    let mut run = Run::new(plan, machine, Sizes::of(plan, bytes)?, calls, spans)?;
    for rank in 0..number(plan.ranks.len()) {
        run.begin(rank, 0);
    }
    while let Some(Reverse((_, block))) = run.ready.pop() {
        run.go_on(block)?;
    }
    if run.blocks.iter().any(|block| !block.done) {
        return Err(refused("its blocks wait for each other for ever; `aqueduct plan check` says where"));
    }
    Ok(run.ends)
}

impl<'p> Run<'p, '_> {
    /// Runs a block until it waits, ends, or others are behind it.
    fn go_on(&mut self, index: u32) -> Result<()> {
        loop {
            let state = &mut self.blocks[index as usize];
            if state.done {
                return Ok(());
            }
            if state.step.is_none() {
                let ops = &self.plan.ranks[state.rank as usize].blocks[state.block as usize].ops;
                let sizes = self.sizes;
                state.step = state.cursor.next(ops, |repeated| sizes.iterations(repeated));
                self.steps += 1;
                if self.steps > STEPS {
                    return Err(refused(format!(
                        "more than {STEPS} operations, with all iterations of loops; use a smaller message"
                    )));
                }
            }
            let Some(step) = state.step else {
                self.end(index);
                return Ok(());
            };
            let now = match step.op {
                Op::Move(_) => state.threads,
                Op::Sync | Op::Barrier(_) => state.threads.max(state.control),
                _ => state.control,
            };
            if self.ready.peek().is_some_and(|Reverse((first, _))| *first < now) {
                self.ready.push(Reverse((now, index)));
                return Ok(());
            }
            let since = *state.since.get_or_insert(now);
            let Some(until) = self.step(index, step) else { return Ok(()) };
            self.done(index, since, until)?;
        }
    }

    /// Notes that the operation at hand is done.
    fn done(&mut self, index: u32, since: Time, until: Time) -> Result<()> {
        let state = &mut self.blocks[index as usize];
        state.since = None;
        let Some(step) = state.step.take() else { return Ok(()) };
        state.signalled = matches!(step.op, Op::Signal { .. });
        let (rank, block) = (state.rank, state.block);
        let Some(spans) = &mut self.spans else { return Ok(()) };
        if spans.len() == SPANS {
            return Err(refused(format!("more than {SPANS} operations in a call; use a smaller message")));
        }
        let (inner, iteration) =
            step.turn.map_or((None, 0), |(_, inner, iteration)| (Some(number(inner)), iteration));
        let (start, end) = (since / 1000, until / 1000);
        spans.push(Span { rank, block, op: number(step.index), inner, iteration, start, end });
        Ok(())
    }

    /// Runs an operation. Returns when it ends; `None` if the block waits, and is noted where it will be woken.
    fn step(&mut self, index: u32, step: cursor::Step<'p>) -> Option<Time> {
        let turn = step.turn.map(|(repeated, _, iteration)| (repeated, iteration));
        if self.blocks[index as usize].copy_engine {
            match step.op {
                Op::Sync => return Some(self.now(index)),
                Op::Move(moved) => return Some(self.copied(index, moved)),
                _ => self.begin_kernel(index),
            }
        }
        match step.op {
            Op::Sync => {
                let until = self.now(index) + self.costs.sync;
                let state = &mut self.blocks[index as usize];
                (state.threads, state.control) = (until, until);
                Some(until)
            }
            Op::Barrier(barrier) => self.meet(index, *barrier),
            Op::Signal { channel, relaxed } if channel.kind == ChannelKind::Memory => {
                Some(self.signal(index, *channel, *relaxed))
            }
            Op::Signal { channel, .. } => Some(self.port_signal(index, channel.index)),
            Op::Wait { channel, .. } => self.wait(index, *channel),
            Op::Flush { channel } => Some(self.flush(index, *channel)),
            Op::Acquire { semaphore } => self.acquire(index, *semaphore),
            Op::Release { semaphore } => Some(self.release(index, *semaphore)),
            Op::Move(moved) => self.moved(index, moved, turn),
            Op::Port(put) => self.port(index, put, turn),
            Op::Loop(_) => Some(self.now(index)),
        }
    }
}
