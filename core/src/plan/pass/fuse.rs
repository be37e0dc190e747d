//! Fusion: operations that share operands become one, and what nobody reads is no longer written.
//!
//! Two operations of a list fuse if one of them may be carried to the other over everything between: nothing between depends
//! on it, nor it on anything there, and nobody waits for something that it would come to stand behind. `docs/plans.md` has the
//! rules as a table.

use super::check;
use super::effects::{Readers, Sharing, Timeline, blocks, flat};
use super::geometry::operands;
use super::ir::{Form, Loop, Move, Op, Operation, Plan};
use super::item::{Entry, Item};
use super::{checked, join, requests, sync};
use crate::error::Result;

/// Most operations that a partner is looked for among.
const LOOK: usize = 64;

/// The moves that fusion may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shapes {
    /// All.
    #[default]
    Any,
    /// Those that plan files have a name for.
    Named,
}

/// Fuses operations within each block and removes what this makes superfluous: writes to scratch that nobody reads, and syncs.
///
/// Packets may tell their reader more than their own element, over a sync that stands there for another reason. So a plan with
/// packets is fused as if they did not, and if the checks then find anything, once more with every such order kept.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan's structure is wrong or it has too many chunks.
pub fn fuse(plan: &Plan, shapes: Shapes) -> Result<Plan> {
    checked(plan)?;
    let bold = fused(&without_syncs(plan), shapes)?;
    let packets = blocks(plan).flat_map(|(_, _, block)| block.ops.iter().flat_map(flat)).any(|op| match op {
        Op::Move(moved) => operands(moved).any(|operand| operand.form == Form::Packets),
        Op::Port(put) => put.form == Form::Packets,
        _ => false,
    });
    if packets && !check::check(&bold).is_empty() {
        return fused(plan, shapes);
    }
    Ok(bold)
}

fn without_syncs(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for block in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks) {
        block.ops.retain_mut(|operation| {
            if let Op::Loop(repeated) = &mut operation.op {
                repeated.body.retain(|operation| operation.op != Op::Sync);
            }
            operation.op != Op::Sync
        });
    }
    plan
}

fn fused(plan: &Plan, shapes: Shapes) -> Result<Plan> {
    let sharing = Sharing::of(plan);
    let mut readers = Readers::of(plan);
    let mut fused = plan.clone();
    let mut slots = fused.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for (timeline, rank, block) in blocks(plan) {
        let mut list =
            List { sharing: &sharing, timeline, rank, shapes, readers: &mut readers, in_loop: false };
        if let Some(slot) = slots.next() {
            slot.ops = list.fused(&block.ops);
        }
    }
    for (rank, plan) in (0..).zip(&mut fused.ranks) {
        plan.blocks.iter_mut().for_each(|block| unread(&sharing, rank, shapes, &readers, &mut block.ops));
    }
    sync(&fused)
}

/// A block's operations, or a loop's.
struct List<'f, 'p> {
    sharing: &'f Sharing<'p>,
    timeline: Timeline,
    rank: u32,
    shapes: Shapes,
    readers: &'f mut Readers,
    in_loop: bool,
}

impl List<'_, '_> {
    fn item(&self, op: &Op, syncs: usize) -> Item {
        Item::of(self.sharing, self.timeline, self.rank, op, syncs)
    }

    fn fused(&mut self, ops: &[Operation]) -> Vec<Operation> {
        let mut syncs = 0;
        let mut entries = Vec::with_capacity(ops.len());
        for operation in ops {
            syncs += usize::from(operation.op == Op::Sync);
            let op = match &operation.op {
                Op::Loop(repeated) => {
                    self.in_loop = true;
                    let body = self.fused(&repeated.body);
                    self.in_loop = false;
                    Op::Loop(Box::new(Loop { body, ..**repeated }))
                }
                op => op.clone(),
            };
            let item = self.item(&op, syncs);
            entries.push(Entry { operation: op.at(operation.origin), item });
        }
        let mut first = 0;
        while first < entries.len() {
            // An operation that has become another may find a partner again.
            if !self.partner(&mut entries, first) {
                first += 1;
            }
        }
        let mut fused: Vec<Operation> = entries.into_iter().map(|entry| entry.operation).collect();
        requests::listed(&mut fused);
        fused
    }

