//! Blocks whose steps differ in numbers only share a body.

use std::collections::HashMap;

use aqueduct_ptx::plan as ptx;
use ptx::Number;

/// The bodies of all blocks, each once, and what each block passes to its own. A number that is the same in all blocks of a body stays
/// in it; the others become a row, in which numbers that are equal in every block share an entry.
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
    let values: Vec<Vec<u32>> = blocks.iter().map(|steps| values(steps)).collect();
    let mut rows = vec![ptx::Block { shape: 0, row: Vec::new() }; blocks.len()];
    let mut shapes = Vec::new();
    for (shape, members) in (0..).zip(&groups) {
        let mut entries: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut steps = blocks[members[0]].clone();
        let mut place = 0;
        numbers(&mut steps, &mut |number| {
            let column: Vec<u32> = members.iter().map(|&member| values[member][place]).collect();
            place += 1;
            if column.iter().all(|&value| value == column[0]) {
                return;
            }
            let next = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            *number = Number::Row(*entries.entry(column.clone()).or_insert_with(|| {
                for (&member, &value) in members.iter().zip(&column) {
                    rows[member].row.push(value);
                }
                next
            }));
        });
        for &member in members {
            rows[member].shape = shape;
        }
        shapes.push(ptx::Shape { steps });
    }
    (shapes, rows)
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
            ptx::Step::Sync => {}
            ptx::Step::Barrier { state, blocks } => [state, blocks].into_iter().for_each(&mut *visit),
            ptx::Step::Signal(list) => {
                for ptx::Signal { outbound, peer, inbound, relaxed: _ } in list {
                    [outbound, peer, inbound].into_iter().for_each(&mut *visit);
                }
            }
            ptx::Step::Wait(list) => {
                for ptx::Wait { inbound, expected, rank, relaxed: _ } in list {
                    [inbound, expected, rank].into_iter().for_each(&mut *visit);
                }
            }
            ptx::Step::Acquire { at } | ptx::Step::Release { at } => visit(at),
            ptx::Step::PortWait { channel } => visit(channel),
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
        }
    }
}

fn operand(operand: &mut ptx::Operand, visit: &mut dyn FnMut(&mut Number)) {
    let ptx::Operand { base: _, address, first, rank } = operand;
    [address, first, rank].into_iter().for_each(visit);
}
