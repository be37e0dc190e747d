//! Blocks whose steps differ in numbers only share a body.

use std::collections::HashMap;

use aqueduct_ptx::plan as ptx;
use ptx::Number;

use super::repeats::{Part, parts};

/// The bodies of all blocks, each once, and what each block passes to its own. A number that is the same in all blocks of a body
/// stays in it; the others become a row, in which numbers that are equal in every block share an entry. Steps that come [again
/// and again](super::repeats) stand in it once, with an entry for each turn.
pub(super) fn shared(blocks: Vec<Vec<ptx::Step>>) -> (Vec<ptx::Shape>, Vec<ptx::Block>) {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<Vec<ptx::Step>, usize> = HashMap::new();
    for (index, steps) in blocks.iter().enumerate() {
        let mut bare = steps.clone();
        numbers(&mut bare, &mut |number| *number = Number::Fixed(0));
        let group = *known.entry(bare).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    let mut bodies: Vec<_> = known.into_iter().map(|(bare, group)| (group, parts(&bare))).collect();
    bodies.sort_unstable_by_key(|(group, _)| *group);
    let mut rows = vec![ptx::Block { shape: 0, row: Vec::new() }; blocks.len()];
    let mut shapes = Vec::new();
    for ((shape, members), (_, parts)) in (0..).zip(&groups).zip(bodies) {
        let mut group = Group::of(members.iter().map(|&member| &blocks[member][..]));
        let steps = parts.into_iter().flat_map(|part| group.part(&blocks[members[0]], part)).collect();
        for (&member, row) in members.iter().zip(group.rows) {
            rows[member] = ptx::Block { shape, row };
        }
        shapes.push(ptx::Shape { steps });
    }
    (shapes, rows)
}

/// Blocks of one shape.
struct Group {
    /// Numbers of each block, in their order.
    values: Vec<Vec<u32>>,
    rows: Vec<Vec<u32>>,
    /// Entries of the rows outside of repetitions, by their values in each block.
    entries: HashMap<Vec<u32>, u32>,
    /// Numbers that have been placed.
    placed: usize,
}

impl Group {
    fn of<'b>(blocks: impl Iterator<Item = &'b [ptx::Step]>) -> Self {
        let values: Vec<_> = blocks.map(values).collect();
        Self { rows: vec![Vec::new(); values.len()], values, entries: HashMap::new(), placed: 0 }
    }

    /// The next steps of the shape, as `block` has them, with entries of rows for what differs.
    fn part(&mut self, block: &[ptx::Step], part: Part) -> Vec<ptx::Step> {
        match part {
            Part::Once(range) => {
                let mut steps = block[range].to_vec();
                numbers(&mut steps, &mut |number| *number = self.once());
                steps
            }
            Part::Again { body, turns } => vec![self.again(block[body].to_vec(), turns)],
        }
    }

    /// The next number.
    fn once(&mut self) -> Number {
        let column: Vec<u32> = self.values.iter().map(|values| values[self.placed]).collect();
        self.placed += 1;
        if column.iter().all(|&value| value == column[0]) {
            return Number::Fixed(column[0]);
        }
        let rows = &mut self.rows;
        let entry = *self.entries.entry(column).or_insert_with_key(|column| {
            let next = entry(rows[0].len());
            rows.iter_mut().zip(column).for_each(|(row, &value)| row.push(value));
            next
        });
        Number::Row(entry)
    }

    /// A body that comes `turns` times, with as many entries of each turn as there are different numbers.
    fn again(&mut self, mut body: Vec<ptx::Step>, turns: usize) -> ptx::Step {
        let of_turn = values(&body).len();
        let (first, base) = (self.placed, self.rows[0].len());
        // Values of each entry, turn by turn, block by block.
        let mut columns: Vec<Vec<u32>> = Vec::new();
        let mut entries: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut at = first;
        numbers(&mut body, &mut |number| {
            let of_turns = |turn| self.values.iter().map(move |values| values[at + turn * of_turn]);
            let column: Vec<u32> = (0..turns).flat_map(of_turns).collect();
            at += 1;
            *number = if column.iter().all(|&value| value == column[0]) {
                Number::Fixed(column[0])
            } else {
                Number::Row(*entries.entry(column).or_insert_with_key(|column| {
                    columns.push(column.clone());
                    entry(base + columns.len() - 1)
                }))
            };
        });
        for turn in 0..turns {
            let blocks = self.rows.len();
            for (nth, row) in self.rows.iter_mut().enumerate() {
                row.extend(columns.iter().map(|column| column[turn * blocks + nth]));
            }
        }
        self.placed = first + turns * of_turn;
        ptx::Step::Repeat { turns: entry(turns), stride: entry(columns.len()), body }
    }
}

/// The number of an entry. A row of 2^32 entries does not fit into memory.
fn entry(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn values(steps: &[ptx::Step]) -> Vec<u32> {
    let mut values = Vec::new();
    numbers(&mut steps.to_vec(), &mut |number| {
        if let Number::Fixed(value) = number {
            values.push(*value);
        }
    });
    values
}

/// Visits every number, always in the same order.
fn numbers(steps: &mut [ptx::Step], visit: &mut dyn FnMut(&mut Number)) {
    for step in steps {
        match step {
            ptx::Step::Sync
            | ptx::Step::FindRows
            | ptx::Step::ShowRows
            | ptx::Step::JudgeRows
            | ptx::Step::Mark { .. } => {}
            ptx::Step::Barrier { state, blocks } => [state, blocks].into_iter().for_each(&mut *visit),
            ptx::Step::Signal(list) => {
                for ptx::Signal { outbound, peer, inbound, relaxed: _ } in list {
                    [outbound, peer, inbound].into_iter().for_each(&mut *visit);
                }
            }
            ptx::Step::Wait(list) => {
                for ptx::Wait { inbound, expected, rank } in list {
                    [inbound, expected, rank].into_iter().for_each(&mut *visit);
                }
            }
            ptx::Step::Acquire { at } | ptx::Step::Release { at } => visit(at),
            ptx::Step::PortWait { channel } | ptx::Step::PutRows { channel } => visit(channel),
            ptx::Step::Move(moved) => {
                moved.sources.iter_mut().chain(&mut moved.targets).for_each(|side| operand(side, visit));
                visit(&mut moved.count);
                if let Some(ptx::Share { member, of }) = &mut moved.share {
                    [member, of].into_iter().for_each(&mut *visit);
                }
            }
            ptx::Step::Port(port) => {
                visit(&mut port.channel);
                if let Some(put) = &mut port.put {
                    [&mut put.source, &mut put.target]
                        .into_iter()
                        .chain(&mut put.awaits)
                        .for_each(|side| operand(side, visit));
                    visit(&mut put.count);
                }
            }
            ptx::Step::Loop { unit: _, chunks, body } => {
                visit(chunks);
                numbers(body, visit);
            }
            ptx::Step::Repeat { turns: _, stride: _, body } => numbers(body, visit),
        }
    }
}

fn operand(operand: &mut ptx::Operand, visit: &mut dyn FnMut(&mut Number)) {
    let ptx::Operand { base: _, address, first, rank, multicast: _ } = operand;
    [address, first, rank].into_iter().for_each(visit);
}
