//! Where a run and its calls begin and end.

use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::Machine;
use super::check::Ends;
use super::cursor::Cursor;
use super::execute::Grids;
use super::links::{Links, Time, micros};
use super::sizes::Sizes;
use super::state::{Block, Costs, Rank, Run, Waited, number};
use super::{Op, Plan, Span, refused};
use crate::error::Result;

impl<'p, 'o> Run<'p, 'o> {
    pub(super) fn new(
        plan: &'p Plan,
        machine: &'o Machine,
        sizes: Sizes,
        calls: u32,
        spans: Option<&'o mut Vec<Span>>,
    ) -> Result<Self> {
        on_one_host(plan, machine)?;
        let ends_of = Ends::of(plan);
        let mut run = Self {
            plan,
            machine,
            costs: Costs::of(machine),
            sizes,
            calls,
            links: Links::new(machine, plan.ranks.len()),
            ranks: Vec::with_capacity(plan.ranks.len()),
            blocks: Vec::new(),
            signals: (0..ends_of.len()).map(|_| Waited::default()).collect(),
            streams: vec![0; ends_of.len()],
            ends_of,
            ready: BinaryHeap::new(),
            ends: Vec::new(),
            steps: 0,
            spans,
        };
        for (rank, rank_plan) in (0..).zip(&plan.ranks) {
            let tokens = |&initial: &u32| Waited {
                arrivals: vec![0; initial.min(TOKENS) as usize].into(),
                waiters: VecDeque::new(),
            };
            let grids = Grids::of(plan, rank_plan);
            let grid = grids.of_call(run.sizes.vectors());
            run.ranks.push(Rank {
                first: run.blocks.len(),
                grid: grids.any().then_some(grid.blocks),
                call: 0,
                left: 0,
                end: 0,
                stored: 0,
                threads: grid.threads,
                packets: Default::default(),
                semaphores: rank_plan.semaphores.iter().map(tokens).collect(),
                barriers: HashMap::new(),
                proxy: 0,
            });
            let mut member = 0;
            for (block, contents) in (0..).zip(&rank_plan.blocks) {
                let (cursor, step, since) = (Cursor::default(), None, None);
                let (threads, control, signalled, done) = (0, 0, false, true);
                run.blocks.push(Block {
                    rank,
                    block,
                    cursor,
                    step,
                    since,
                    threads,
                    control,
                    copy_engine: contents.copy_engine,
                    member,
                    in_kernel: false,
                    signalled,
                    done,
                });
                member += u32::from(!contents.copy_engine);
            }
        }
        Ok(run)
    }

    /// Begins a rank's next call behind what ended at `from`, or does nothing after the last.
    pub(super) fn begin(&mut self, rank: u32, from: Time) {
        let state = &mut self.ranks[rank as usize];
        if state.call == self.calls {
            return;
        }
        state.call += 1;
        state.end = from;
        let (first, grid, warps) = (state.first, state.grid, state.threads.div_ceil(32));
        let machine = self.machine;
        let begins = from + micros(machine.launch_us + machine.launch_warp_us * f64::from(warps));
        let each = if grid.is_some() { machine.launch_any_block_us } else { machine.launch_block_us };
        let blocks = 0..self.plan.ranks[rank as usize].blocks.len();
        // Blocks that the message does not need are not launched.
        let launched = |block: &Block<'_>| block.copy_engine || grid.is_none_or(|grid| block.member < grid);
        let launched: Vec<usize> = blocks.filter(|nth| launched(&self.blocks[first + nth])).collect();
        self.ranks[rank as usize].left = launched.len();
        for nth in launched {
            let at = begins + micros(each * nth as f64);
            let block = &mut self.blocks[first + nth];
            (block.cursor, block.step, block.done) = (Cursor::default(), None, false);
            (block.threads, block.control, block.signalled, block.in_kernel) = (at, at, false, false);
            self.wake(number(first + nth), at);
        }
    }

    /// Ends a block's call.
    pub(super) fn end(&mut self, index: u32) {
        let now = self.now(index);
        let state = &mut self.blocks[index as usize];
        state.done = true;
        let number = state.rank;
        let rank = &mut self.ranks[number as usize];
        rank.end = rank.end.max(now);
        rank.left -= 1;
        if rank.left > 0 {
            return;
        }
        // A kernel ends once what it has stored has arrived, as a release does.
        let arrived = if rank.stored > 0 { rank.stored + self.costs.release } else { 0 };
        let (call, end) = (rank.call as usize, rank.end.max(arrived));
        if self.ends.len() < call {
            self.ends.resize(call, 0);
        }
        self.ends[call - 1] = self.ends[call - 1].max(end);
        self.begin(number, end);
    }
}

/// Most initial values of a semaphore that can matter: more than a block has operations.
const TOKENS: u32 = 1 << 17;

/// An error unless memory channels and what moves reach stay within hosts.
fn on_one_host(plan: &Plan, machine: &Machine) -> Result<()> {
    for (rank, rank_plan) in (0..).zip(&plan.ranks) {
        let near = |peer: u32| machine.host(peer) == machine.host(rank);
        let switched = rank_plan.all_ops().any(|op| matches!(op, Op::Move(_)));
        let members = rank_plan.switches.iter().filter(|_| switched).flat_map(|switch| &switch.ranks);
        if let Some(peer) = rank_plan.memory_channels.iter().chain(members).find(|&&peer| !near(peer)) {
            return Err(refused(format!(
                "ranks {rank} and {peer} share memory and are on different hosts of {}, which have {} GPUs; \
                 describe a machine with more GPUs, or use port channels between hosts",
                machine.name, machine.gpus
            )));
        }
    }
    Ok(())
}
