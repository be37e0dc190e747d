//! All ranks' state and the steps that change it.

use std::collections::{HashMap, VecDeque};

use super::config::Config;
use super::element::Element;
use super::geometry::{Turn, iterations, part};
use super::ir::{Barrier, Channel, ChannelKind, Form, Move, Op, Operand, Place, Plan, PortPut, Reduction};
use super::memory::{Memory, Partial, Sizes};
use super::position::Position;
use crate::error::Result;

/// Signals, barriers and semaphores between ranks and blocks.
pub(super) struct Machine<'p, T> {
    pub(super) plan: &'p Plan,
    pub(super) sizes: Sizes,
    reduction: Option<Reduction>,
    pub(super) memories: Vec<Memory<T>>,
    /// The call that each rank is in; the first is 1.
    pub(super) calls: Vec<u32>,
    /// Signals that came, and waits that ended, at each rank's end of a channel.
    signals: HashMap<(u32, Channel), u64>,
    semaphores: Vec<Vec<u64>>,
    /// Blocks that have come to each rank's barriers, ever.
    barriers: HashMap<(u32, u32), u64>,
    /// Requests of each port channel that its proxy has not handled.
    pub(super) proxies: HashMap<(u32, u32), VecDeque<Request>>,
}

/// A request to a proxy.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Put { put: PortPut, start: u64, end: u64, call: u32 },
    Signal,
}

/// A move, and how far it has come.
#[derive(Debug)]
pub(super) struct Task<'p> {
    moved: &'p Move,
    next: u64,
    end: u64,
    position: Position,
}

/// A control operation in a block's queue.
#[derive(Debug)]
pub(super) struct Control<'p> {
    op: &'p Op,
    turn: Option<Turn>,
    position: Position,
    /// A barrier that this block has come to, and the count at which it opens.
    opens: Option<u64>,
}

impl<'p, T: Element> Machine<'p, T> {
    pub(super) fn new(plan: &'p Plan, sizes: Sizes, config: Config) -> Result<Self> {
        let ranks = 0..u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
        let semaphores =
            |rank: &super::ir::RankPlan| rank.semaphores.iter().map(|&value| u64::from(value)).collect();
        Ok(Self {
            plan,
            sizes,
            reduction: config.reduction,
            memories: ranks.map(|rank| Memory::new(plan, rank, sizes)).collect::<Result<_>>()?,
            calls: vec![0; plan.ranks.len()],
            signals: HashMap::new(),
            semaphores: plan.ranks.iter().map(semaphores).collect(),
            barriers: HashMap::new(),
            proxies: HashMap::new(),
        })
    }

    pub(super) fn iterations(&self, repeated: &super::ir::Loop) -> u64 {
        iterations(repeated, self.sizes.chunk, self.unit(repeated))
    }

    /// A loop's unit in elements.
    pub(super) fn unit(&self, repeated: &super::ir::Loop) -> u64 {
        (repeated.unit / self.sizes.element).max(1)
    }

