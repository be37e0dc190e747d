//! Signals and waits of a channel, and releases and acquires of a semaphore, must be equally many in a call: what is left
//! over would end a wait of the next call too early.

use std::collections::BTreeMap;

use super::ends::Ends;
use super::finding::{Finding, FindingKind};
use super::ir::{ChannelKind, Op, Plan};
use super::position::Position;

/// How often something happens in a call: once, and once per iteration of loops of a unit and a number of chunks.
type Times = BTreeMap<Option<(u64, u32)>, u64>;

/// One direction of a channel, or one semaphore: what gives and what takes.
#[derive(Clone, Debug, Default)]
struct Pair {
    gives: Times,
    takes: Times,
    /// Blocks, with an operation of each.
    givers: Vec<Position>,
    takers: Vec<Position>,
}

impl Pair {
    fn note(&mut self, gives: bool, within: Option<(u64, u32)>, position: Position) {
        let (times, blocks) =
            if gives { (&mut self.gives, &mut self.givers) } else { (&mut self.takes, &mut self.takers) };
        *times.entry(within).or_default() += 1;
        if blocks.last().is_none_or(|last| (last.rank, last.block) != (position.rank, position.block)) {
            blocks.push(position);
        }
    }

    /// A finding if it is taken another number of times than given. `words` says what gives and what takes.
    fn unequal(&self, words: impl FnOnce() -> (String, String)) -> Option<Finding> {
        if self.gives == self.takes {
            return None;
        }
        let (gives, takes) = words();
        let position = self.takers.first().or(self.givers.first()).copied();
        let message = format!(
            "{gives} {}, but {takes} {}; both must happen equally often in a call",
            said(&self.gives),
            said(&self.takes)
        );
        Some(Finding::new(FindingKind::Pairing, position, message))
    }
}

fn said(times: &Times) -> String {
    let one = |(within, times): (&Option<(u64, u32)>, &u64)| {
        let plural = if *times == 1 { "time" } else { "times" };
        match within {
            None => format!("{times} {plural}"),
            Some((unit, chunks)) => {
                format!("{times} {plural} per iteration of a loop of {unit} bytes over {chunks} chunks")
            }
        }
    };
    let all: Vec<String> = times.iter().map(one).collect();
    if all.is_empty() { "never".into() } else { all.join(" and ") }
}

/// All pairs that are unequal, and ends of channels that several blocks use.
pub(super) fn pairing(plan: &Plan) -> Vec<Finding> {
    let ends = Ends::of(plan);
    // Signals to and waits at each end.
    let mut channels = vec![Pair::default(); ends.len()];
    let mut findings = Vec::new();
    for (rank, rank_plan) in (0..).zip(&plan.ranks) {
        let mut semaphores = vec![Pair::default(); rank_plan.semaphores.len()];
        for (block, contents) in (0..).zip(&rank_plan.blocks) {
            let mut note = |op: &Op, within, position| match *op {
                Op::Signal { channel, .. } => {
                    if let Some(other) = ends.other(ends.end(rank, channel)) {
                        channels[other].note(true, within, position);
                    }
                }
                Op::Port(ref put) if put.signal => {
                    let channel = super::ir::Channel { kind: ChannelKind::Port, index: put.channel };
                    if let Some(other) = ends.other(ends.end(rank, channel)) {
                        channels[other].note(true, within, position);
                    }
                }
                Op::Wait { channel, .. } => channels[ends.end(rank, channel)].note(false, within, position),
                Op::Release { semaphore } => semaphores[semaphore as usize].note(true, within, position),
                Op::Acquire { semaphore } => semaphores[semaphore as usize].note(false, within, position),
                _ => {}
            };
            for (index, operation) in contents.ops.iter().enumerate() {
                if let Op::Loop(repeated) = &operation.op {
                    for (inner, operation) in repeated.body.iter().enumerate() {
                        let position = Position::of(plan, rank, block, index, Some(inner));
                        note(&operation.op, Some((repeated.unit, repeated.chunks)), position);
                    }
                } else if matches!(operation.op, Op::Move(_) | Op::Sync) {
                } else {
                    note(&operation.op, None, Position::of(plan, rank, block, index, None));
                }
            }
        }
        for (index, pair) in semaphores.iter().enumerate() {
            let words = || (format!("semaphore {index} of rank {rank} is released"), "acquired".to_owned());
            findings.extend(pair.unequal(words));
        }
    }
    for (end, pair) in channels.iter().enumerate() {
        let owner = ends.owner(end);
        let Some(peer) = ends.other(end).map(|other| ends.owner(other)) else { continue };
        let words = || {
            let waits = format!("rank {owner} waits for it through this channel");
            (format!("rank {peer} signals rank {owner}"), waits)
        };
        findings.extend(pair.unequal(words));
        for (blocks, what) in [(&pair.givers, "signal through"), (&pair.takers, "wait at")] {
            if let [first, second, ..] = blocks[..] {
                let message = format!(
                    "blocks {} and {} both {what} this channel between ranks {owner} and {peer}; give each its own channel",
                    first.block, second.block
                );
                findings.push(Finding::new(FindingKind::Pairing, second, message));
            }
        }
    }
    findings
}
