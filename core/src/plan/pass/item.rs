//! An operation as its block's order sees it.

use super::effects::{Effects, Sharing, Span, Timeline};
use super::ir::{ChannelKind, Op, Operation};

/// An operation that is neither sync nor loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    pub(super) effects: Effects,
    /// Effects are those of the block's threads, which only syncs order.
    moves: bool,
    pub(super) barrier: bool,
    /// Makes known what others did: to moves after the next sync.
    learns: bool,
    /// Makes known what moves before the last sync did; `Some(true)` only their reads.
    tells: Option<bool>,
    /// A move that accesses something that others access, too.
    shared: bool,
    /// Reads such.
    shared_read: bool,
    /// Accesses such other than by reading packets, which bring their own order.
    needs: bool,
    /// Reads packets that others write, writes packets that others read.
    reads_packets: bool,
    writes_packets: bool,
    /// Syncs of the block that stood before it.
    pub(super) syncs: usize,
}

/// An operation and what its order with others rests on.
pub(super) struct Entry {
    pub(super) operation: Operation,
    pub(super) item: Item,
}

impl Item {
    /// Whether `later`, of the same block, must come after this item, with a sync between. `around`: of a loop's next
    /// iteration. `had_sync` says whether the plan has one there.
    pub(super) fn before(&self, later: &Self, around: bool, had_sync: impl Fn() -> bool) -> bool {
        let told = |reads_only: bool| if reads_only { self.shared_read } else { self.shared };
        self.learns && later.moves && later.needs
            || self.moves && later.tells.is_some_and(told)
            || self.moves && conflict(&self.effects, &later.effects, around)
            // Few plans use the order that a packet carries beyond its own element: their authors put a sync, which stays.
            || (self.reads_packets && later.needs || self.moves && self.shared && later.writes_packets)
                && had_sync()
    }

    /// Whether `later` waits for packets of this item: no sync is needed between, but the order must stay.
    pub(super) fn feeds(&self, later: &Self) -> bool {
        let packets = |span: &&Span| span.packets;
        let mut written = self.effects.writes.iter().filter(packets);
        written.any(|write| later.effects.reads.iter().filter(packets).any(|read| write.overlaps(read)))
    }

    /// Whether it may have to wait for a peer or another block.
    pub(super) fn waits(&self) -> bool {
        self.learns || self.reads_packets
    }

    /// Whether a peer or another block may wait for it.
    pub(super) fn awaited(&self) -> bool {
        self.tells.is_some() || self.writes_packets
    }

    pub(super) fn of(sharing: &Sharing<'_>, timeline: Timeline, rank: u32, op: &Op, syncs: usize) -> Self {
        let effects = sharing.map.effects(rank, op);
        let shared = |span: &Span, write| sharing.shared(timeline, rank, span, write);
        let shared_read = effects.reads.iter().any(|span| shared(span, false));
        let shared_write = effects.writes.iter().any(|span| shared(span, true));
        let needs = shared_write || effects.reads.iter().any(|span| !span.packets && shared(span, false));
        let (moves, port) = match op {
            Op::Move(_) => (true, None),
            Op::Port(put) => (false, Some(put)),
            _ => (false, None),
        };
        let packets = |spans: &[Span], write| spans.iter().any(|span| span.packets && shared(span, write));
        let forwards = port.is_some_and(|put| put.forward);
        let tells = match op {
            // A proxy gives its signals behind all that it knows, whatever the plan says.
            Op::Signal { channel, relaxed } => Some(*relaxed && channel.kind == ChannelKind::Memory),
            Op::Release { .. } => Some(false),
            _ => port.filter(|put| put.signal).map(|_| false),
        };
        let waits = matches!(op, Op::Wait { .. } | Op::Acquire { .. } | Op::Flush { .. });
        Self {
            moves,
            barrier: matches!(op, Op::Barrier(_)),
            learns: waits || port.is_some_and(|put| put.flush),
            tells,
            shared: moves && (shared_read || shared_write),
            shared_read: moves && shared_read,
            needs,
            reads_packets: (moves || forwards) && packets(&effects.reads, false),
            writes_packets: packets(&effects.writes, true),
            syncs,
            effects,
        }
    }
}

/// Whether two accesses of one block must be in order: one of them writes what the other accesses.
///
/// A packet that comes from the same block brings its order with it. In the next iteration of a loop, ranges that begin at the
/// same chunk are other slices of it.
fn conflict(first: &Effects, second: &Effects, around: bool) -> bool {
    let meet = |a: &Span, b: &Span| a.overlaps(b) && !(around && a.start == b.start);
    let any = |left: &[Span], right: &[Span], skip: fn(&Span, &Span) -> bool| {
        left.iter().any(|a| right.iter().any(|b| meet(a, b) && !skip(a, b)))
    };
    any(&first.writes, &second.reads, |write, read| write.packets && read.packets)
        || any(&first.writes, &second.writes, |_, _| false)
        || any(&first.reads, &second.writes, |_, _| false)
}
