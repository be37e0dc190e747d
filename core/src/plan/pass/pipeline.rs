//! Pipelining: turns the operations between a block's first and last movement of data into one loop over slices, so that a block that
//! consumes data starts on slice k while the block that produces it moves slice k + 1.
//!
//! The loop also holds the signals, waits, semaphores and barriers by which blocks pass data on. Handshakes that only say that a call
//! has begun stay in front of it. Each counter, that is the end of a channel or a semaphore, has one block that counts up and
//! one that waits: the n-th wait then belongs to the n-th signal, in slices as in whole chunks. So slice k of an operation comes
//! behind slice k of each operation behind which the whole one came; and slices of one number are the same bytes in all operations that meet in a chunk.

use std::collections::{BTreeMap, HashMap};

use super::check::{self, Ends, LOOP_UNIT};
use super::effects::Map;
use super::ir::{Block, Channel, ChannelKind, Loop, Op, Plan};
use super::{checked, refused};
use crate::error::Result;
use crate::plan::Position;

/// Puts what moves data and passes it on into loops over slices of `unit` bytes.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan), with the operation that is to blame, if the plan's structure is wrong, it has loops or chunks of
/// sizes of their own, its moves are not all of one number of chunks, two of them overlap at different places of their ranges,
/// or several blocks pass data on by one channel or semaphore; and for a unit that is no multiple of 16.
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
    same_places(plan, chunks)?;
    let pipelined = Pipelined::of(plan)?;
    let mut made = plan.clone();
    for (rank, slot) in (0..).zip(&mut made.ranks) {
        for (block, slot) in (0..).zip(&mut slot.blocks) {
            let marks = &pipelined.marks[&(rank, block)];
            *slot = looped(slot, marks, unit, chunks).map_err(|index| {
                let position = Position::of(plan, rank, block, index, None);
                refused(format!(
                    "{position}: stands between operations that go into a loop, and waits for a signal that does not follow data; let the block wait for it first"
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

/// An error unless operations that meet in a chunk, one of which writes it, have their ranges at the same place. All ranges have `chunks`
/// chunks.
fn same_places(plan: &Plan, chunks: u32) -> Result<()> {
    let map = Map::of(plan);
    // Whether ranges are written, by where they begin, and the last operation there.
    let mut ranges: BTreeMap<(u32, u64), (bool, Placed)> = BTreeMap::new();
    for (place, op) in places(plan) {
        let effects = map.effects(place.rank, op);
        let all = effects.reads.iter().map(|span| (span, false));
        for (span, writes) in all.chain(effects.writes.iter().map(|span| (span, true))) {
            let range = ranges.entry((span.rank, span.start)).or_insert((false, place));
            *range = (range.0 || writes, place);
        }
    }
    for (&(rank, start), &(written, place)) in &ranges {
        let others = ranges.range((rank, start + 1)..(rank, start + u64::from(chunks)));
        if let Some((_, (_, other))) = others.into_iter().find(|(_, (other, _))| written || *other) {
            let (position, other) = (other.position(plan), place.position(plan));
            return Err(refused(format!(
                "{position}: its range overlaps that of {other}, which begins elsewhere, so slices of one number are not the same bytes"
            )));
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

/// A count of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Counter {
    /// The end of a channel at which signals arrive.
    Channel(usize),
    Semaphore(u32, u32),
    Barrier(u32, u32),
}

type Uses = HashMap<Counter, Vec<Placed>>;

/// Which operations belong into loops: they move data, signal behind data, or wait for such a signal.
struct Pipelined {
    /// Of each block, by operations.
    marks: HashMap<(u32, u32), Vec<bool>>,
    signals: Uses,
    waits: Uses,
}

impl Pipelined {
    /// # Errors
    /// If several blocks signal by a counter that passes data on, or wait at it: a signal of one's next slice could be taken for one of the
    /// other's present slice.
    fn of(plan: &Plan) -> Result<Self> {
        let ends = Ends::of(plan);
        let mut all = Self { marks: HashMap::new(), signals: HashMap::new(), waits: HashMap::new() };
        for (rank, ranks) in (0..).zip(&plan.ranks) {
            (0..).zip(&ranks.blocks).for_each(|(block, _)| _ = all.marks.insert((rank, block), Vec::new()));
        }
        for (place, op) in places(plan) {
            let moves = matches!(op, Op::Move(_) | Op::Port(_));
            all.marks.entry((place.rank, place.block)).or_default().push(moves);
            if let Some(counter) = signals(&ends, place.rank, op) {
                all.signals.entry(counter).or_default().push(place);
            }
            if let Some(counter) = waits(&ends, place.rank, op) {
                all.waits.entry(counter).or_default().push(place);
            }
        }
        // A wait may stand in front of signals of its block, which others wait for.
        while all.spread(plan, &ends) {}
        for uses in [&all.signals, &all.waits] {
            for (counter, places) in
                uses.iter().filter(|(counter, _)| !matches!(counter, Counter::Barrier(..)))
            {
                let marked = |counter| {
                    let both =
                        [&all.signals, &all.waits].into_iter().filter_map(|uses| uses.get(counter)).flatten();
                    both.into_iter().any(|place| all.is(place))
                };
                if let Some(two) = places.windows(2).find(|two| two[0].block != two[1].block)
                    && marked(counter)
                {
                    let [one, other] = [two[0], two[1]].map(|place| place.position(plan));
                    return Err(refused(format!(
                        "{other}: another block counts by the same channel or semaphore, at {one}, so the slice that a signal is of is not known; \
                         give each block one of its own"
                    )));
                }
            }
        }
        Ok(all)
    }

    fn is(&self, place: &Placed) -> bool {
        self.marks[&(place.rank, place.block)][place.index]
    }

    /// Marks what follows from the marks, one step further. Returns whether there was any.
    fn spread(&mut self, plan: &Plan, ends: &Ends) -> bool {
        let mut found = Vec::new();
        let mut begun: Option<(u32, u32)> = None;
        for (place, op) in places(plan) {
            let block = (place.rank, place.block);
            if self.is(&place) {
                begun = Some(block);
            } else if begun == Some(block) && signals(ends, place.rank, op).is_some() {
                found.push(place);
            }
        }
        for (counter, waits) in &self.waits {
            let signals = self.signals.get(counter).map_or(&[][..], Vec::as_slice);
            if matches!(counter, Counter::Channel(_)) && signals.len() == waits.len() {
                // A handshake may go by the same channel: the n-th wait is for the n-th signal.
                let pairs = signals.iter().zip(waits).filter(|(signal, _)| self.is(signal));
                found.extend(pairs.map(|(_, wait)| *wait));
            } else if signals.iter().any(|place| self.is(place)) {
                found.extend(waits.iter().chain(signals));
            }
        }
        let mut more = false;
        for Placed { rank, block, index } in found {
            let marks = self.marks.entry((rank, block)).or_default();
            more |= !std::mem::replace(&mut marks[index], true);
        }
        more
    }
}

/// The counter that an operation of `rank` counts up.
fn signals(ends: &Ends, rank: u32, op: &Op) -> Option<Counter> {
    let channel = |channel| ends.other(ends.end(rank, channel)).map(Counter::Channel);
    match *op {
        Op::Signal { channel: by, .. } => channel(by),
        Op::Port(ref put) if put.signal => channel(Channel { kind: ChannelKind::Port, index: put.channel }),
        Op::Release { semaphore } => Some(Counter::Semaphore(rank, semaphore)),
        Op::Barrier(barrier) => Some(Counter::Barrier(rank, barrier.id)),
        _ => None,
    }
}

/// The counter that an operation of `rank` waits for.
fn waits(ends: &Ends, rank: u32, op: &Op) -> Option<Counter> {
    match *op {
        Op::Wait { channel } => Some(Counter::Channel(ends.end(rank, channel))),
        Op::Acquire { semaphore } => Some(Counter::Semaphore(rank, semaphore)),
        Op::Barrier(barrier) => Some(Counter::Barrier(rank, barrier.id)),
        _ => None,
    }
}

/// The block with its marked operations, and those between, in a loop; or the place of an operation there that is none of them.
fn looped(block: &Block, marks: &[bool], unit: u64, chunks: u32) -> std::result::Result<Block, usize> {
    let Some(first) = marks.iter().position(|&mark| mark) else { return Ok(block.clone()) };
    let last = marks.iter().rposition(|&mark| mark).unwrap_or(first);
    let between = first..=last;
    // A flush waits for this rank's own proxy, so it may be repeated; behind the loop it need not be.
    let fits = |index: usize| marks[index] || matches!(block.ops[index].op, Op::Sync | Op::Flush { .. });
    if let Some(odd) = between.clone().find(|&index| !fits(index)) {
        return Err(odd);
    }
    let body = block.ops[between].to_vec();
    let repeated = Op::Loop(Box::new(Loop { unit, chunks, body })).at(block.ops[first].origin);
    let ops = [&block.ops[..first], &[repeated], &block.ops[last + 1..]].concat();
    Ok(Block { ops, ..block.clone() })
}

#[cfg(test)]
mod tests;
