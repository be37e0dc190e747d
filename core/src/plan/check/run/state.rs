//! The state of a run.

use std::collections::{HashMap, HashSet, VecDeque};

use super::super::cells::Cells;
use super::super::clock::Knowledge;
use super::super::cursor::{Cursor, Step};
use super::super::ends::Ends;
use super::super::finding::{Finding, FindingKind};
use super::super::geometry::{Layout, operands};
use super::super::ir::{Form, Op, Plan};
use super::super::packets::Packets;
use super::super::position::Position;
use super::super::resolution::Resolution;
use super::super::semaphores::Semaphore;
use super::super::structure::flat;
use super::super::values::{ValueId, Values};

/// Most atoms of memory of all ranks. Each takes some 330 bytes, so that a small file cannot ask for more than 3 GB; a ring
/// all-reduce of 2,048 ranks has as many.
const CELLS: u64 = 1 << 23;

/// Most entries of the clocks that blocks begin a call with: one of each timeline for each block, of 4 bytes, three times.
const ENTRIES: u64 = 1 << 28;

/// A block of the run.
pub(super) struct Block<'p> {
    pub(super) rank: u32,
    pub(super) block: u32,
    pub(super) cursor: Cursor,
    /// The operation that the block is at, and how far a move has come.
    pub(super) step: Option<Step<'p>>,
    pub(super) progress: u64,
    /// Number of the operation among all that the block has ever run.
    pub(super) event: u32,
    /// Event before the first operation of each call.
    pub(super) starts: Vec<u32>,
    /// Clock of moves: everything before the last sync.
    pub(super) base: Knowledge,
    /// Clock of control operations, which moves take over at the next sync.
    pub(super) control: Knowledge,
    /// Clock learned from packets since the last sync.
    pub(super) pending: Option<Knowledge>,
    /// A barrier that the block has come to.
    pub(super) at_barrier: bool,
    pub(super) done: bool,
}

/// A rank of the run.
pub(super) struct Rank {
    pub(super) layout: Layout,
    /// First cell.
    pub(super) first: u64,
    /// First block.
    pub(super) blocks: usize,
    pub(super) call: u32,
    /// Blocks that have not ended the call.
    pub(super) left: usize,
    pub(super) know: Knowledge,
    pub(super) semaphores: Vec<Semaphore>,
    pub(super) barriers: HashMap<u32, Meeting>,
    pub(super) told: bool,
}

/// A barrier that some blocks have come to.
pub(super) struct Meeting {
    pub(super) came: Vec<u32>,
    pub(super) know: Knowledge,
}

/// A proxy of a port channel.
pub(super) struct Proxy {
    pub(super) event: u32,
    pub(super) know: Knowledge,
    /// Block and event that asked for each event.
    pub(super) asked: Vec<(u32, u32)>,
}

pub(super) struct Run<'p> {
    pub(super) plan: &'p Plan,
    pub(super) ends: Ends,
    pub(super) resolution: Resolution,
    pub(super) calls: u32,
    pub(super) cells: Cells,
    pub(super) values: Values,
    pub(super) packets: Packets,
    pub(super) ranks: Vec<Rank>,
    pub(super) blocks: Vec<Block<'p>>,
    pub(super) proxies: Vec<Proxy>,
    /// Number of each rank's first proxy.
    pub(super) first_proxy: Vec<usize>,
    pub(super) signals: Vec<VecDeque<Knowledge>>,
    /// Blocks that wait at each end.
    pub(super) signal_waiters: Vec<Vec<u32>>,
    pub(super) packet_waiters: HashMap<usize, Vec<u32>>,
    /// Blocks that may go on.
    pub(super) ready: Vec<u32>,
    /// Hashes of expected reductions.
    pub(super) expected: HashMap<(u32, u32, u32), u128>,
    /// Results of reducing moves, if they are asked for.
    pub(super) results: Option<Vec<(Position, ValueId)>>,
    pub(super) findings: Vec<Finding>,
    pub(super) seen: HashSet<(FindingKind, Option<Position>, Option<Position>)>,
}