    pub(super) fn task(&self, moved: &'p Move, turn: Option<Turn>, position: Position) -> Task<'p> {
        let total = u64::from(moved.count) * self.sizes.chunk;
        let (mut next, mut end) = part(total, self.sizes.granule, turn, moved.share);
        if turn.is_some() || moved.share.is_some() {
            (next, end) = (self.sizes.rounded(next), self.sizes.rounded(end));
        }
        Task { moved, next, end, position }
    }

    pub(super) fn control(op: &'p Op, turn: Option<Turn>, position: Position) -> Control<'p> {
        Control { op, turn, position, opens: None }
    }

    /// The rank and buffer of an operand that is no switch.
    fn home(rank: u32, place: Place) -> Option<(u32, super::ir::Buffer)> {
        match place {
            Place::Local(buffer) => Some((rank, buffer)),
            Place::Remote { rank, buffer } => Some((rank, buffer)),
            Place::Switch(_) => None,
        }
    }

    /// Appends what an operand holds, or each member of its switch in the order of ranks. Returns whether all packets have come.
    fn read(
        &self,
        rank: u32,
        operand: &Operand,
        element: u64,
        call: u32,
        values: &mut Vec<Partial<T>>,
    ) -> bool {
        let mut read = |owner: u32, buffer| {
            let memory = &self.memories[owner as usize];
            let value = memory.read(buffer, operand.first, operand.form, element, call);
            values.extend(value);
            value.is_some()
        };
        if let Some((owner, buffer)) = Self::home(rank, operand.place) {
            return read(owner, buffer);
        }
        let Place::Switch(index) = operand.place else { return false };
        let switch = &self.plan.ranks[rank as usize].switches[index as usize];
        let mut members = switch.ranks.clone();
        members.sort_unstable();
        members.into_iter().all(|member| read(member, switch.buffer))
    }

    /// Combines sources. An average is divided where the sum of all ranks is complete, so that it is rounded once.
    fn reduced(&self, sources: &[Partial<T>], reduction: Reduction) -> Option<Partial<T>> {
        if sources.len() < 2 {
            return sources.first().copied();
        }
        let values: Vec<T> = sources.iter().map(|source| source.value).collect();
        let ranks = sources.iter().fold(0_u32, |ranks, source| ranks.saturating_add(source.ranks));
        let divisor = if ranks as usize == self.plan.ranks.len() { ranks } else { 1 };
        Some(Partial { value: T::reduce(&values, reduction, divisor), ranks })
    }

    fn write(&mut self, rank: u32, operand: &Operand, element: u64, call: u32, value: Partial<T>) {
        if let Some((owner, buffer)) = Self::home(rank, operand.place) {
            self.memories[owner as usize].write(buffer, operand.first, operand.form, element, call, value);
        } else if let Place::Switch(index) = operand.place {
            let plan = self.plan;
            let switch = &plan.ranks[rank as usize].switches[index as usize];
            for &member in &switch.ranks {
                self.memories[member as usize].write(
                    switch.buffer,
                    operand.first,
                    operand.form,
                    element,
                    call,
                    value,
                );
            }
        }
    }

    /// Moves up to `most` elements; stops at a packet that has not come. Returns how many were moved.
    pub(super) fn advance(&mut self, task: &mut Task<'p>, most: u64) -> u64 {
        let (rank, call) = (task.position.rank, self.calls[task.position.rank as usize]);
        let reduction = self.reduction.or(task.moved.reduction).unwrap_or(Reduction::Sum);
        let first = task.next;
        let mut values = Vec::new();
        while task.next < task.end && task.next - first < most {
            values.clear();
            let came =
                task.moved.sources.iter().all(|source| self.read(rank, source, task.next, call, &mut values));
            let Some(value) = came.then(|| self.reduced(&values, reduction)).flatten() else { break };
            for target in &task.moved.targets {
                self.write(rank, target, task.next, call, value);
            }
            task.next += 1;
        }
        task.next - first
    }

    /// Does a control operation if nothing keeps it waiting. Returns whether it is done.
    pub(super) fn try_control(&mut self, control: &mut Control<'p>) -> bool {
        let rank = control.position.rank;
        match *control.op {
            Op::Signal { channel, .. } if channel.kind == ChannelKind::Port => {
                self.proxies.entry((rank, channel.index)).or_default().push_back(Request::Signal);
            }
            Op::Signal { channel, .. } => self.signal(rank, channel),
            Op::Wait { channel, .. } => {
                let signals = self.signals.entry((rank, channel)).or_default();
                if *signals == 0 {
                    return false;
                }
                *signals -= 1;
            }
            Op::Flush { channel } => return self.idle(rank, channel),
            Op::Acquire { semaphore } => {
                let value = &mut self.semaphores[rank as usize][semaphore as usize];
                if *value == 0 {
                    return false;
                }
                *value -= 1;
            }
            Op::Release { semaphore } => self.semaphores[rank as usize][semaphore as usize] += 1,
            Op::Port(ref put) => return self.request(rank, put, control),
            Op::Barrier(barrier) => return self.meet(rank, barrier, control),
            Op::Sync | Op::Move(_) | Op::Loop(_) => {}
        }
        true
    }

    fn idle(&self, rank: u32, channel: u32) -> bool {
        self.proxies.get(&(rank, channel)).is_none_or(VecDeque::is_empty)
    }

    fn signal(&mut self, rank: u32, channel: Channel) {
        if let Some(end) = self.plan.other_end(rank, channel) {
            *self.signals.entry(end).or_default() += 1;
        }
    }

    fn meet(&mut self, rank: u32, barrier: Barrier, control: &mut Control<'p>) -> bool {
        let came = self.barriers.entry((rank, barrier.id)).or_default();
        let opens = *control.opens.get_or_insert_with(|| {
            *came += 1;
            came.next_multiple_of(u64::from(barrier.blocks))
        });
        *came >= opens
    }

    fn request(&mut self, rank: u32, put: &PortPut, control: &mut Control<'p>) -> bool {
        if control.opens.is_none() {
            let call = self.calls[rank as usize];
            let total = u64::from(put.count) * self.sizes.chunk;
            let (start, end) = part(total, self.sizes.granule, control.turn, None);
            let (buffer, first) = put.source;
            let memory = &self.memories[rank as usize];
            let missing = |element| memory.read(buffer, first, Form::Packets, element, call).is_none();
            if put.forward && (start..end).any(missing) {
                return false;
            }
            let queue = self.proxies.entry((rank, put.channel)).or_default();
            queue.push_back(Request::Put { put: *put, start, end, call });
            if put.signal {
                queue.push_back(Request::Signal);
            }
            control.opens = Some(0);
        }
        !put.flush || self.idle(rank, put.channel)
    }

    /// Lets a proxy handle a part of its first request.
    pub(super) fn serve(&mut self, rank: u32, channel: u32, most: u64) {
        let queue = self.proxies.entry((rank, channel)).or_default();
        let Some(request) = queue.front_mut() else { return };
        match *request {
            Request::Signal => {
                queue.pop_front();
                self.signal(rank, Channel { kind: ChannelKind::Port, index: channel });
            }
            Request::Put { put, ref mut start, end, call } => {
                let (from, to) = (*start, end.min(start.saturating_add(most)));
                *start = to;
                if to == end {
                    queue.pop_front();
                }
                let peer = self.plan.ranks[rank as usize].port_channels[channel as usize] as usize;
                let ((source, read), (target, written)) = (put.source, put.target);
                for element in from..to {
                    // Packets were valid when they were asked for; the proxy copies whatever is there now.
                    let value = self.memories[rank as usize].read(source, read, Form::Plain, element, call);
                    if let Some(value) = value {
                        self.memories[peer].write(target, written, put.form, element, call, value);
                    }
                }
            }
        }
    }
}

impl Task<'_> {
    pub(super) fn done(&self) -> bool {
        self.next == self.end
    }

    pub(super) fn waits(&self) -> String {
        format!("{} waits for packets", self.position)
    }
}

impl Control<'_> {
    pub(super) fn syncs(&self) -> bool {
        matches!(self.op, Op::Barrier(_))
    }

    /// The condition that the operation waits for.
    pub(super) fn waits<T>(&self, machine: &Machine<'_, T>) -> String {
        let rank = self.position.rank;
        let what = match *self.op {
            Op::Wait { channel, .. } => match machine.plan.other_end(rank, channel) {
                Some((peer, _)) => {
                    format!("a signal of rank {peer} ({:?} channel {})", channel.kind, channel.index)
                }
                None => "a signal through a channel without other end".into(),
            },
            Op::Acquire { semaphore } => format!("semaphore {semaphore}"),
            Op::Barrier(barrier) => format!("the other blocks of barrier {}", barrier.id),
            Op::Port(ref put) if put.forward => "packets".into(),
            _ => "its proxy".into(),
        };
        format!("{} waits for {what}", self.position)
    }
}
