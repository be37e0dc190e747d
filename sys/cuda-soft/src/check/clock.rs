//! Vector clocks: which events happen before a thread's next one.
//!
//! A running kernel has a component for each of its threads. Work that has ended needs only one number: works form
//! *chains*, in which each begins after the one before it has ended, so the last known work of a chain stands for all
//! earlier ones. A clock therefore stays small however long a program runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocks::{Block, Blocks};
use super::shared::{Shared, includes, join};
use super::stamp::{Stamp, Tick, WorkId};

/// Events of all threads that happen before something.
///
/// Clocks are copied and joined at each synchronisation, and differ little then. So they share their parts, and a part that
/// two clocks share needs no look: among the blocks of a large grid, copying a clock costs as much as the square root of
/// their number, and joining two as much as differs in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// For each chain, the last work that has ended.
    ended: Arc<BTreeMap<u32, u32>>,
    /// For blocks of running kernels, how far their threads had come. Sorted.
    blocks: Vec<((WorkId, u32), Arc<Blocks>)>,
    /// The part of it behind which somebody on the way has fenced aliases. Has no such part itself.
    fenced: Option<Arc<Clock>>,
}

impl Clock {
    /// Whether all that `stamp` stands for is in the clock.
    pub(super) fn covers(&self, stamp: &Stamp) -> bool {
        self.unknown(stamp) == 0
    }

    /// The lanes of `stamp` whose access is not in the clock.
    pub(super) fn unknown(&self, stamp: &Stamp) -> u32 {
        if self.has_ended(stamp.work) {
            return 0;
        }
        let (group, slot) = Blocks::place(stamp.block);
        let blocks = self.find((stamp.work, group)).ok().map(|at| &self.blocks[at].1);
        let Some(block) = blocks.and_then(|blocks| blocks.0[slot].as_ref()) else { return stamp.lanes };
        block.unknown(stamp)
    }

    /// The lanes of `stamp` whose access is not in the part behind which aliases were fenced.
    pub(super) fn unfenced(&self, stamp: &Stamp) -> u32 {
        self.fenced.as_ref().map_or(stamp.lanes, |fenced| fenced.unknown(stamp))
    }

    /// A fence between aliases, behind all of `before`.
    pub(super) fn fence_aliases(&mut self, before: &Clock) {
        self.fenced = Some(Arc::new(Clock { fenced: None, ..before.clone() }));
    }

    /// A work begins: what has ended before needs no fence between aliases any more.
    pub(super) fn begin(&mut self) {
        let ended = Clock { ended: Arc::clone(&self.ended), ..Clock::default() };
        join(self.fenced.get_or_insert_default(), &Arc::new(ended));
    }

    fn has_ended(&self, work: WorkId) -> bool {
        self.ended.get(&work.chain).is_some_and(|seq| *seq >= work.seq)
    }

    fn find(&self, place: (WorkId, u32)) -> Result<usize, usize> {
        self.blocks.binary_search_by_key(&place, |(known, _)| *known)
    }

    fn block(&mut self, work: WorkId, block: u32) -> &mut Block {
        let (group, slot) = Blocks::place(block);
        let at = self.find((work, group)).unwrap_or_else(|at| {
            self.blocks.insert(at, ((work, group), Arc::default()));
            at
        });
        Arc::make_mut(Arc::make_mut(&mut self.blocks[at].1).0[slot].get_or_insert_default())
    }

    /// Adds the end of a work.
    pub(super) fn end(&mut self, work: WorkId) {
        let seq = Arc::make_mut(&mut self.ended).entry(work.chain).or_default();
        *seq = work.seq.max(*seq);
        self.blocks.retain(|((known, _), _)| *known != work);
    }

    /// Adds what one thread did up to `tick`.
    pub(super) fn reach(&mut self, work: WorkId, block: u32, warp: u16, lane: usize, tick: Tick) {
        self.block(work, block).reach(warp, lane, tick);
    }

    /// Adds what all threads of a block did up to `tick`.
    pub(super) fn reach_all(&mut self, work: WorkId, block: u32, tick: Tick) {
        self.block(work, block).reach_all(tick);
    }
}

impl Shared for Clock {
    fn includes(&self, other: &Clock) -> bool {
        let ended = Arc::ptr_eq(&self.ended, &other.ended)
            || other.ended.iter().all(|(chain, seq)| self.ended.get(chain).is_some_and(|own| own >= seq));
        let mut own = self.blocks.iter().peekable();
        ended
            && other.blocks.iter().all(|(place, blocks)| {
                while own.next_if(|(known, _)| known < place).is_some() {}
                let known = own.next_if(|(known, _)| known == place);
                known.is_some_and(|(_, own)| includes(own, blocks)) || self.has_ended(place.0)
            })
            && match (&self.fenced, &other.fenced) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(own), Some(other)) => includes(own, other),
            }
    }

    fn add(&mut self, other: &Clock) {
        if !Arc::ptr_eq(&self.ended, &other.ended) {
            let ended = Arc::make_mut(&mut self.ended);
            for (chain, seq) in other.ended.iter() {
                let own = ended.entry(*chain).or_default();
                *own = (*own).max(*seq);
            }
            let ended = Arc::clone(&self.ended);
            self.blocks.retain(|((work, _), _)| ended.get(&work.chain).is_none_or(|seq| *seq < work.seq));
        }
        let mut at = 0;
        for (place, blocks) in &other.blocks {
            while self.blocks.get(at).is_some_and(|(known, _)| known < place) {
                at += 1;
            }
            if self.has_ended(place.0) {
                continue;
            }
            match self.blocks.get_mut(at) {
                Some((known, own)) if known == place => join(own, blocks),
                _ => self.blocks.insert(at, (*place, Arc::clone(blocks))),
            }
            at += 1;
        }
        match (&mut self.fenced, &other.fenced) {
            (_, None) => {}
            (own @ None, Some(other)) => *own = Some(Arc::clone(other)),
            (Some(own), Some(other)) => join(own, other),
        }
    }
}

