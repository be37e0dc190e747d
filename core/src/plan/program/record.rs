//! Records what a program's author calls, as operations of the representation.
//!
//! Calls return no errors, so that programs read like MSCCL++'s. The first mistake is kept, with the author's line and the
//! place of the operation; calls after it are ignored, and building the plan returns the error.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;

use super::blocks::{Blocks, SyncType};
use super::ir::{Barrier, Block, Loop, Move, Op, Operation, RankPlan, Share};
use super::lines::{BlockLines, Line, Lines};
use super::pass::works;
use super::position::Position;
use crate::error::{Error, ErrorKind, Result};

/// A mistake, in one sentence without its place.
pub(super) type Fault = String;

/// A call of the author's: the function's name and the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    name: &'static str,
    line: Line,
}

impl Call {
    /// A call of the public function of that name, at the line where that function was called.
    #[track_caller]
    pub(super) fn of(name: &'static str) -> Self {
        Self { name, line: Location::caller() }
    }
}

/// The operations of a block, or of a block's part in a loop.
#[derive(Clone, Debug, Default)]
struct Record {
    ops: Vec<Operation>,
    lines: BlockLines,
}

impl Record {
    /// The origin of the next call.
    fn origin(&self) -> u32 {
        number(self.lines.calls.len())
    }

    fn push(&mut self, line: Line, sync: SyncType, op: Op) {
        let origin = self.origin();
        self.lines.calls.push(line);
        if sync.before() {
            self.sync(origin);
        }
        match op {
            Op::Sync => self.sync(origin),
            op => self.ops.push(op.at(origin)),
        }
        if sync.after() {
            self.sync(origin);
        }
    }

    /// Appends a sync unless the block's threads meet there already.
    fn sync(&mut self, origin: u32) {
        if !matches!(self.ops.last(), Some(Operation { op: Op::Sync | Op::Barrier(_), .. })) {
            self.ops.push(Op::Sync.at(origin));
        }
    }
}

#[derive(Debug)]
struct RankRecord {
    /// Everything but the blocks.
    plan: RankPlan,
    blocks: BTreeMap<u32, Record>,
    /// Numbers of barriers, by their blocks in ascending order.
    barriers: HashMap<Vec<u32>, u32>,
    /// Blocks that copy engines run, and where the program says so.
    copy_engines: BTreeMap<u32, Line>,
}

/// A loop whose body is being recorded.
#[derive(Debug)]
struct Looped {
    line: Line,
    unit: u64,
    chunks: u32,
    /// By rank and block.
    bodies: BTreeMap<(u32, u32), Record>,
}

#[derive(Debug)]
struct State {
    error: Option<Error>,
    ranks: Vec<RankRecord>,
    looped: Option<Looped>,
}

impl State {
    /// Keeps the first mistake; `place` is the rank and block whose next operation it is.
    fn fail(&mut self, call: Call, place: Option<(u32, u32)>, fault: &str) {
        let Call { name, line } = call;
        let at = place.map(|(rank, block)| format!("{}: ", self.next(rank, block))).unwrap_or_default();
        let error = Error::new(ErrorKind::Plan, name, format!("{line}: {at}{fault}"));
        self.error.get_or_insert(error);
    }

    /// Where the next operation of a block will stand.
    fn next(&self, rank: u32, block: u32) -> Position {
        let record = self.ranks.get(rank as usize).and_then(|rank| rank.blocks.get(&block));
        let op = record.map_or(0, Record::origin);
        let body = |looped: &Looped| looped.bodies.get(&(rank, block)).map_or(0, Record::origin);
        Position { rank, block, op, inner: self.looped.as_ref().map(body) }
    }

    fn push(&mut self, rank: u32, block: u32, line: Line, sync: SyncType, op: Op) {
        let record = match &mut self.looped {
            Some(looped) => looped.bodies.entry((rank, block)).or_default(),
            None => self.ranks[rank as usize].blocks.entry(block).or_default(),
        };
        record.push(line, sync, op);
    }
}

/// The calls so far.
#[derive(Debug)]
pub(super) struct Recorder {
    state: RefCell<State>,
    ranks: u32,
}

