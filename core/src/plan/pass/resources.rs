//! Resources: what nobody uses is given up, what is used gets dense numbers, and what a rank may have is limited.

use std::collections::HashMap;

use super::effects::flat;
use super::ir::{
    Barrier, Buffer, Channel, ChannelKind, Op, Operand, Operation, Place, Plan, RankPlan, Switch,
};
use super::{check, checked, refused, renumber};
use crate::error::Result;

/// Gives up unused blocks, channels, switches, semaphores and scratch, numbers the rest densely, and checks the limits.
///
/// # Errors
/// [`ErrorKind::Plan`](crate::ErrorKind::Plan) if the plan's structure is wrong, or if it is over a limit ([`check::limits`]).
pub fn resources(plan: &Plan) -> Result<Plan> {
    checked(plan)?;
    let mut compact = plan.clone();
    for rank in &mut compact.ranks {
        rank.blocks.retain(|block| works(&block.ops));
    }
    let channels = [ChannelKind::Memory, ChannelKind::Port].map(|kind| channels(&compact, kind));
    let scratch = scratch(&compact);
    let switches = used_switches(&compact);
    let old = compact.clone();
    for (index, rank) in compact.ranks.iter_mut().enumerate() {
        let before = &old.ranks[index];
        let memory = kept(&before.memory_channels, &channels[0][index], &mut rank.memory_channels);
        let port = kept(&before.port_channels, &channels[1][index], &mut rank.port_channels);
        let mut used = vec![false; before.semaphores.len()];
        for op in ops(before) {
            if let Op::Acquire { semaphore } | Op::Release { semaphore } = *op {
                used[semaphore as usize] = true;
            }
        }
        let order: Vec<usize> = (0..used.len()).filter(|&semaphore| used[semaphore]).collect();
        let semaphores = kept(&before.semaphores, &order, &mut rank.semaphores);
        let mut numbers: Vec<u32> = Vec::with_capacity(before.switches.len());
        rank.switches.clear();
        for switch in &before.switches {
            let place = rank.switches.iter().position(|other| other == switch);
            numbers.push(number(place.unwrap_or(rank.switches.len())));
            if place.is_none() && switches.contains(switch) {
                rank.switches.push(switch.clone());
            }
        }
        rank.scratch_chunks = scratch[index].last().copied().unwrap_or(0);
        let mut barriers = HashMap::new();
        let numbers = renumber::Numbers {
            channel: &|Channel { kind, index }| {
                let numbers = if kind == ChannelKind::Memory { &memory } else { &port };
                Channel { kind, index: numbers[index as usize] }
            },
            semaphore: &|semaphore| semaphores[semaphore as usize],
            operand: &|operand: Operand| {
                let (rank, place) = match operand.place {
                    Place::Switch(switch) => (index, Place::Switch(numbers[switch as usize])),
                    Place::Remote { rank, .. } => (rank as usize, operand.place),
                    Place::Local(_) => (index, operand.place),
                };
                let first = match buffer(before, operand.place) {
                    Buffer::Scratch => scratch[rank][operand.first as usize],
                    _ => operand.first,
                };
                Operand { place, first, ..operand }
            },
            chunk: &|peer: Option<u32>, (buffer, first): (Buffer, u32)| match buffer {
                Buffer::Scratch => {
                    let rank = peer.map_or(index, |channel| before.port_channels[channel as usize] as usize);
                    (buffer, scratch[rank][first as usize])
                }
                _ => (buffer, first),
            },
            barrier: &mut |Barrier { id, blocks }| {
                let next = number(barriers.len());
                Barrier { id: *barriers.entry(id).or_insert(next), blocks }
            },
        };
        renumber::blocks(&mut rank.blocks, numbers);
    }
    if let Some(finding) = check::limits(&compact).first() {
        return Err(refused(finding.to_string()));
    }
    Ok(compact)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn ops(rank: &RankPlan) -> impl Iterator<Item = &Op> {
    rank.blocks.iter().flat_map(|block| &block.ops).flat_map(flat)
}

/// Whether a block of these operations is kept.
pub(in crate::plan) fn works(ops: &[Operation]) -> bool {
    ops.iter().flat_map(flat).any(is_work)
}

/// Syncs alone, and loops of them, do nothing.
fn is_work(op: &Op) -> bool {
    !matches!(op, Op::Sync | Op::Loop(_))
}

fn buffer(rank: &RankPlan, place: Place) -> Buffer {
    match place {
        Place::Local(buffer) | Place::Remote { buffer, .. } => buffer,
        Place::Switch(switch) => rank.switches[switch as usize].buffer,
    }
}

fn operands(rank: &RankPlan) -> impl Iterator<Item = (&Operand, u32)> {
    let moves = ops(rank).filter_map(|op| match op {
        Op::Move(moved) => Some(moved),
        _ => None,
    });
    moves.flat_map(|moved| super::geometry::operands(moved).map(|operand| (operand, moved.count)))
}

/// Keeps items in an order; returns the new number of each.
fn kept<T: Clone>(items: &[T], order: &[usize], list: &mut Vec<T>) -> Vec<u32> {
    *list = order.iter().map(|&index| items[index].clone()).collect();
    let mut numbers = vec![u32::MAX; items.len()];
    for (place, &index) in order.iter().enumerate() {
        numbers[index] = number(place);
    }
    numbers
}

/// The channels of a kind that each rank keeps, by peer: those of which an operation uses an end, and one to every peer whose
/// memory is reached. Both ends go or stay together, so that the k-th from a to b is still the k-th from b to a.
fn channels(plan: &Plan, kind: ChannelKind) -> Vec<Vec<usize>> {
    let mut used: Vec<Vec<bool>> =
        plan.ranks.iter().map(|rank| vec![false; rank.peers(kind).len()]).collect();
    let mut both = |rank: usize, index: u32| {
        used[rank][index as usize] = true;
        if let Some((peer, other)) = plan.other_end(number(rank), Channel { kind, index }) {
            used[peer as usize][other.index as usize] = true;
        }
    };
    for (index, rank) in plan.ranks.iter().enumerate() {
        let mut seen = vec![false; rank.peers(kind).len()];
        for op in ops(rank) {
            let channel = match *op {
                Op::Signal { channel, .. } | Op::Wait { channel, .. } if channel.kind == kind => {
                    channel.index
                }
                Op::Flush { channel } if kind == ChannelKind::Port => channel,
                Op::Port(ref put) if kind == ChannelKind::Port => put.channel,
                _ => continue,
            };
            if !std::mem::replace(&mut seen[channel as usize], true) {
                both(index, channel);
            }
        }
    }
    if kind == ChannelKind::Memory {
        for (index, rank) in plan.ranks.iter().enumerate() {
            let mut reached: Vec<u32> = operands(rank)
                .filter_map(|(operand, _)| match operand.place {
                    Place::Remote { rank, .. } => Some(rank),
                    _ => None,
                })
                .collect();
            reached.sort_unstable();
            reached.dedup();
            for peer in reached {
                let mut ways =
                    (0..rank.memory_channels.len()).filter(|&way| rank.memory_channels[way] == peer);
                if { ways.clone() }.any(|way| used[index][way]) {
                    continue;
                }
                if let Some(way) = ways.next() {
                    used[index][way] = true;
                    let end = Channel { kind, index: number(way) };
                    if let Some((peer, other)) = plan.other_end(number(index), end) {
                        used[peer as usize][other.index as usize] = true;
                    }
                }
            }
        }
    }
    let order = |(rank, used): (&RankPlan, &Vec<bool>)| {
        let mut order: Vec<usize> = (0..used.len()).filter(|&index| used[index]).collect();
        order.sort_by_key(|&index| rank.peers(kind)[index]);
        order
    };
    plan.ranks.iter().zip(&used).map(order).collect()
}

/// Switches that an operation of any rank uses.
fn used_switches(plan: &Plan) -> Vec<Switch> {
    let mut used: Vec<Switch> = Vec::new();
    for rank in &plan.ranks {
        for (operand, _) in operands(rank) {
            if let Place::Switch(index) = operand.place {
                let switch = &rank.switches[index as usize];
                if !used.contains(switch) {
                    used.push(switch.clone());
                }
            }
        }
    }
    used
}

/// For each rank and chunk of scratch, the number of used chunks before it; at last, of all.
fn scratch(plan: &Plan) -> Vec<Vec<u32>> {
    let mut used: Vec<Vec<bool>> =
        plan.ranks.iter().map(|rank| vec![false; rank.scratch_chunks as usize]).collect();
    let mut switched = false;
    for (index, rank) in plan.ranks.iter().enumerate() {
        let mut note = |rank: usize, first: u32, count: u32| {
            used[rank][first as usize..(first + count) as usize].fill(true);
        };
        for (operand, count) in operands(rank) {
            match operand.place {
                Place::Local(Buffer::Scratch) => note(index, operand.first, count),
                Place::Remote { rank, buffer: Buffer::Scratch } => note(rank as usize, operand.first, count),
                Place::Switch(switch) if rank.switches[switch as usize].buffer == Buffer::Scratch => {
                    switched = true;
                    for &member in &rank.switches[switch as usize].ranks {
                        note(member as usize, operand.first, count);
                    }
                }
                _ => {}
            }
        }
        for op in ops(rank) {
            let Op::Port(put) = op else { continue };
            let peer = rank.port_channels[put.channel as usize] as usize;
            for (rank, (buffer, first)) in [(index, put.source), (peer, put.target)] {
                if buffer == Buffer::Scratch {
                    note(rank, first, put.count);
                }
            }
        }
    }
    if switched {
        // A switch names the same chunk at all its members, so all ranks give up the same chunks.
        let longest = used.iter().map(Vec::len).max().unwrap_or(0);
        let any: Vec<bool> =
            (0..longest).map(|chunk| used.iter().any(|used| used.get(chunk) == Some(&true))).collect();
        for used in &mut used {
            let all = used.len();
            used.copy_from_slice(&any[..all]);
        }
    }
    let before = |used: &Vec<bool>| {
        let mut sum = 0;
        let counts = used.iter().map(|&used| {
            let before = sum;
            sum += u32::from(used);
            before
        });
        let mut counts: Vec<u32> = counts.collect();
        counts.push(sum);
        counts
    };
    used.iter().map(before).collect()
}
