//! The run on symbols: goes through all blocks as far as they come.

use super::cursor::Step;
use super::finding::{Finding, FindingKind, MOST};
use super::geometry::{Turn, iterations};
use super::ir::{ChannelKind, Loop, Op, Plan};
use super::sums::Sums;
use state::{Run, number};

mod access;
mod calls;
mod report;
mod state;
mod talk;

/// Runs calls of a plan of right structure and returns what is wrong with it.
pub(super) fn run(plan: &Plan, calls: u32) -> Vec<Finding> {
    match Run::new(plan, calls) {
        Err(message) => vec![Finding::new(FindingKind::Limit, None, message)],
        Ok(mut run) => {
            run.all();
            run.findings
        }
    }
}

/// Runs one call of a plan of right structure, and returns what its reducing moves sum up.
pub(in crate::plan) fn sums(plan: &Plan) -> Result<Sums, Finding> {
    let mut run = Run::new(plan, 1).map_err(|message| Finding::new(FindingKind::Limit, None, message))?;
    let chunks = plan.ranks.iter().map(|rank| rank.input_chunks).max().unwrap_or(0);
    let atoms = u32::try_from(run.resolution.atoms).unwrap_or(u32::MAX);
    let mut sums = Sums::new(number(plan.ranks.len()), chunks, atoms);
    run.results = Some(Vec::new());
    run.all();
    if let Some(finding) = run.findings.into_iter().next() {
        return Err(finding);
    }
    for (position, value) in run.results.unwrap_or_default() {
        sums.note(position, run.values.hash(value));
    }
    Ok(sums)
}

impl<'p> Run<'p> {
    fn all(&mut self) {
        for rank in (0..number(self.ranks.len())).rev() {
            self.begin(rank);
        }
        while let Some(block) = self.ready.pop() {
            if self.findings.len() >= MOST {
                return;
            }
            self.go_on(block);
        }
        self.deadlock();
    }

    /// Runs a block until it waits or ends.
    fn go_on(&mut self, index: u32) {
        loop {
            let state = &mut self.blocks[index as usize];
            if state.done {
                return;
            }
            if state.step.is_none() {
                let (plan, resolution) = (self.plan, self.resolution);
                let ops = &plan.ranks[state.rank as usize].blocks[state.block as usize].ops;
                let turns =
                    |repeated: &Loop| iterations(repeated, resolution.atoms, resolution.unit(repeated));
                state.step = state.cursor.next(ops, turns);
                (state.event, state.progress, state.at_barrier) = (state.event + 1, 0, false);
            }
            let Some(step) = state.step else {
                state.done = true;
                let rank = state.rank;
                self.ranks[rank as usize].left -= 1;
                if self.ranks[rank as usize].left == 0 {
                    self.end(rank);
                }
                return;
            };
            if !self.step(index, step) {
                return;
            }
            self.blocks[index as usize].step = None;
        }
    }

    /// Runs an operation. Returns whether it is done; if not, the block is noted where it will be woken.
    fn step(&mut self, index: u32, step: Step<'p>) -> bool {
        let rank = self.blocks[index as usize].rank;
        let turn = step
            .turn
            .map(|(repeated, _, iteration)| Turn { iteration, unit: self.resolution.unit(repeated) });
        match step.op {
            Op::Sync => self.sync(index),
            Op::Barrier(barrier) => return self.meet(index, *barrier),
            Op::Signal { channel, relaxed } if channel.kind == ChannelKind::Memory => {
                // Without a release it tells only what the start of the kernel has told.
                let know = if *relaxed {
                    self.ranks[rank as usize].know.clone()
                } else {
                    self.blocks[index as usize].control.clone()
                };
                self.signal(rank, *channel, know);
            }
            Op::Signal { channel, .. } => {
                let proxy = self.ask(index, channel.index);
                let know = self.proxies[proxy].know.clone();
                self.signal(rank, *channel, know);
            }
            Op::Wait { channel } => {
                let end = self.ends.end(rank, *channel);
                let Some(told) = self.signals[end].pop_front() else {
                    self.signal_waiters[end].push(index);
                    return false;
                };
                self.blocks[index as usize].control.join(&told);
            }
            Op::Flush { channel } => self.flush(index, *channel),
            Op::Acquire { semaphore } => {
                let semaphore = &mut self.ranks[rank as usize].semaphores[*semaphore as usize];
                let Some(told) = semaphore.acquire(index) else {
                    semaphore.waiters.push(index);
                    return false;
                };
                if let Some(know) = told {
                    self.blocks[index as usize].control.join(&know);
                }
            }
            Op::Release { semaphore } => {
                let semaphore = &mut self.ranks[rank as usize].semaphores[*semaphore as usize];
                semaphore.release(&self.blocks[index as usize].control);
                self.ready.append(&mut semaphore.waiters);
            }
            Op::Move(moved) => return self.moved(index, moved, turn),
            Op::Port(put) => return self.port(index, put, turn),
            Op::Loop(_) => {}
        }
        true
    }
}
