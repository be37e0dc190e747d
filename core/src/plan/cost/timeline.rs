//! When each operation of a call begins and ends, predicted or measured.

use std::collections::HashMap;

use super::ir::{Channel, ChannelKind, Op, Plan};

/// One call: all operations with their times, and what they told each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeline {
    /// Operations, those of a block in order.
    pub spans: Vec<Span>,
    /// Signals and semaphores.
    pub arrows: Vec<Arrow>,
}

/// An operation with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a measurement makes them, too")]
pub struct Span {
    /// Rank.
    pub rank: u32,
    /// Block of the rank.
    pub block: u32,
    /// Index among the block's operations.
    pub op: u32,
    /// Index within the loop, if the operation is in one.
    pub inner: Option<u32>,
    /// Iteration of the loop.
    pub iteration: u64,
    /// Nanoseconds from the beginning of the call.
    pub start: u64,
    /// The same of the end.
    pub end: u64,
}

/// An operation that another one waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrow {
    /// The kind of event.
    pub kind: ArrowKind,
    /// The block and operation that gave it.
    pub from: End,
    /// The block and operation that waited for it.
    pub to: End,
}

/// An event that one operation gives another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrowKind {
    /// A signal of a channel.
    Signal,
    /// A semaphore between blocks of a rank.
    Semaphore,
}

/// One end of an [`Arrow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct End {
    /// Rank.
    pub rank: u32,
    /// Block of the rank.
    pub block: u32,
    /// Nanoseconds from the beginning of the call: the end of its operation, or the beginning of a put of a port channel.
    pub at: u64,
}

/// One direction of a channel, named by the end that waits, or a semaphore of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    Channel(u32, Channel),
    Semaphore(u32, u32),
}

impl Span {
    /// The operation in its plan; `None` in another plan.
    pub fn op_of<'p>(&self, plan: &'p Plan) -> Option<&'p Op> {
        let block = plan.ranks.get(self.rank as usize)?.blocks.get(self.block as usize)?;
        let op = &block.ops.get(self.op as usize)?.op;
        match (op, self.inner) {
            (Op::Loop(repeated), Some(inner)) => Some(&repeated.body.get(inner as usize)?.op),
            (op, _) => Some(op),
        }
    }
}

impl Timeline {
    /// The timeline of one call of `plan`. The k-th signal of a channel is what its k-th wait waited for.
    pub fn new(plan: &Plan, mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| {
            (span.rank, span.block, span.start, span.end, span.iteration, span.op, span.inner)
        });
        let mut gives: HashMap<Way, Vec<End>> = HashMap::new();
        let mut takes: HashMap<Way, Vec<End>> = HashMap::new();
        let mut ways = Vec::new();
        for span in &spans {
            let Some(op) = span.op_of(plan) else { continue };
            let Some((gave, way)) = way(plan, span.rank, op) else { continue };
            let list = if gave { &mut gives } else { &mut takes };
            // A request to a proxy may end only when it is complete.
            let at = if matches!(op, Op::Port(_)) { span.start } else { span.end };
            list.entry(way).or_default().push(End { rank: span.rank, block: span.block, at });
            ways.push(way);
        }
        let mut arrows = Vec::new();
        for way in ways {
            let (Some(mut from), Some(mut to)) = (gives.remove(&way), takes.remove(&way)) else { continue };
            let kind = match way {
                Way::Channel(..) => ArrowKind::Signal,
                Way::Semaphore(rank, index) => {
                    // The initial value is there without a release.
                    let initial = plan.ranks[rank as usize].semaphores[index as usize] as usize;
                    to.sort_by_key(|end| end.at);
                    to.drain(..initial.min(to.len()));
                    ArrowKind::Semaphore
                }
            };
            from.sort_by_key(|end| end.at);
            to.sort_by_key(|end| end.at);
            arrows.extend(from.into_iter().zip(to).map(|(from, to)| Arrow { kind, from, to }));
        }
        Self { spans, arrows }
    }

    /// Nanoseconds until everything has ended.
    pub fn end(&self) -> u64 {
        self.spans.iter().map(|span| span.end).max().unwrap_or(0)
    }
}

/// The way of what an operation gives (`true`) or takes.
fn way(plan: &Plan, rank: u32, op: &Op) -> Option<(bool, Way)> {
    let to_peer = |channel| {
        let (peer, end) = plan.other_end(rank, channel)?;
        Some((true, Way::Channel(peer, end)))
    };
    match *op {
        Op::Signal { channel, .. } => to_peer(channel),
        Op::Port(ref put) if put.signal => to_peer(Channel { kind: ChannelKind::Port, index: put.channel }),
        Op::Wait { channel, .. } => Some((false, Way::Channel(rank, channel))),
        Op::Release { semaphore } => Some((true, Way::Semaphore(rank, semaphore))),
        Op::Acquire { semaphore } => Some((false, Way::Semaphore(rank, semaphore))),
        _ => None,
    }
}
