//! Insertion of syncs: as few as order every dependence within a block.
//!
//! `docs/plans.md` lists the dependences. All syncs of the plan are taken out, and the fewest put in that hit every dependence;
//! barriers count as syncs.

use super::effects::{Sharing, Timeline, blocks};
use super::ir::{Block, Loop, Op, Operation, Plan};
use super::item::Item;
use super::{checked, stab};
use crate::error::Result;

/// Inserts the syncs that a plan needs and removes those that it does not.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan's structure is wrong or it has too many chunks.
pub fn sync(plan: &Plan) -> Result<Plan> {
    checked(plan)?;
    let sharing = Sharing::of(plan);
    let mut placed = plan.clone();
    let mut slots = placed.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for (timeline, rank, block) in blocks(plan) {
        if let Some(slot) = slots.next() {
            slot.ops = Line::of(&sharing, timeline, rank, block).place(block);
        }
    }
    Ok(placed)
}

/// A loop's items.
struct Body {
    first: usize,
    end: usize,
    /// Syncs that stood before and in it.
    syncs: std::ops::Range<usize>,
}

/// A block's operations in a row.
struct Line {
    items: Vec<Item>,
    /// Loop that each is in.
    within: Vec<Option<usize>>,
    bodies: Vec<Body>,
}

impl Line {
    fn of(sharing: &Sharing<'_>, timeline: Timeline, rank: u32, block: &Block) -> Self {
        let mut line = Self { items: Vec::new(), within: Vec::new(), bodies: Vec::new() };
        let mut syncs = 0;
        for operation in &block.ops {
            let within = matches!(operation.op, Op::Loop(_)).then_some(line.bodies.len());
            let (first, before) = (line.items.len(), syncs);
            let ops = match &operation.op {
                Op::Loop(repeated) => &repeated.body[..],
                _ => std::slice::from_ref(operation),
            };
            for operation in ops {
                if operation.op == Op::Sync {
                    syncs += 1;
                } else {
                    line.items.push(Item::of(sharing, timeline, rank, &operation.op, syncs));
                    line.within.push(within);
                }
            }
            if within.is_some() {
                line.bodies.push(Body { first, end: line.items.len(), syncs: before..syncs });
            }
        }
        line
    }

    /// Whether item `b` must come after a sync behind item `a`. `around`: b of a loop's next iteration.
    fn depends(&self, a: usize, b: usize, around: bool) -> bool {
        self.items[a].before(&self.items[b], around, || self.had_sync(a, b, around))
    }

    /// Whether the plan has a sync between two items.
    fn had_sync(&self, a: usize, b: usize, around: bool) -> bool {
        let (first, second) = (self.items[a].syncs, self.items[b].syncs);
        match self.within[a].filter(|_| around) {
            Some(body) => {
                let all = &self.bodies[body].syncs;
                first < all.end || second > all.start
            }
            None => first < second,
        }
    }

    /// The block's operations with syncs where they must be.
    fn place(&self, block: &Block) -> Vec<Operation> {
        let mut inner = vec![false; self.items.len() + 1];
        for Body { first, end, .. } in &self.bodies {
            let fixed = |gap: usize| self.items[first + gap].barrier;
            let depends = |a: usize, b: usize| self.depends(first + a, first + b, b <= a);
            let points = stab::circle(end - first, fixed, depends);
            points.into_iter().for_each(|point| inner[first + point] = true);
        }
        let fixed = |gap: usize| inner[gap] || self.items[gap].barrier;
        let depends = |a: usize, b: usize| {
            let within = self.within[b];
            (within.is_none() || within != self.within[a]) && self.depends(a, b, false)
        };
        // A sync within a loop would run in each iteration: better once before it.
        let last_gap = |item: usize| self.within[item].map_or(item, |body| self.bodies[body].first);
        let mut outer = vec![false; self.items.len() + 1];
        for point in stab::line(self.items.len(), fixed, depends, last_gap) {
            outer[point] = true;
        }
        let mut next = 0;
        rebuilt(&block.ops, &mut next, &mut outer, &mut inner)
    }
}

/// Operations without their syncs and with those of `points`, which are by item; loops take theirs from `inner`.
fn rebuilt(ops: &[Operation], next: &mut usize, points: &mut [bool], inner: &mut [bool]) -> Vec<Operation> {
    let mut placed = Vec::with_capacity(ops.len());
    let mut old = None;
    for operation in ops {
        if operation.op == Op::Sync {
            old = Some(operation.origin);
            continue;
        }
        if std::mem::take(&mut points[*next]) {
            placed.push(Op::Sync.at(old.unwrap_or(operation.origin)));
        }
        old = None;
        let op = match &operation.op {
            Op::Loop(repeated) => {
                let body = rebuilt(&repeated.body, next, inner, &mut []);
                Op::Loop(Box::new(Loop { body, ..**repeated }))
            }
            op => {
                *next += 1;
                op.clone()
            }
        };
        placed.push(op.at(operation.origin));
    }
    placed
}