    /// Fuses an operation with one of the next. Returns whether it did.
    fn partner(&mut self, entries: &mut Vec<Entry>, first: usize) -> bool {
        if !matches!(entries[first].operation.op, Op::Move(_) | Op::Port(_)) {
            return false;
        }
        for second in first + 1..entries.len().min(first + LOOK) {
            let entry = &entries[second];
            if entry.item.barrier || matches!(entry.operation.op, Op::Loop(_)) {
                return false;
            }
            let fused = match (&entries[first].operation.op, &entry.operation.op) {
                (Op::Move(a), Op::Move(b)) => self.moves(entries, (first, a), (second, b)),
                (Op::Port(put), op) => requests::joined(put, op).and_then(|put| {
                    let free =
                        rises(entries, first, second, false) && requests::close(&entries[first..=second]);
                    free.then(|| (first, Op::Port(Box::new(put))))
                }),
                _ => None,
            };
            if let Some((at, op)) = fused {
                let item = self.item(&op, entries[at].item.syncs);
                let origin = entries[first].operation.origin;
                entries[at] = Entry { operation: op.at(origin), item };
                entries.remove(if at == first { second } else { first });
                return true;
            }
        }
        false
    }

    /// The fusion of two moves and where it stands, if there is one.
    fn moves(
        &mut self,
        entries: &[Entry],
        (first, a): (usize, &Move),
        (second, b): (usize, &Move),
    ) -> Option<(usize, Op)> {
        let (map, rank) = (&self.sharing.map, self.rank);
        let rises = |new| rises(entries, first, second, new);
        let (moved, at, unread) = if let Some((moved, read)) = join::chained(map, rank, a, b) {
            (moved, rises(false).then_some(first)?, vec![read])
        } else if let Some(moved) = join::same_sources(map, rank, a, b) {
            (moved, rises(false).then_some(first)?, a.sources.clone())
        } else if let Some((moved, read)) = join::accumulated(map, rank, a, b) {
            // The result in between is written no more, so nobody may read it, or it is overwritten anyway.
            let gone = b.targets.contains(&read)
                || read.is_scratch(map.plan, rank) && self.readers.only(&map.spans(rank, &read, a.count));
            (moved, gone.then_some(sinks(entries, first, second).then_some(second)?)?, vec![read])
        } else {
            // In a loop, all operations have the loop's count. What the second waits for may be the answer to the first.
            let answered = entries[first].item.awaited() && entries[second].item.waits();
            let moved = join::neighbours(map, rank, a, b).filter(|_| !self.in_loop && !answered)?;
            (moved, rises(true).then_some(first)?, Vec::new())
        };
        let allowed = self.shapes == Shapes::Any || super::file::named(&moved);
        if !allowed || !join::legal(map, rank, &moved) {
            return None;
        }
        for operand in unread {
            self.readers.forget(&self.sharing.map.spans(rank, &operand, a.count));
        }
        Some((at, Op::Move(Box::new(moved))))
    }
}

/// Whether an operation may be carried up to just behind another. `waits`: with it what it waits for, which must not come to
/// stand before what somebody else waits for.
fn rises(entries: &[Entry], first: usize, second: usize, waits: bool) -> bool {
    let moving = &entries[second].item;
    entries[first + 1..second].iter().all(|between| {
        let depends = between.item.feeds(moving)
            || between.item.before(moving, false, || between.item.syncs < moving.syncs);
        !(depends || waits && moving.waits() && between.item.awaited())
    })
}

/// Whether an operation may be carried down to just before another.
fn sinks(entries: &[Entry], first: usize, second: usize) -> bool {
    let moving = &entries[first].item;
    entries[first + 1..second].iter().all(|between| {
        let depends = moving.feeds(&between.item)
            || moving.before(&between.item, false, || moving.syncs < between.item.syncs);
        !(depends || moving.awaited() && between.item.waits())
    })
}

/// Removes targets in scratch that nobody reads, as long as others remain.
fn unread(sharing: &Sharing<'_>, rank: u32, shapes: Shapes, readers: &Readers, ops: &mut [Operation]) {
    for operation in ops {
        match &mut operation.op {
            Op::Loop(repeated) => unread(sharing, rank, shapes, readers, &mut repeated.body),
            Op::Move(moved) => {
                let map = &sharing.map;
                let (read, dead): (Vec<_>, Vec<_>) = moved.targets.iter().partition(|target| {
                    !target.is_scratch(map.plan, rank) || readers.any(&map.spans(rank, target, moved.count))
                });
                let rest = Move { targets: read, ..(**moved).clone() };
                let allowed = shapes == Shapes::Any || super::file::named(&rest);
                if !dead.is_empty() && !rest.targets.is_empty() && allowed {
                    **moved = rest;
                }
            }
            _ => {}
        }
    }
}
