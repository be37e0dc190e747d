//! The reads of a place since its last write: a write races with each that nothing orders before it.
//!
//! All threads of a grid may read one word between two writes, as behind a barrier. So reads that differ only in block and
//! lanes share a description, a read only looks at the last few groups, and reads that another one stands for are dropped
//! when their number has doubled.

use super::access::{Access, Race};
use super::clock::Clock;
use super::stamp::Stamp;

#[derive(Clone, Debug, Default)]
pub(super) enum Reads {
    #[default]
    None,
    One(Access),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Many {
    groups: Vec<Group>,
    /// All reads of all groups.
    count: usize,
    /// At this number of reads, those that another one stands for are dropped.
    limit: usize,
}

/// Reads that differ only in their block and lanes.
#[derive(Clone, Debug)]
struct Group {
    /// One of them.
    like: Access,
    /// Blocks and lanes, in the order of the reads.
    who: Vec<(u32, u32)>,
}

/// A read looks for a group among the last ones only.
const NEAR: usize = 4;
/// The least number of reads that are looked through.
const FEW: usize = 8;

impl Reads {
    /// A read that races with a `write`, which `known` happens before.
    pub(super) fn races(&self, write: &Access, known: &Clock) -> Option<Race> {
        match self {
            Self::None => None,
            Self::One(read) => read.races(write, known),
            Self::Many(many) => many.groups.iter().find_map(|group| {
                group.who.iter().find_map(|(block, lanes)| group.read(*block, *lanes).races(write, known))
            }),
        }
    }

    /// Adds a read, which `known` happens before.
    pub(super) fn add(&mut self, read: &Access, known: &Clock) {
        match self {
            Self::None => *self = Self::One(*read),
            Self::One(one) => {
                let first = *one;
                if one.who.block == read.who.block && alike(one, read) {
                    one.who.lanes |= read.who.lanes;
                } else if !stands_for(read, &first) || left(read, known, &first.who) != 0 {
                    let mut many = Box::new(Many { limit: FEW, ..Many::default() });
                    many.add(&first);
                    many.add(read);
                    *self = Self::Many(many);
                } else {
                    *one = *read;
                }
            }
            Self::Many(many) => {
                if many.count >= many.limit {
                    many.drop_known(read, known);
                }
                many.add(read);
            }
        }
    }
}

impl Many {
    fn add(&mut self, read: &Access) {
        let (block, lanes) = (read.who.block, read.who.lanes);
        let near = self.groups.len().saturating_sub(NEAR);
        let Some(group) = self.groups[near..].iter_mut().find(|group| alike(&group.like, read)) else {
            self.groups.push(Group { like: *read, who: vec![(block, lanes)] });
            self.count += 1;
            return;
        };
        match group.who.last_mut() {
            Some((last, all)) if *last == block => *all |= lanes,
            _ => {
                group.who.push((block, lanes));
                self.count += 1;
            }
        }
    }

