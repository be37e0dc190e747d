//! Pipelining: what hands data on is repeated over slices, so that one block is at a slice while another one has the next.
//!
//! The author's program says which block does what to whole chunks, and with what signals and semaphores blocks hand them on. In each block the
//! operations from the first to the last that move data, or that tell of it or hear of it, become the body of a loop. What only tells that a
//! call has begun stays in front. Slice k of an operation then comes behind slice k of all that whole operations came
//! behind, and slices of one number are the same bytes in all operations that meet in a chunk.

use std::collections::{HashMap, hash_map::Entry};

use super::check::{self, Ends, LOOP_UNIT};
use super::effects::Map;
use super::ir::{Block, Channel, ChannelKind, Loop, Op, Plan};
use super::{checked, refused};
use crate::error::Result;
use crate::plan::Position;

/// Repeats what hands data on over slices of `unit` bytes.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan), with the operation that is to blame, if the plan's structure is wrong, it has loops or chunks of
/// sizes of their own, its moves are not all of one number of chunks, two of them overlap at different places of their ranges,
/// or blocks hand data on where some wait for it and others for something else; and for a unit that is no multiple of 16.
pub fn pipeline(plan: &Plan, unit: u64) -> Result<Plan> {
    checked(plan)?;
    if unit == 0 || !unit.is_multiple_of(LOOP_UNIT) {
        return Err(refused(format!("slices of {unit} bytes; use a multiple of {LOOP_UNIT}")));
    }
    if plan.settings.variable_chunks {
        return Err(refused(
            "chunks have sizes of their own, so ranks do not know how many slices there are",
        ));
    }
    let Some(chunks) = chunks(plan)? else { return Ok(plan.clone()) };
    same_places(plan)?;
    let handed = Handed::of(plan)?;
    let mut made = plan.clone();
    for (rank, slot) in (0..).zip(&mut made.ranks) {
        for (block, slot) in (0..).zip(&mut slot.blocks) {
            let marks = &handed.marks[&(rank, block)];
            *slot = looped(slot, marks, unit, chunks).map_err(|index| {
                let position = Position::of(plan, rank, block, index, None);
                refused(format!(
                    "{position}: stands between operations that hand data on, but what it waits for is no data; let the block wait for it first"
                ))
            })?;
        }
    }
    match check::structure(&made).first() {
        None => Ok(made),
        Some(finding) => Err(refused(format!("in slices: {finding}"))),
    }
}

/// The chunks of every operation that moves data; `None` if there is none.
fn chunks(plan: &Plan) -> Result<Option<u32>> {
    let mut first: Option<(u32, Position)> = None;
    for (place, op) in places(plan) {
        let count = match op {
            Op::Move(moved) => moved.count,
            Op::Port(put) => put.count,
            Op::Loop(_) => {
                let position = place.position(plan);
                return Err(refused(format!(
                    "{position}: a loop of the author's; pipeline either by hand or by this pass"
                )));
            }
            _ => continue,
        };
        match &first {
            Some((chunks, other)) if *chunks != count => {
                let position = place.position(plan);
                return Err(refused(format!(
                    "{position}: moves {count} chunks, and {other} {chunks}; slices need moves of one number of chunks"
                )));
            }
            Some(_) => {}
            None => first = Some((count, place.position(plan))),
        }
    }
    Ok(first.map(|(chunks, _)| chunks))
}

