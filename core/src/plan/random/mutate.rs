//! Random damage: plans that look like programs and mostly are wrong.

use super::dice::Dice;
use super::ir::{Buffer, Form, Op, Operand, Operation, Place, Plan, Protocol, RankPlan, Reduction};

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
    if dice.one_in(24) {
        return settings(plan, dice);
    }
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
    if dice.one_in(16) {
        return resource(rank, ranks, dice);
    }
    let block = dice.index(rank.blocks.len());
    let Some(block) = rank.blocks.get_mut(block) else { return };
    if dice.one_in(24) {
        block.copy_engine = !block.copy_engine;
        return;
    }
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

fn settings(plan: &mut Plan, dice: &mut Dice) {
    let settings = &mut plan.settings;
    match dice.below(3) {
        0 => settings.double_scratch = !settings.double_scratch,
        1 => settings.threads_per_block = near(settings.threads_per_block, dice),
        _ => settings.protocol = dice.pick(&[Protocol::Simple, Protocol::Ll, Protocol::Ll128]),
    }
}

/// The peer of a channel, or the first value of a semaphore.
fn resource(rank: &mut RankPlan, ranks: u32, dice: &mut Dice) {
    let peer = dice.below(ranks + 1);
    let (list, value) = match dice.below(3) {
        0 => (&mut rank.memory_channels, peer),
        1 => (&mut rank.port_channels, peer),
        _ => (&mut rank.semaphores, dice.below(3)),
    };
    match dice.index(list.len() + 1) {
        end if end == list.len() => list.push(value),
        index => list[index] = value,
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
        Op::Signal { channel, relaxed } => match dice.one_in(2) {
            true => channel.index = near(channel.index, dice),
            false => *relaxed = !*relaxed,
        },
        Op::Wait { channel } => channel.index = near(channel.index, dice),
        Op::Flush { channel: index }
        | Op::Acquire { semaphore: index }
        | Op::Release { semaphore: index } => {
            *index = near(*index, dice);
        }
        Op::Move(moved) => match dice.below(7) {
            0 => moved.count = near(moved.count, dice),
            1 if moved.sources.len() > 1 => drop(moved.sources.pop()),
            2 => moved.targets.push(moved.sources[0]),
            3 => moved.share = None,
            4 if moved.reduction.is_some() => {
                moved.reduction = Some(dice.pick(&[Reduction::Min, Reduction::Max, Reduction::Prod]));
            }
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
    match dice.below(5) {
        0 => operand.form = if operand.form == Form::Plain { Form::Packets } else { Form::Plain },
        1 => operand.place = Place::Local(buffer),
        2 => operand.place = Place::Remote { rank: dice.below(ranks + 1), buffer },
        3 => operand.place = Place::Switch(dice.below(2)),
        _ => operand.first = near(operand.first, dice),
    }
}
