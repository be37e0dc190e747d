//! Insertion of syncs: as few as order every dependence within a block.
//!
//! `docs/plans.md` lists the dependences. All syncs of the plan are taken out, and the fewest put in that hit every dependence;
//! barriers count as syncs.

use super::effects::{Effects, Sharing, Span, Timeline, blocks};
use super::ir::{Block, Loop, Op, Operation, Plan};
use super::{checked, refused, stab};
use crate::error::Result;

/// Inserts the syncs that a plan needs and removes those that it does not.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan's structure is wrong or it has too many chunks.
pub fn sync(plan: &Plan) -> Result<Plan> {
    checked(plan)?;
    let sharing = Sharing::of(plan).ok_or_else(|| refused("the buffers have too many chunks; use fewer"))?;
    let mut placed = plan.clone();
    let mut slots = placed.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    for (timeline, rank, block) in blocks(plan) {
        if let Some(slot) = slots.next() {
            slot.ops = Line::of(&sharing, timeline, rank, block).place(block);
        }
    }
    Ok(placed)
}

/// An operation that is neither sync nor loop.
struct Item {
    effects: Effects,
    /// Effects are those of the block's threads, which only syncs order.
    moves: bool,
    barrier: bool,
    /// Makes known what others did: to moves after the next sync.
    learns: bool,
    /// Makes known what moves before the last sync did; `Some(true)` only their reads.
    tells: Option<bool>,
    /// A move that accesses something that others access, too.
    shared: bool,
    /// Reads such.
    shared_read: bool,
    /// Accesses such other than by reading packets, which bring their own order.
    needs: bool,
    /// Reads packets that others write, writes packets that others read.
    reads_packets: bool,
    writes_packets: bool,
    /// Loop that it is in, as a number of its block.
    within: Option<usize>,
    /// Syncs that stood before it.
    syncs: usize,
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
    bodies: Vec<Body>,
}

impl Line {
    fn of(sharing: &Sharing<'_>, timeline: Timeline, rank: u32, block: &Block) -> Self {
        let mut line = Self { items: Vec::new(), bodies: Vec::new() };
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
                    line.items.push(Item::of(sharing, timeline, rank, &operation.op, within, syncs));
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
        let (first, second) = (&self.items[a], &self.items[b]);
        let told = |reads_only: bool| if reads_only { first.shared_read } else { first.shared };
        first.learns && second.moves && second.needs
            || first.moves && second.tells.is_some_and(told)
            || first.moves && conflict(&first.effects, &second.effects, around)
            // What a packet tells beyond its own element is of use in few plans: their authors put a sync, which stays.
            || self.had_sync(a, b, around)
                && (first.reads_packets && second.needs || first.moves && first.shared && second.writes_packets)
    }

    /// Whether the plan has a sync between two items.
    fn had_sync(&self, a: usize, b: usize, around: bool) -> bool {
        let (first, second) = (self.items[a].syncs, self.items[b].syncs);
        match self.items[a].within.filter(|_| around) {
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
            let within = self.items[b].within;
            (within.is_none() || within != self.items[a].within) && self.depends(a, b, false)
        };
        // A sync within a loop would run in each iteration: better once before it.
        let last_gap = |item: usize| self.items[item].within.map_or(item, |body| self.bodies[body].first);
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

impl Item {
    fn of(
        sharing: &Sharing<'_>,
        timeline: Timeline,
        rank: u32,
        op: &Op,
        within: Option<usize>,
        syncs: usize,
    ) -> Self {
        let effects = sharing.map.effects(rank, op);
        let shared = |span: &Span, write| sharing.shared(timeline, rank, span, write);
        let shared_read = effects.reads.iter().any(|span| shared(span, false));
        let shared_write = effects.writes.iter().any(|span| shared(span, true));
        let needs = shared_write || effects.reads.iter().any(|span| !span.packets && shared(span, false));
        let (moves, port) = match op {
            Op::Move(_) => (true, None),
            Op::Port(put) => (false, Some(put)),
            _ => (false, None),
        };
        let packets = |spans: &[Span], write| spans.iter().any(|span| span.packets && shared(span, write));
        let forwards = port.is_some_and(|put| put.forward);
        let tells = match op {
            Op::Signal { relaxed, .. } => Some(*relaxed),
            Op::Release { .. } => Some(false),
            _ => port.filter(|put| put.signal).map(|_| false),
        };
        let waits = matches!(op, Op::Wait { .. } | Op::Acquire { .. } | Op::Flush { .. });
        Self {
            moves,
            barrier: matches!(op, Op::Barrier(_)),
            learns: waits || port.is_some_and(|put| put.flush),
            tells,
            shared: moves && (shared_read || shared_write),
            shared_read: moves && shared_read,
            needs,
            reads_packets: (moves || forwards) && packets(&effects.reads, false),
            writes_packets: packets(&effects.writes, true),
            within,
            syncs,
            effects,
        }
    }
}

/// Whether two accesses of one block must be in order: one of them writes what the other accesses.
///
/// A packet that comes from the same block brings its order with it. In the next iteration of a loop, ranges that begin at the
/// same chunk are other slices of it.
fn conflict(first: &Effects, second: &Effects, around: bool) -> bool {
    let meet = |a: &Span, b: &Span| a.overlaps(b) && !(around && a.start == b.start);
    let any = |left: &[Span], right: &[Span], skip: fn(&Span, &Span) -> bool| {
        left.iter().any(|a| right.iter().any(|b| meet(a, b) && !skip(a, b)))
    };
    any(&first.writes, &second.reads, |write, read| write.packets && read.packets)
        || any(&first.writes, &second.writes, |_, _| false)
        || any(&first.reads, &second.writes, |_, _| false)
}