impl Recorder {
    pub(super) fn new(ranks: u32, input_chunks: u32, output_chunks: u32) -> Self {
        let rank = |_| RankRecord {
            plan: RankPlan { input_chunks, output_chunks, ..RankPlan::default() },
            blocks: BTreeMap::new(),
            barriers: HashMap::new(),
            copy_engines: BTreeMap::new(),
        };
        let state = State { error: None, ranks: (0..ranks).map(rank).collect(), looped: None };
        Self { state: RefCell::new(state), ranks }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Keeps a mistake that is no operation's.
    pub(super) fn fail(&self, call: Call, fault: &str) {
        self.state.borrow_mut().fail(call, None, fault);
    }

    /// Why a rank is none of the program's, if so.
    pub(super) fn known(&self, rank: u32) -> std::result::Result<(), Fault> {
        let all = self.ranks;
        if rank < all { Ok(()) } else { Err(format!("rank {rank} is none of the program's {all} ranks")) }
    }

    /// Changes a rank's tables of buffers, channels and semaphores. `None` after a mistake.
    pub(super) fn declare<T>(
        &self,
        call: Call,
        rank: u32,
        declare: impl FnOnce(&mut RankPlan) -> std::result::Result<T, Fault>,
    ) -> Option<T> {
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return None;
        }
        let declared = self.known(rank).and_then(|()| declare(&mut state.ranks[rank as usize].plan));
        declared.map_err(|fault| state.fail(call, None, &fault)).ok()
    }