    /// Drops the reads that `read` stands for, and joins groups that are alike.
    fn drop_known(&mut self, read: &Access, known: &Clock) {
        self.groups.sort_by_key(|group| order(&group.like));
        self.groups.dedup_by(|next, group| {
            let same = alike(&group.like, &next.like);
            if same {
                group.who.append(&mut next.who);
            }
            same
        });
        for group in &mut self.groups {
            group.who.sort_unstable_by_key(|(block, _)| *block);
            group.who.dedup_by(|(next, lanes), (block, all)| {
                let same = next == block;
                if same {
                    *all |= *lanes;
                }
                same
            });
            let like = group.like;
            if stands_for(read, &like) {
                group.who.retain_mut(|(block, lanes)| {
                    *lanes = left(read, known, &Stamp { block: *block, lanes: *lanes, ..like.who });
                    *lanes != 0
                });
            }
        }
        self.groups.retain(|group| !group.who.is_empty());
        self.count = self.groups.iter().map(|group| group.who.len()).sum();
        self.limit = FEW.max(2 * self.count);
    }
}

impl Group {
    fn read(&self, block: u32, lanes: u32) -> Access {
        Access { who: Stamp { block, lanes, ..self.like.who }, ..self.like }
    }
}

/// Whether two reads differ in blocks and lanes at most.
fn alike(a: &Access, b: &Access) -> bool {
    let here = Stamp { block: a.who.block, lanes: a.who.lanes, ..b.who };
    *a == Access { who: here, ..*b }
}

/// Brings reads that are alike side by side.
fn order(read: &Access) -> impl Ord + use<> {
    (read.who.work, read.who.warp, read.who.tick, read.source, read.at, read.size)
}

/// Whether a write that races with `old` also races with `read` if `old` happens before `read`.
fn stands_for(read: &Access, old: &Access) -> bool {
    let strength = |access: &Access| {
        let Access { device, strong, multicast, engine, at, size, .. } = *access;
        (device, strong, multicast, engine, at, size)
    };
    strength(read) == strength(old)
}

/// The lanes of `old` whose read neither happens before `read` nor is of the same thread.
fn left(read: &Access, known: &Clock, old: &Stamp) -> u32 {
    let now = &read.who;
    let same = (now.work, now.block, now.warp) == (old.work, old.block, old.warp);
    known.unknown(old) & !if same { now.lanes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::stamp::WorkId;

    const WORK: WorkId = WorkId { chain: 0, seq: 1 };

    fn access(block: u32, tick: u32, write: bool) -> Access {
        let who = Stamp { work: WORK, block, warp: 0, lanes: 1, tick };
        Access {
            who,
            device: 0,
            strong: None,
            write,
            multicast: false,
            engine: None,
            adds: false,
            at: 0,
            size: 4,
            source: 0,
        }
    }

    fn many(reads: &Reads) -> &Many {
        match reads {
            Reads::Many(many) => many,
            _ => panic!("{reads:?}"),
        }
    }

    #[test]
    fn each_of_many_reads_races_until_it_is_known() {
        let nothing = Clock::default();
        let mut reads = Reads::None;
        // Ticks that differ make groups that no read finds among the last few.
        let read = |block| access(block, 1 + block % 7, false);
        for block in (0..100).chain(0..100) {
            reads.add(&read(block), &nothing);
        }
        let write = access(1000, 1, true);
        let mut known = Clock::default();
        for block in 0..100 {
            let first = reads.races(&write, &known).expect("not all are known").0;
            let who = first.who;
            assert!(known.unknown(&who) != 0 && who.tick == 1 + who.block % 7, "{first:?}, {block} known");
            known.reach(WORK, who.block, 0, 0, who.tick);
        }
        assert_eq!(reads.races(&write, &known), None);
    }

    #[test]
    fn reads_that_a_later_one_stands_for_are_dropped() {
        let mut reads = Reads::None;
        for round in 1..=1000 {
            let mut known = Clock::default();
            for block in 0..4 {
                known.reach(WORK, block, 0, 0, round - 1);
            }
            for block in 0..4 {
                reads.add(&access(block, round, false), &known);
            }
        }
        assert!(many(&reads).count <= 32, "{}", many(&reads).count);
        // A read of another strength stands for none of them.
        let mut all = Clock::default();
        (0..4).for_each(|block| all.reach_all(WORK, block, 1000));
        let count = many(&reads).count;
        (0..100).for_each(|_| {
            let strong = Access { strong: Some(crate::code::Scope::Gpu), ..access(9, 1, false) };
            reads.add(&strong, &all);
        });
        let mut without = all;
        assert!(many(&reads).count > 4.min(count));
        without.reach(WORK, 9, 0, 0, 1);
        assert_eq!(reads.races(&access(10, 1, true), &without), None);
    }

    /// A write by the alias of the later one needs no fence to come behind that, but one to come behind the earlier one.
    #[test]
    fn a_read_stands_for_none_by_another_alias() {
        for multicast in [false, true] {
            let by = |multicast, access: Access| Access { multicast, ..access };
            let (mut reads, mut known) = (Reads::None, Clock::default());
            reads.add(&by(multicast, access(0, 1, false)), &known);
            known.reach(WORK, 0, 0, 0, 1);
            reads.add(&by(!multicast, access(0, 2, false)), &known);
            known.reach(WORK, 0, 0, 0, 2);
            let (first, _) = reads.races(&by(!multicast, access(1, 1, true)), &known).expect("no fence");
            assert_eq!((first.who.tick, first.multicast), (1, multicast));
        }
    }

    #[test]
    fn lanes_of_a_warp_that_read_the_same_are_one_read() {
        let nothing = Clock::default();
        let mut reads = Reads::None;
        for block in 0..3 {
            for lane in 0..32 {
                let mut read = access(block, 1, false);
                read.who.lanes = 1 << lane;
                reads.add(&read, &nothing);
            }
        }
        assert_eq!((many(&reads).groups.len(), many(&reads).count), (1, 3));
    }
}
