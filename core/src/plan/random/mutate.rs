//! Random damage: plans that look like programs and mostly are wrong.

use super::dice::Dice;
use super::ir::{Buffer, Form, Op, Operand, Operation, Place, Plan};

/// The plan with a few random changes. It may still be right, and may refer to what does not exist.
pub fn mutant(plan: &Plan, seed: u64) -> Plan {
    let mut dice = Dice::new(seed);
    let mut plan = plan.clone();
    for _ in 0..1 + dice.below(3) {
        change(&mut plan, &mut dice);
    }
    plan
}

fn change(plan: &mut Plan, dice: &mut Dice) {
    let ranks = u32::try_from(plan.ranks.len()).unwrap_or(0);
    let rank = dice.index(plan.ranks.len());
    let Some(rank) = plan.ranks.get_mut(rank) else { return };
    if dice.one_in(12) {
        let chunks = [&mut rank.input_chunks, &mut rank.output_chunks, &mut rank.scratch_chunks];
        let [input, output, scratch] = chunks;
        let chosen = [input, output, scratch].into_iter().nth(dice.index(3));
        if let Some(chunks) = chosen {
            *chunks = near(*chunks, dice);
        }
        return;
    }
    let block = dice.index(rank.blocks.len());
    let Some(block) = rank.blocks.get_mut(block) else { return };
    let mut ops = &mut block.ops;
    if ops.is_empty() {
        return;
    }
    let mut index = dice.index(ops.len());
    if let Op::Loop(repeated) = &mut ops[index].op
        && !repeated.body.is_empty()
        && !dice.one_in(4)
    {
        let inner = dice.index(repeated.body.len());
        let Op::Loop(repeated) = &mut ops[index].op else { return };
        ops = &mut repeated.body;
        index = inner;
    }
    let other = dice.index(ops.len());
    match dice.below(5) {
        0 => drop(ops.remove(index)),
        1 => ops.swap(index, other),
        2 => ops.insert(other, ops[index].clone()),
        3 => ops.insert(other, Op::Sync.at(0)),
        _ => operation(&mut ops[index], ranks, dice),
    }
}

/// A number near another.
fn near(number: u32, dice: &mut Dice) -> u32 {
    match dice.below(4) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => dice.below(8),
        _ => number.wrapping_mul(2),
    }
}

fn operation(operation: &mut Operation, ranks: u32, dice: &mut Dice) {
    match &mut operation.op {
        Op::Sync => {}
        Op::Barrier(barrier) => match dice.one_in(2) {
            true => barrier.id = near(barrier.id, dice),
            false => barrier.blocks = near(barrier.blocks, dice),
        },
        Op::Signal { channel, relaxed } | Op::Wait { channel, relaxed } => match dice.one_in(2) {
            true => channel.index = near(channel.index, dice),
            false => *relaxed = !*relaxed,
        },
        Op::Flush { channel: index }
        | Op::Acquire { semaphore: index }
        | Op::Release { semaphore: index } => {
            *index = near(*index, dice);
        }
        Op::Move(moved) => match dice.below(6) {
            0 => moved.count = near(moved.count, dice),
            1 if moved.sources.len() > 1 => drop(moved.sources.pop()),
            2 => moved.targets.push(moved.sources[0]),
            3 => moved.share = None,
            side => {
                let side = if side % 2 == 0 { &mut moved.sources } else { &mut moved.targets };
                let chosen = dice.index(side.len());
                if let Some(chosen) = side.get_mut(chosen) {
                    operand(chosen, ranks, dice);
                }
            }
        },
        Op::Port(put) => match dice.below(6) {
            0 => put.channel = near(put.channel, dice),
            1 => put.source.1 = near(put.source.1, dice),
            2 => put.target.1 = near(put.target.1, dice),
            3 => put.signal = !put.signal,
            4 => put.forward = !put.forward,
            _ => put.flush = !put.flush,
        },
        Op::Loop(repeated) => match dice.one_in(2) {
            true => repeated.chunks = near(repeated.chunks, dice),
            false => repeated.unit *= 2,
        },
    }
}

fn operand(operand: &mut Operand, ranks: u32, dice: &mut Dice) {
    let buffer = dice.pick(&[Buffer::Input, Buffer::Output, Buffer::Scratch]);
    match dice.below(4) {
        0 => operand.form = if operand.form == Form::Plain { Form::Packets } else { Form::Plain },
        1 => operand.place = Place::Local(buffer),
        2 => operand.place = Place::Remote { rank: dice.below(ranks + 1), buffer },
        _ => operand.first = near(operand.first, dice),
    }
}