    /// Records an operation of one block.
    pub(super) fn op(
        &self,
        call: Call,
        (rank, block): (u32, u32),
        sync: SyncType,
        op: std::result::Result<Op, Fault>,
    ) {
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return;
        }
        match op {
            Ok(op) => state.push(rank, block, call.line, sync, op),
            Err(fault) => state.fail(call, Some((rank, block)), &fault),
        }
    }

    /// Records a move of a block, or a share of it in each block of a group.
    pub(super) fn moved(
        &self,
        call: Call,
        rank: u32,
        blocks: Blocks<'_>,
        moved: std::result::Result<Move, Fault>,
    ) {
        let group = match blocks {
            Blocks::One(block) => {
                return self.op(
                    call,
                    (rank, block),
                    SyncType::None,
                    moved.map(|moved| Op::Move(moved.into())),
                );
            }
            Blocks::Group(group) => group.blocks(),
        };
        if let Err(fault) = distinct(group, "a thread block group") {
            return self.fail(call, &fault);
        }
        for (member, &block) in (0..).zip(group) {
            let share = (group.len() > 1).then(|| Share { member, of: number(group.len()) });
            let moved = moved.clone().map(|moved| Op::Move(Move { share, ..moved }.into()));
            self.op(call, (rank, block), SyncType::None, moved);
        }
    }

    /// Gives a block to a copy engine.
    pub(super) fn copy_engine(&self, call: Call, rank: u32, block: u32) {
        let mut state = self.state.borrow_mut();
        match self.known(rank) {
            Ok(()) => _ = state.ranks[rank as usize].copy_engines.entry(block).or_insert(call.line),
            Err(fault) => state.fail(call, None, &fault),
        }
    }

    /// Records a meeting of blocks.
    pub(super) fn barrier(&self, call: Call, rank: u32, mut blocks: Vec<u32>) {
        if let Err(fault) = distinct(&blocks, "a barrier") {
            return self.fail(call, &fault);
        }
        if let [block] = blocks[..] {
            return self.op(call, (rank, block), SyncType::None, Ok(Op::Sync));
        }
        blocks.sort_unstable();
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return;
        }
        let barriers = &mut state.ranks[rank as usize].barriers;
        let next = number(barriers.len());
        let id = *barriers.entry(blocks.clone()).or_insert(next);
        let barrier = Barrier { id, blocks: number(blocks.len()) };
        for block in blocks {
            state.push(rank, block, call.line, SyncType::None, Op::Barrier(barrier));
        }
    }

    /// Records what `body` calls as the body of a loop.
    pub(super) fn looped<T>(&self, call: Call, unit: u64, chunks: u32, body: impl FnOnce() -> T) -> T {
        {
            let mut state = self.state.borrow_mut();
            if state.looped.is_some() {
                state.fail(call, None, "a loop cannot stand in a loop; end the outer one first");
            } else if unit == 0 || chunks == 0 {
                state.fail(call, None, "a loop needs a unit of at least one byte and at least one chunk");
            } else if state.error.is_none() {
                let line = call.line;
                state.looped = Some(Looped { line, unit, chunks, bodies: BTreeMap::new() });
            }
        }
        let value = body();
        let mut state = self.state.borrow_mut();
        if state.error.is_some() {
            return value;
        }
        let Some(Looped { line, unit, chunks, bodies }) = state.looped.take() else { return value };
        for ((rank, block), body) in bodies {
            let record = state.ranks[rank as usize].blocks.entry(block).or_default();
            record.lines.loops.insert(record.origin(), body.lines.calls);
            let repeated = Loop { unit, chunks, body: body.ops };
            record.push(line, SyncType::None, Op::Loop(repeated.into()));
        }
        value
    }

    /// The lines of all calls.
    pub(super) fn lines(&self) -> Lines {
        let state = self.state.borrow();
        let lines = |rank: &RankRecord| {
            rank.blocks.iter().map(|(&block, record)| (block, record.lines.clone())).collect()
        };
        Lines { ranks: state.ranks.iter().map(lines).collect() }
    }

    /// The lines of the blocks that [`resources`](super::pass::resources) keeps, by their numbers behind it.
    pub(super) fn lines_of_work(&self) -> Lines {
        let state = self.state.borrow();
        let lines = |rank: &RankRecord| {
            let kept = rank.blocks.values().filter(|record| works(&record.ops));
            (0..).zip(kept.map(|record| record.lines.clone())).collect()
        };
        Lines { ranks: state.ranks.iter().map(lines).collect() }
    }

    /// The ranks' parts of the plan and the lines of all calls, or the first mistake.
    pub(super) fn finish(self) -> Result<(Vec<RankPlan>, Lines)> {
        let State { error, ranks, .. } = self.state.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        let mut plans = Vec::with_capacity(ranks.len());
        let mut lines = Vec::with_capacity(ranks.len());
        for (rank, record) in (0..).zip(ranks) {
            let (mut plan, mut copy_engines) = (record.plan, record.copy_engines);
            let mut of_blocks = BTreeMap::new();
            for (next, (block, record)) in (0..).zip(record.blocks) {
                if block != next {
                    return Err(gap(rank, block, next, record.lines.calls[0]));
                }
                let mut ops = record.ops;
                ops.shrink_to_fit();
                let copy_engine = copy_engines.remove(&block).is_some();
                plan.blocks.push(Block { ops, copy_engine });
                of_blocks.insert(block, record.lines);
            }
            if let Some((block, line)) = copy_engines.pop_first() {
                let message = format!(
                    "{line}: rank {rank} gives block {block} to a copy engine, but it has no operations"
                );
                return Err(Error::new(ErrorKind::Plan, "CollectiveProgram::build", message));
            }
            plans.push(plan);
            lines.push(of_blocks);
        }
        Ok((plans, Lines { ranks: lines }))
    }
}

/// Blocks are numbered without gaps: a block without operations is a mistake, and a large number must not take memory.
fn gap(rank: u32, block: u32, missing: u32, line: Line) -> Error {
    let message = format!(
        "{line}: rank {rank} has operations of block {block}, but none of block {missing}; \
         number its blocks from 0 without gaps"
    );
    Error::new(ErrorKind::Plan, "CollectiveProgram::build", message)
}

/// Refuses a list of blocks that is empty or has one twice.
fn distinct(blocks: &[u32], noun: &str) -> std::result::Result<(), Fault> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("{noun} has block {} twice; name each once", twice[0]));
    }
    if blocks.is_empty() { Err(format!("{noun} needs at least one block")) } else { Ok(()) }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