/// An error unless operations that meet in a chunk, one of which writes it, have their ranges at the same place.
fn same_places(plan: &Plan) -> Result<()> {
    /// Of a chunk: where ranges begin that hold it, whether they differ, and whether one is written.
    struct Met {
        start: u64,
        differ: bool,
        written: bool,
    }
    let map = Map::of(plan);
    let mut met: HashMap<(u32, u64), Met> = HashMap::new();
    for (place, op) in places(plan) {
        let effects = map.effects(place.rank, op);
        let all = effects.reads.iter().map(|span| (span, false));
        for (span, written) in all.chain(effects.writes.iter().map(|span| (span, true))) {
            for chunk in span.start..span.end {
                let now = match met.entry((span.rank, chunk)) {
                    Entry::Vacant(entry) => entry.insert(Met { start: span.start, differ: false, written }),
                    Entry::Occupied(entry) => {
                        let now = entry.into_mut();
                        now.differ |= now.start != span.start;
                        now.written |= written;
                        now
                    }
                };
                if now.differ && now.written {
                    let position = place.position(plan);
                    return Err(refused(format!(
                        "{position}: overlaps the range of another operation that begins elsewhere, so slices of one number are not the same bytes"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// An operation's place.
#[derive(Clone, Copy, Debug)]
struct Placed {
    rank: u32,
    block: u32,
    index: usize,
}

impl Placed {
    fn position(self, plan: &Plan) -> Position {
        Position::of(plan, self.rank, self.block, self.index, None)
    }
}

fn places(plan: &Plan) -> impl Iterator<Item = (Placed, &Op)> {
    (0..).zip(&plan.ranks).flat_map(|(rank, ranks)| {
        (0..).zip(&ranks.blocks).flat_map(move |(block, contents)| {
            let place = move |index| Placed { rank, block, index };
            contents.ops.iter().enumerate().map(move |(index, operation)| (place(index), &operation.op))
        })
    })
}

/// By what blocks hear of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Means {
    /// The end of a channel where signals come.
    Channel(usize),
    Semaphore(u32, u32),
    Barrier(u32, u32),
}

/// Which operations hand data on: they move it, they tell of it, or hear of it.
struct Handed {
    /// Of each block, by operations.
    marks: HashMap<(u32, u32), Vec<bool>>,
}

impl Handed {
    /// # Errors
    /// If some who tell by the same means tell of data and others do not, and who hears what is not known from their order.
    fn of(plan: &Plan) -> Result<Self> {
        let ends = Ends::of(plan);
        let mut marks: HashMap<(u32, u32), Vec<bool>> = HashMap::new();
        let (mut tell, mut hear): (Uses, Uses) = Default::default();
        for (place, op) in places(plan) {
            marks.entry((place.rank, place.block)).or_default().push(matches!(op, Op::Move(_) | Op::Port(_)));
            if let Some(means) = told(&ends, place.rank, op) {
                tell.entry(means).or_default().push(place);
            }
            if let Some(means) = heard(&ends, place.rank, op) {
                hear.entry(means).or_default().push(place);
            }
        }
        for (rank, ranks) in (0..).zip(&plan.ranks) {
            (0..).zip(&ranks.blocks).for_each(|(block, _)| _ = marks.entry((rank, block)).or_default());
        }
        let mut handed = Self { marks };
        // What is heard may be told on, in any other block.
        while handed.spread(plan, &ends, &tell, &hear) {}
        for (means, places) in &tell {
            let heard = hear.get(means).map_or(&[][..], Vec::as_slice);
            if !in_order(means, places, heard)
                && let Some(odd) = places.iter().chain(heard).find(|place| !handed.is(place))
                && places.iter().any(|place| handed.is(place))
            {
                let position = odd.position(plan);
                return Err(refused(format!(
                    "{position}: others tell of data by the same means, and this one does not; give it a channel or semaphore of its own"
                )));
            }
        }
        Ok(handed)
    }

    fn is(&self, place: &Placed) -> bool {
        self.marks[&(place.rank, place.block)][place.index]
    }

    /// Marks what follows from the marks, one step further. Returns whether there was any.
    fn spread(&mut self, plan: &Plan, ends: &Ends, tell: &Uses, hear: &Uses) -> bool {
        let mut more = false;
        // Behind data, a block tells of it.
        let mut begun: Option<(u32, u32)> = None;
        for (place, op) in places(plan) {
            let block = (place.rank, place.block);
            if self.is(&place) {
                begun = Some(block);
            } else if begun == Some(block)
                && (told(ends, place.rank, op).is_some() || matches!(op, Op::Flush { .. }))
            {
                more |= self.mark(&place);
            }
        }
        for (means, hear) in hear {
            let tell = tell.get(means).map_or(&[][..], Vec::as_slice);
            if in_order(means, tell, hear) {
                for (told, heard) in tell.iter().zip(hear) {
                    more |= self.is(told) && self.mark(heard);
                }
            } else if tell.iter().any(|place| self.is(place)) {
                hear.iter().for_each(|place| more |= self.mark(place));
            }
        }
        more
    }

    fn mark(&mut self, place: &Placed) -> bool {
        let marks = self.marks.get_mut(&(place.rank, place.block));
        let mark = marks.and_then(|marks| marks.get_mut(place.index));
        mark.is_some_and(|mark| !std::mem::replace(mark, true))
    }
}

type Uses = HashMap<Means, Vec<Placed>>;

/// Whether the n-th that hears, hears of the n-th that tells.
fn in_order(means: &Means, tell: &[Placed], hear: &[Placed]) -> bool {
    let one = |places: &[Placed]| places.windows(2).all(|two| two[0].block == two[1].block);
    matches!(means, Means::Channel(_)) && tell.len() == hear.len() && one(tell) && one(hear)
}

fn told(ends: &Ends, rank: u32, op: &Op) -> Option<Means> {
    let channel = |channel| ends.other(ends.end(rank, channel)).map(Means::Channel);
    match *op {
        Op::Signal { channel: by, .. } => channel(by),
        Op::Port(ref put) if put.signal => channel(Channel { kind: ChannelKind::Port, index: put.channel }),
        Op::Release { semaphore } => Some(Means::Semaphore(rank, semaphore)),
        Op::Barrier(barrier) => Some(Means::Barrier(rank, barrier.id)),
        _ => None,
    }
}

fn heard(ends: &Ends, rank: u32, op: &Op) -> Option<Means> {
    match *op {
        Op::Wait { channel } => Some(Means::Channel(ends.end(rank, channel))),
        Op::Acquire { semaphore } => Some(Means::Semaphore(rank, semaphore)),
        Op::Barrier(barrier) => Some(Means::Barrier(rank, barrier.id)),
        _ => None,
    }
}

/// The block with its marked operations, and those between, in a loop; or the place of an operation there that is none of them.
fn looped(block: &Block, marks: &[bool], unit: u64, chunks: u32) -> std::result::Result<Block, usize> {
    let Some(first) = marks.iter().position(|&mark| mark) else { return Ok(block.clone()) };
    let last = marks.iter().rposition(|&mark| mark).unwrap_or(first);
    let between = first..=last;
    if let Some(odd) = between.clone().find(|&index| !marks[index] && block.ops[index].op != Op::Sync) {
        return Err(odd);
    }
    let body = block.ops[between].to_vec();
    let repeated = Op::Loop(Box::new(Loop { unit, chunks, body })).at(block.ops[first].origin);
    let ops = [&block.ops[..first], &[repeated], &block.ops[last + 1..]].concat();
    Ok(Block { ops, ..block.clone() })
}

#[cfg(test)]
mod tests;
