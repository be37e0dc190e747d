//! Puts what was found into words.

use super::super::cells::Conflict;
use super::super::clock::{Epoch, Knowledge};
use super::super::cursor::Cursor;
use super::super::finding::{Finding, FindingKind, Location, MOST};
use super::super::geometry::iterations;
use super::super::ir::{Op, Operation};
use super::super::position::Position;
use super::super::structure::flat;
use super::state::{Run, number};

impl Run<'_> {
    /// Adds a finding, unless it was made before for the same operations.
    pub(super) fn add(&mut self, finding: Finding, other: Option<Position>) {
        if self.findings.len() < MOST && self.seen.insert((finding.kind, finding.position, other)) {
            self.findings.push(finding);
        }
    }

    /// The block, call and operation of an event; `None` for an event of a stream.
    fn event(&self, epoch: Epoch) -> Option<(u32, u32, u32)> {
        let block = (epoch.timeline as usize).checked_sub(self.ranks.len())?;
        let (block, event) = match block.checked_sub(self.blocks.len()) {
            None => (number(block), epoch.event),
            Some(proxy) => *self.proxies[proxy].asked.get((epoch.event as usize).checked_sub(1)?)?,
        };
        let starts = &self.blocks[block as usize].starts;
        let call = starts.iter().filter(|&&start| start < event).count();
        let start = starts.get(call.checked_sub(1)?)?;
        Some((block, number(call), event - start - 1))
    }

    /// The operation of an event; `None` for an event of a stream.
    pub(super) fn position(&self, epoch: Epoch) -> Option<Position> {
        let (block, _, nth) = self.event(epoch)?;
        let state = &self.blocks[block as usize];
        let ops = &self.plan.ranks[state.rank as usize].blocks[state.block as usize].ops;
        let resolution = self.resolution;
        let mut cursor = Cursor::default();
        let turns = |repeated: &super::super::ir::Loop| {
            iterations(repeated, resolution.atoms, resolution.unit(repeated))
        };
        let step = (0..=nth).map_while(|_| cursor.next(ops, turns)).last()?;
        let inner = step.turn.map(|(_, inner, _)| inner);
        Some(Position::of(self.plan, state.rank, state.block, step.index, inner))
    }

    /// Adds a finding about two accesses in no order.
    pub(super) fn conflict(
        &mut self,
        now: Epoch,
        writes: bool,
        conflict: Conflict,
        at: Location,
        know: &Knowledge,
    ) {
        let (here, there) = (self.position(now), self.position(conflict.earlier));
        let verb = |writes: bool| if writes { "writes" } else { "reads" };
        let (kind, position, message) = match (here, there) {
            (None, None) => return,
            (None, Some(there)) => {
                let rank = now.timeline;
                let verb = verb(conflict.wrote);
                let advice = if there.rank == rank {
                    "flush the port channel afterwards".to_owned()
                } else {
                    format!(
                        "let it signal rank {rank} afterwards, and rank {rank} wait for it before its end"
                    )
                };
                let message = format!(
                    "{verb} a buffer of rank {rank}, which may have ended its call by then; {advice}"
                );
                (FindingKind::Reuse, there, message)
            }
            (Some(here), None) => {
                let rank = conflict.earlier.timeline;
                let before = Epoch { event: conflict.earlier.event - 1, ..conflict.earlier };
                let message = if here.rank == rank {
                    format!(
                        "{} its own rank's buffer after the call may have ended; flush the port channel",
                        verb(writes)
                    )
                } else if before.event > 0
                    && know.all().knows(before)
                    && self.call(now) < conflict.earlier.event
                {
                    format!(
                        "{} a buffer of rank {rank}, which may have ended its call by then; \
                         signal rank {rank} afterwards, and let it wait before its end",
                        verb(writes)
                    )
                } else if know.all().knows(conflict.earlier) {
                    format!(
                        "{} a buffer that rank {rank}'s stream may still be writing: packets have shown that rank {rank} has begun the \
                         call, but make nothing visible that it did before; let rank {rank} signal, and wait for it first",
                        verb(writes)
                    )
                } else {
                    format!(
                        "{} a buffer of rank {rank}, which may not have begun the call; \
                         let rank {rank} signal, and wait for it first",
                        verb(writes)
                    )
                };
                (FindingKind::Reuse, here, message)
            }
            (Some(here), Some(there)) => {
                let same_call = self.call(now) == self.call(conflict.earlier);
                let advice = if !same_call {
                    "use double scratch, or let the ranks signal each other before it is used again"
                } else if here.rank == there.rank && self.by_proxy(now) != self.by_proxy(conflict.earlier) {
                    "sync before a put through a port channel, and flush and sync after it"
                } else if (here.rank, here.block) == (there.rank, there.block) {
                    "put a sync (nop) between them"
                } else if here.rank == there.rank {
                    "order the blocks by a barrier or a semaphore, with a sync before the release and after the acquire"
                } else {
                    "let a signal follow the one and a wait precede the other, with a sync before the signal and after the wait"
                };
                let when = if same_call { "" } else { " in the call before" };
                let (now, then) = (verb(writes), verb(conflict.wrote));
                let message = format!("{now} while {there}{when} {then}; {advice}");
                (if same_call { FindingKind::Race } else { FindingKind::Reuse }, here, message)
            }
        };
        self.add(Finding::new(kind, position, message).about(at), there.or(here));
    }

    fn by_proxy(&self, epoch: Epoch) -> bool {
        epoch.timeline as usize >= self.ranks.len() + self.blocks.len()
    }

    fn call(&self, epoch: Epoch) -> u32 {
        self.event(epoch).map_or(0, |(_, call, _)| call)
    }

    /// Adds a finding for each block that waits although nothing can go on.
    pub(super) fn deadlock(&mut self) {
        for index in 0..self.blocks.len() {
            let state = &self.blocks[index];
            let (false, Some(step)) = (state.done, state.step) else { continue };
            if self.findings.len() >= MOST {
                return;
            }
            let (rank, block) = (state.rank, state.block);
            let position =
                Position::of(self.plan, rank, block, step.index, step.turn.map(|(_, inner, _)| inner));
            let what = self.waits_for(rank, step.op);
            let call = self.ranks[rank as usize].call;
            let waits = |(_, waiters): &(&usize, &Vec<u32>)| waiters.contains(&number(index));
            let cell = self.packet_waiters.iter().find(waits).map(|(&cell, _)| cell);
            if let Some(lost) = cell.and_then(|cell| self.packets.later(cell, call)) {
                let message = format!(
                    "may overwrite packets of the call before, for which {position} waits; \
                     use double scratch, or let the ranks signal each other before scratch is used again"
                );
                self.add(Finding::new(FindingKind::Reuse, self.position(lost), message), None);
                continue;
            }
            let when = if call > 1 { format!(" in call {call}") } else { String::new() };
            let message = format!("waits for ever{when} for {what}");
            self.add(Finding::new(FindingKind::Deadlock, position, message), None);
        }
    }

    fn waits_for(&self, rank: u32, op: &Op) -> String {
        match *op {
            Op::Wait { channel, .. } => {
                let end = self.ends.end(rank, channel);
                let Some(other) = self.ends.other(end) else { return "a signal of nobody".into() };
                let peer = self.ends.owner(other);
                let signals = |op: &Op| match *op {
                    Op::Signal { channel, .. } => self.ends.end(peer, channel) == other,
                    Op::Port(ref put) if put.signal => {
                        let kind = super::super::ir::ChannelKind::Port;
                        self.ends.end(peer, super::super::ir::Channel { kind, index: put.channel }) == other
                    }
                    _ => false,
                };
                let kind = channel.kind;
                format!(
                    "a signal of rank {peer} through {kind:?} channel {}; {}",
                    channel.index,
                    self.giver(peer, signals)
                )
            }
            Op::Acquire { semaphore } => {
                let releases =
                    |op: &Op| matches!(*op, Op::Release { semaphore: other } if other == semaphore);
                format!("semaphore {semaphore}; {}", self.giver(rank, releases))
            }
            Op::Barrier(barrier) => {
                let came = self.ranks[rank as usize]
                    .barriers
                    .get(&barrier.id)
                    .map_or(0, |meeting| meeting.came.len());
                format!("barrier {}, to which {came} of {} blocks have come", barrier.id, barrier.blocks)
            }
            Op::Move(_) | Op::Port(_) => "packets that no operation has written".into(),
            _ => "something".into(),
        }
    }

    /// Says which blocks of a rank would give what is waited for, and where they are.
    fn giver(&self, rank: u32, gives: impl Fn(&Op) -> bool) -> String {
        let first = self.ranks[rank as usize].blocks;
        let blocks = &self.plan.ranks[rank as usize].blocks;
        for (block, contents) in blocks.iter().enumerate() {
            let given = |operation: &Operation| flat(operation).any(&gives);
            let state = &self.blocks[first + block];
            let at = state.step.filter(|_| !state.done).map_or(usize::MAX, |step| step.index);
            let later =
                contents.ops.iter().enumerate().find(|&(index, operation)| index >= at && given(operation));
            let last = || contents.ops.iter().rposition(given);
            let Some(index) = later.map(|(index, _)| index).or_else(last) else { continue };
            let giving = Position::of(self.plan, rank, number(block), index, None);
            return match state.step {
                Some(step) if !state.done => {
                    let inner = step.turn.map(|(_, inner, _)| inner);
                    let waiting = Position::of(self.plan, rank, number(block), step.index, inner);
                    format!("{giving} would give it, but the block waits in operation {}", waiting.op)
                }
                _ => format!("{giving} has given it, but not often enough"),
            };
        }
        "nothing gives it".into()
    }
}