impl<'p> Run<'p> {
    pub(super) fn new(plan: &'p Plan, calls: u32) -> Result<Self, String> {
        let resolution = Resolution::of(plan)
            .ok_or("loops and groups of blocks cut chunks in too many different ways; use units and groups that divide each other")?;
        let ops =
            || plan.ranks.iter().flat_map(|rank| &rank.blocks).flat_map(|block| &block.ops).flat_map(flat);
        let packets = ops().any(|op| match op {
            Op::Move(moved) => operands(moved).any(|operand| operand.form == Form::Packets),
            Op::Port(put) => put.form == Form::Packets,
            _ => false,
        });
        let blocks: usize = plan.ranks.iter().map(|rank| rank.blocks.len()).sum();
        let proxies: usize = plan.ranks.iter().map(|rank| rank.port_channels.len()).sum();
        let timelines = plan.ranks.len() + blocks + proxies;
        let nothing = Knowledge::new(timelines, packets);
        let ends = Ends::of(plan);
        let mut run = Self {
            plan,
            resolution,
            calls,
            cells: Cells::new(0),
            values: Values::new(),
            packets: Packets::default(),
            ranks: Vec::new(),
            blocks: Vec::new(),
            proxies: (0..proxies)
                .map(|_| Proxy { event: 0, know: nothing.clone(), asked: Vec::new() })
                .collect(),
            first_proxy: Vec::new(),
            signals: (0..ends.len()).map(|_| VecDeque::new()).collect(),
            signal_waiters: vec![Vec::new(); ends.len()],
            ends,
            packet_waiters: HashMap::new(),
            ready: Vec::new(),
            expected: HashMap::new(),
            results: None,
            findings: Vec::new(),
            seen: HashSet::new(),
        };
        let (mut first, mut proxy) = (0, 0);
        for (rank, rank_plan) in (0..).zip(&plan.ranks) {
            let layout = Layout::of(plan, rank);
            run.ranks.push(Rank {
                layout,
                first,
                blocks: run.blocks.len(),
                call: 0,
                left: 0,
                know: nothing.clone(),
                semaphores: Semaphore::of(rank_plan),
                barriers: HashMap::new(),
                told: false,
            });
            run.first_proxy.push(proxy);
            proxy += rank_plan.port_channels.len();
            first = first.saturating_add(layout.chunks.saturating_mul(resolution.atoms));
            for block in 0..number(rank_plan.blocks.len()) {
                run.blocks.push(Block {
                    rank,
                    block,
                    cursor: Cursor::default(),
                    step: None,
                    progress: 0,
                    event: 0,
                    starts: Vec::new(),
                    base: nothing.clone(),
                    control: nothing.clone(),
                    pending: None,
                    at_barrier: false,
                    done: true,
                });
            }
        }
        let (blocks, timelines) =
            (run.blocks.len() as u64, (run.ranks.len() + run.blocks.len() + proxy) as u64);
        if blocks.saturating_mul(timelines) > ENTRIES {
            return Err(format!(
                "{blocks} blocks of {} ranks are more than a check can follow: it keeps for each block what it knows of all others",
                run.ranks.len()
            ));
        }
        if first > CELLS {
            let largest = (0_u32..).zip(&run.ranks).max_by_key(|(_, rank)| rank.layout.chunks);
            let largest = largest.map_or(0, |(rank, _)| rank);
            return Err(format!(
                "the buffers have more than {CELLS} chunks, or parts of chunks that loops cut, most of them at rank {largest}; use fewer"
            ));
        }
        run.cells = Cells::new(usize::try_from(first).unwrap_or(0));
        Ok(run)
    }

    pub(super) fn timeline(&self, block: u32) -> u32 {
        number(self.ranks.len()) + block
    }

    pub(super) fn proxy_timeline(&self, proxy: usize) -> u32 {
        number(self.ranks.len() + self.blocks.len() + proxy)
    }
}

pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