/// Adds `other` to each of the `clocks`. Neighbours that share a clock share the result, which is computed once.
pub(super) fn join_each<'a>(clocks: impl Iterator<Item = &'a mut Arc<Clock>>, other: &Arc<Clock>) {
    let mut last: Option<(Arc<Clock>, Arc<Clock>)> = None;
    for clock in clocks {
        match &last {
            Some((before, after)) if Arc::ptr_eq(before, clock) => *clock = Arc::clone(after),
            _ => {
                let before = Arc::clone(clock);
                join(clock, other);
                last = Some((before, Arc::clone(clock)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: WorkId = WorkId { chain: 3, seq: 2 };

    fn stamp(lanes: u32, tick: Tick) -> Stamp {
        Stamp { work: WORK, block: 1, warp: 0, lanes, tick }
    }

    #[test]
    fn a_clock_covers_what_each_lane_of_a_stamp_did_and_no_more() {
        let mut clock = Clock::default();
        assert_eq!(clock.unknown(&stamp(5, 1)), 5);
        clock.reach(WORK, 1, 0, 0, 4);
        assert!(clock.covers(&stamp(1, 4)) && !clock.covers(&stamp(1, 5)));
        assert_eq!(clock.unknown(&stamp(3, 4)), 2, "lane 1 is unknown");
        clock.reach_all(WORK, 1, 3);
        assert!(clock.covers(&stamp(3, 3)) && clock.covers(&stamp(1, 4)));
        assert!(!clock.covers(&Stamp { block: 2, ..stamp(1, 1) }));
    }

    #[test]
    fn the_end_of_a_work_covers_it_and_all_before_it_in_its_chain() {
        let mut clock = Clock::default();
        clock.reach(WORK, 1, 0, 0, 4);
        clock.end(WORK);
        assert!(clock.blocks.is_empty() && clock.covers(&stamp(!0, 9)));
        assert!(clock.covers(&Stamp { work: WorkId { seq: 1, ..WORK }, ..stamp(!0, 9) }));
        assert!(!clock.covers(&Stamp { work: WorkId { seq: 3, ..WORK }, ..stamp(!0, 1) }));
        assert!(!clock.covers(&Stamp { work: WorkId { chain: 4, seq: 1 }, ..stamp(!0, 1) }));
    }

    #[test]
    fn joining_takes_the_later_of_both_and_shares_what_includes_the_other() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.reach(WORK, 1, 0, 0, 4);
        b.reach(WORK, 1, 0, 1, 5);
        b.reach_all(WORK, 0, 7);
        let (mut a, b) = (Arc::new(a), Arc::new(b));
        let before = Arc::clone(&a);
        join(&mut a, &b);
        assert!(a.includes(&b) && a.includes(&before) && !b.includes(&a));
        assert!(a.covers(&stamp(1, 4)) && a.covers(&stamp(2, 5)));
        assert!(!before.covers(&stamp(2, 5)), "others that share the clock keep theirs");
        let mut other = Arc::clone(&b);
        join(&mut other, &a);
        assert!(Arc::ptr_eq(&other, &a));
        let mut whole = Clock::default();
        whole.end(WORK);
        let mut whole = Arc::new(whole);
        join(&mut whole, &a);
        assert!(whole.blocks.is_empty(), "what has ended has no parts");
    }

    #[test]
    fn a_fence_between_aliases_is_for_what_was_known_then_and_is_passed_on() {
        let mut clock = Clock::default();
        clock.reach(WORK, 1, 0, 0, 4);
        assert_eq!(clock.unfenced(&stamp(1, 4)), 1);
        clock.fence_aliases(&clock.clone());
        clock.reach(WORK, 1, 0, 0, 5);
        assert_eq!([clock.unfenced(&stamp(1, 4)), clock.unfenced(&stamp(1, 5))], [0, 1]);
        let mut other = Clock::default();
        other.reach(WORK, 1, 0, 0, 5);
        let (clock, mut other) = (Arc::new(clock), Arc::new(other));
        assert!(includes(&clock, &other) && !includes(&other, &clock));
        join(&mut other, &clock);
        assert_eq!(other.unfenced(&stamp(1, 4)), 0);
    }

    #[test]
    fn a_work_that_begins_needs_no_fence_for_what_has_ended() {
        let other = WorkId { chain: 4, seq: 1 };
        let mut clock = Clock::default();
        clock.reach(other, 1, 0, 0, 9);
        clock.end(WORK);
        assert_eq!(clock.unfenced(&stamp(1, 4)), 1);
        clock.begin();
        assert_eq!(clock.unfenced(&stamp(1, 4)), 0);
        assert_eq!(clock.unfenced(&Stamp { work: other, ..stamp(1, 4) }), 1, "it still runs");
    }
}
