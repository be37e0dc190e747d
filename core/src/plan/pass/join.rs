//! Two moves as one: the rules, apart from what stands between them.

use super::effects::{Map, Span};
use super::ir::{Buffer, Move, Operand, Place, Plan};

impl Operand {
    /// Whether it is in scratch, as an operand of one of `rank`'s moves.
    pub(super) fn is_scratch(&self, plan: &Plan, rank: u32) -> bool {
        let buffer = match self.place {
            Place::Local(buffer) | Place::Remote { buffer, .. } => buffer,
            Place::Switch(index) => plan.ranks[rank as usize].switches[index as usize].buffer,
        };
        buffer == Buffer::Scratch
    }
}

fn alike(a: &Move, b: &Move) -> bool {
    a.count == b.count && a.share == b.share
}

fn overlap(map: &Map<'_>, rank: u32, count: u32, left: &[Operand], right: &[Operand]) -> bool {
    let spans = |side: &[Operand]| -> Vec<Span> {
        side.iter().flat_map(|operand| map.spans(rank, operand, count)).collect()
    };
    let right = spans(right);
    spans(left).iter().any(|a| right.iter().any(|b| a.overlaps(b)))
}

/// `a -> d; d -> e` is `a -> d, e`. Returns also the operand that is read no more.
pub(super) fn chained(map: &Map<'_>, rank: u32, a: &Move, b: &Move) -> Option<(Move, Operand)> {
    let [through] = b.sources[..] else { return None };
    let passes = alike(a, b) && b.reduction.is_none() && a.targets.contains(&through);
    if !passes || matches!(through.place, Place::Switch(_)) {
        return None;
    }
    let mut targets = a.targets.clone();
    // A switch or another name of the same memory may write it anyway.
    let again = |target: &Operand| {
        let written = map.spans(rank, target, b.count);
        map.spans(rank, &through, a.count).iter().all(|span| written.contains(span))
    };
    if b.targets.iter().any(again) {
        targets.retain(|target| *target != through);
    }
    targets.extend_from_slice(&b.targets);
    Some((Move { targets, ..a.clone() }, through))
}

/// `a -> d; a -> e` is `a -> d, e`.
pub(super) fn same_sources(map: &Map<'_>, rank: u32, a: &Move, b: &Move) -> Option<Move> {
    let same = alike(a, b) && a.reduction == b.reduction && a.sources == b.sources;
    if !same || overlap(map, rank, a.count, &a.targets, &b.sources) {
        return None;
    }
    Some(Move { targets: [&a.targets[..], &b.targets].concat(), ..a.clone() })
}

/// `a + b -> d; d + c -> e` is `a + b + c -> e`: where the order of the reduction stays. Returns also the operand that is
/// neither written nor read between any more.
pub(super) fn accumulated(map: &Map<'_>, rank: u32, a: &Move, b: &Move) -> Option<(Move, Operand)> {
    let [through] = a.targets[..] else { return None };
    let at = b.sources.iter().position(|source| *source == through)?;
    let fits = match a.reduction {
        None => true,
        Some(reduction) => at == 0 && b.reduction == Some(reduction),
    };
    if !fits || !alike(a, b) || b.sources.len() < 2 || matches!(through.place, Place::Switch(_)) {
        return None;
    }
    let (before, after) = (&b.sources[..at], &b.sources[at + 1..]);
    if overlap(map, rank, a.count, &a.targets, before) || overlap(map, rank, a.count, &a.targets, after) {
        return None;
    }
    let sources = [before, &a.sources, after].concat();
    Some((Move { sources, ..b.clone() }, through))
}

/// `a[0] -> d[0]; a[1] -> d[1]` is `a[0..2] -> d[0..2]`, in either order.
pub(super) fn neighbours(map: &Map<'_>, rank: u32, a: &Move, b: &Move) -> Option<Move> {
    let shape = |m: &Move| (m.sources.len(), m.targets.len(), m.reduction, m.share);
    if shape(a) != shape(b) || a.share.is_some() {
        return None;
    }
    let follows = |low: &Move, high: &Move| {
        let pairs = low.sources.iter().chain(&low.targets).zip(high.sources.iter().chain(&high.targets));
        { pairs }.all(|(low_one, high_one)| {
            (low_one.place, low_one.form) == (high_one.place, high_one.form)
                && low_one.first.checked_add(low.count) == Some(high_one.first)
        })
    };
    let low = if follows(a, b) {
        a
    } else if follows(b, a) {
        b
    } else {
        return None;
    };
    let count = a.count.checked_add(b.count)?;
    let free = |writes: (&Move, &[Operand]), others: (&Move, &[Operand])| {
        let written = writes.1.iter().flat_map(|target| map.spans(rank, target, writes.0.count));
        let read: Vec<Span> = others.1.iter().flat_map(|o| map.spans(rank, o, others.0.count)).collect();
        { written }.all(|span| !read.iter().any(|other| span.overlaps(other)))
    };
    let apart = free((a, &a.targets), (b, &b.sources)) && free((b, &b.targets), (a, &a.sources));
    apart.then(|| Move { count, ..low.clone() })
}

/// Whether no element of the move is written while another is read or written in its place.
pub(super) fn legal(map: &Map<'_>, rank: u32, moved: &Move) -> bool {
    let spans = |operand: &Operand| map.spans(rank, operand, moved.count);
    let sources: Vec<Span> = moved.sources.iter().flat_map(spans).collect();
    let targets: Vec<Span> = moved.targets.iter().flat_map(spans).collect();
    targets.iter().enumerate().all(|(index, target)| {
        let same = |source: &Span| source.start == target.start && source.packets == target.packets;
        sources.iter().all(|source| !target.overlaps(source) || same(source) && !target.packets)
            && targets[index + 1..].iter().all(|other| !target.overlaps(other))
    })
}
