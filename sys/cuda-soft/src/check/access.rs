//! One access to memory, and when two of them race.
//!
//! PTX ISA, "Memory Consistency Model": two accesses to the same bytes, at least one of them a write, *conflict*. They
//! race unless one happens before the other, or they are *morally strong*: both strong, each with a scope that includes
//! the other's thread, and to exactly the same bytes.
//!
//! A multicast address is an *alias* of the addresses of the memory behind it. Of two accesses by different aliases one happens
//! before the other only if a `fence.proxy.alias` stands between them (PTX ISA, "Proxy-preserved base causality order"). For the
//! ISA no two of them are morally strong, but strong ones of system scope see each other in the end ("Strong Proxy Accesses"). So
//! here they may poll, as packets do, if their scope is `sys`; two writes in an order that lacks only the fence race all the same,
//! because either may be the one that stays.

use super::clock::Clock;
use super::room::Full;
use super::scope::{Place, includes};
use super::stamp::{STREAM, Stamp};
use crate::code::Scope;

/// An access of some lanes of a warp to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) who: Stamp,
    pub(super) device: usize,
    /// The scope of a strong access.
    pub(super) strong: Option<Scope>,
    pub(super) write: bool,
    /// By a multicast address.
    pub(super) multicast: bool,
    /// The words of a copy or fill.
    pub(super) engine: Option<Words>,
    /// An atomic addition.
    pub(super) adds: bool,
    /// Offset of the first byte in its object, and number of bytes.
    pub(super) at: u64,
    pub(super) size: u32,
    /// The number of the instruction or call in the list of [sources](super::sources).
    pub(super) source: u32,
}

/// The effect of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// An atomic addition.
    Add,
}

/// The words that a copy or fill accesses at once, which are aligned and have so many bytes. The model has no rule for it: here a
/// strong access to such a word does not race with it if its scope includes the stream's device, even if both write: either remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words(pub(super) u8);

impl Words {
    fn hold(self, engine: &Access, other: &Access) -> bool {
        let inside = other.at >= engine.at && other.end() <= engine.end();
        inside && other.size <= u32::from(self.0)
    }
}

/// The earlier of two accesses that race, and why.
pub(super) type Race = (Access, Why);

/// Why an access does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Race(Race),
    /// The detector cannot follow it.
    Full,
}

impl From<Race> for Stop {
    fn from(race: Race) -> Self {
        Self::Race(race)
    }
}

impl From<Full> for Stop {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// Why two accesses that conflict are not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// They are not ordered, and at least one is weak.
    Unordered,
    /// They are not ordered, and strong, but to overlapping bytes of different position or size.
    Mixed,
    /// They are not ordered, and strong, but a scope does not include the other's thread.
    Scope,
    /// They are ordered but for a fence between aliases.
    Alias,
}

impl Access {
    pub(super) fn place(&self) -> Place {
        Place { device: self.device, work: self.who.work, block: self.who.block }
    }

    fn end(&self) -> u64 {
        self.at + u64::from(self.size)
    }

    /// Whether a stream's value is written to the upper half of a word to which the other access adds. The model does not define it,
    /// but no addition is lost: so a FIFO is closed (docs/memory-model.md, "Closing a FIFO").
    fn closes(&self, other: &Access) -> bool {
        let upper = self.size == 4 && other.size == 8 && self.at == other.at + 4;
        let near = |scope| includes(scope, other.place(), self.place());
        let value = self.who.block == STREAM && self.write && self.strong.is_some();
        upper && value && other.adds && other.strong.is_some_and(near)
    }

    /// Whether this access and a `later` one of one lane race: the part of this access that does, and why. `known` is what
    /// happens before the later one.
    pub(super) fn races(&self, later: &Access, known: &Clock) -> Option<Race> {
        if !(self.write || later.write) {
            return None;
        }
        let same = self.place() == later.place() && self.who.warp == later.who.warp;
        let own = if same { later.who.lanes } else { 0 };
        let unordered = known.unknown(&self.who) & !own;
        let aliases = self.multicast != later.multicast;
        let lanes = match unordered {
            // A thread's store mostly depends on its own load before it: then the load is done.
            0 if aliases && self.write => known.unfenced(&self.who),
            0 if aliases => known.unfenced(&self.who) & !own,
            _ => unordered,
        };
        if lanes == 0 {
            return None;
        }
        let word = |engine: &Access, other: &Access| {
            let near = |scope| includes(scope, other.place(), engine.place());
            engine.engine.is_some_and(|words| words.hold(engine, other)) && other.strong.is_some_and(near)
        };
        if word(self, later) || word(later, self) {
            return None;
        }
        if self.closes(later) || later.closes(self) {
            return None;
        }
        let reach = |scope, from, to| if aliases { scope == Scope::Sys } else { includes(scope, from, to) };
        let (here, there) = (self.place(), later.place());
        let uniform = (self.at, self.size) == (later.at, later.size);
        let why = match (self.strong, later.strong) {
            (Some(first), Some(second))
                if uniform && reach(first, here, there) && reach(second, there, here) =>
            {
                if unordered != 0 || !(self.write && later.write) {
                    return None;
                }
                Why::Alias
            }
            _ if unordered == 0 => Why::Alias,
            (Some(_), Some(_)) if uniform => Why::Scope,
            (Some(_), Some(_)) => Why::Mixed,
            _ => Why::Unordered,
        };
        Some((Self { who: Stamp { lanes, ..self.who }, ..*self }, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::stamp::WorkId;

    fn access(block: u32, strong: Option<Scope>, write: bool) -> Access {
        let who = Stamp { work: WorkId { chain: 0, seq: 1 }, block, warp: 0, lanes: 1, tick: 1 };
        Access {
            who,
            device: 0,
            strong,
            write,
            multicast: false,
            engine: None,
            adds: false,
            at: 8,
            size: 4,
            source: 0,
        }
    }

    #[test]
    fn conflicting_accesses_race_unless_ordered_or_morally_strong() {
        let nothing = Clock::default();
        let first = access(0, None, true);
        let second = access(1, None, false);
        assert_eq!(first.races(&second, &nothing).map(|(_, why)| why), Some(Why::Unordered));
        assert_eq!(
            second
                .races(&Access { who: Stamp { block: 2, ..second.who }, ..second }, &nothing)
                .map(|(_, why)| why),
            None
        );
        let mut known = Clock::default();
        known.reach(first.who.work, 0, 0, 0, 1);
        assert_eq!(first.races(&second, &known), None);
        let strong = |block, scope| access(block, Some(scope), true);
        assert_eq!(strong(0, Scope::Gpu).races(&strong(1, Scope::Gpu), &nothing).map(|(_, why)| why), None);
        assert_eq!(
            strong(0, Scope::Cta).races(&strong(1, Scope::Gpu), &nothing).map(|(_, why)| why),
            Some(Why::Scope)
        );
        let elsewhere = Access { device: 1, ..strong(1, Scope::Gpu) };
        assert_eq!(strong(0, Scope::Gpu).races(&elsewhere, &nothing).map(|(_, why)| why), Some(Why::Scope));
        let wider = Access { size: 8, ..strong(1, Scope::Gpu) };
        assert_eq!(strong(0, Scope::Gpu).races(&wider, &nothing).map(|(_, why)| why), Some(Why::Mixed));
        assert_eq!(strong(0, Scope::Gpu).races(&second, &nothing).map(|(_, why)| why), Some(Why::Unordered));
    }

    #[test]
    fn stream_work_races_with_all_but_strong_words_whose_scope_includes_its_device() {
        let nothing = Clock::default();
        let copy = Access { engine: Some(Words(8)), size: 4096, ..access(0, None, true) };
        let races = |other: Access| {
            let (before, behind) = (copy.races(&other, &nothing), other.races(&copy, &nothing));
            assert_eq!(before.is_some(), behind.is_some());
            before.is_some()
        };
        assert!(!races(access(1, Some(Scope::Sys), false)));
        assert!(!races(access(1, Some(Scope::Gpu), false)));
        assert!(races(Access { device: 1, ..access(1, Some(Scope::Gpu), false) }));
        assert!(races(access(1, Some(Scope::Cta), false)));
        assert!(races(Access { size: 16, ..access(1, Some(Scope::Sys), false) }));
        assert!(races(access(1, None, false)));
        assert!(races(Access { engine: Some(Words(8)), ..access(1, None, false) }));
    }

    #[test]
    fn stream_work_races_with_a_word_that_it_does_not_access_at_once() {
        let nothing = Clock::default();
        let races = |words, (at, size), (from, len)| {
            let engine = Access { engine: Some(words), at: from, size: len, ..access(0, None, true) };
            let word = Access { at, size, ..access(1, Some(Scope::Sys), false) };
            engine.races(&word, &nothing).is_some()
        };
        assert!(!races(Words(8), (8, 8), (8, 8)) && !races(Words(8), (8, 8), (0, 64)));
        assert!(!races(Words(4), (8, 4), (8, 8)) && !races(Words(8), (12, 4), (8, 8)));
        assert!(races(Words(4), (8, 8), (8, 8)), "in two halves");
        assert!(races(Words(4), (8, 8), (8, 4)) && races(Words(4), (8, 8), (12, 4)), "one half");
        assert!(races(Words(1), (8, 2), (8, 2)) && !races(Words(1), (9, 1), (8, 2)));
    }

    #[test]
    fn stream_work_and_a_strong_access_to_a_word_of_it_do_not_race_and_a_weak_one_does() {
        let nothing = Clock::default();
        for (engine_writes, other_writes) in [(false, true), (true, false), (true, true)] {
            let engine = Access { engine: Some(Words(4)), ..access(0, None, engine_writes) };
            for (strong, why) in [(Some(Scope::Sys), None), (None, Some(Why::Unordered))] {
                let word = Access { adds: other_writes, ..access(1, strong, other_writes) };
                assert_eq!(engine.races(&word, &nothing).map(|(_, why)| why), why);
                assert_eq!(word.races(&engine, &nothing).map(|(_, why)| why), why);
            }
        }
    }

    #[test]
    fn a_streams_value_is_strong_and_may_be_the_upper_half_of_a_word_that_is_added_to() {
        let nothing = Clock::default();
        let value = |at| {
            let own = access(0, Some(Scope::Sys), true);
            Access { who: Stamp { block: STREAM, ..own.who }, at, ..own }
        };
        let add = Access { size: 8, adds: true, ..access(1, Some(Scope::Gpu), true) };
        let races = |value: Access, other: Access| {
            let (before, behind) = (value.races(&other, &nothing), other.races(&value, &nothing));
            assert_eq!(before.map(|(_, why)| why), behind.map(|(_, why)| why));
            before.map(|(_, why)| why)
        };
        assert_eq!(races(value(12), add), None);
        assert_eq!(races(value(8), add), Some(Why::Mixed));
        assert_eq!(races(Access { write: false, ..value(12) }, add), Some(Why::Mixed));
        let copied = Access { strong: None, engine: Some(Words(4)), ..value(12) };
        assert_eq!(races(copied, add), Some(Why::Unordered), "a copy or a fill");
        assert_eq!(races(value(12), Access { adds: false, ..add }), Some(Why::Mixed));
        assert_eq!(races(value(12), Access { device: 1, ..add }), Some(Why::Mixed));
        assert_eq!(races(value(12), Access { strong: Some(Scope::Cta), ..add }), Some(Why::Mixed));
        assert_eq!(races(Access { who: Stamp { block: 5, ..add.who }, ..value(12) }, add), Some(Why::Mixed));
        assert_eq!(races(value(8), access(1, Some(Scope::Gpu), false)), None);
        assert_eq!(races(value(8), access(1, Some(Scope::Cta), false)), Some(Why::Scope));
    }

    #[test]
    fn a_thread_does_not_race_with_itself_but_with_the_other_lanes_of_its_warp() {
        let nothing = Clock::default();
        let both = Access { who: Stamp { lanes: 3, ..access(0, None, true).who }, ..access(0, None, true) };
        let own = access(0, None, true);
        assert_eq!(own.races(&own, &nothing).map(|(_, why)| why), None);
        let (first, why) = both.races(&own, &nothing).unwrap();
        assert_eq!((first.who.lanes, why), (2, Why::Unordered));
    }

    #[test]
    fn accesses_by_different_aliases_need_a_fence_between_them() {
        let why =
            |first: Access, second: Access, known: &Clock| first.races(&second, known).map(|(_, why)| why);
        let by = |block, strong, write, multicast| Access { multicast, ..access(block, strong, write) };
        let sys = Some(Scope::Sys);
        let mut known = Clock::default();
        known.reach(by(0, None, true, true).who.work, 0, 0, 0, 1);
        let mut fenced = known.clone();
        fenced.fence_aliases(&known);
        for (first, second) in [
            (by(0, None, true, true), by(1, None, false, false)),
            (by(0, None, false, false), by(1, None, true, true)),
            (by(0, sys, true, true), by(1, None, true, false)),
            (by(0, sys, true, false), by(1, sys, true, true)),
            (by(0, Some(Scope::Gpu), true, false), by(1, sys, false, true)),
            (by(0, None, true, false), by(0, None, false, true)),
        ] {
            assert_eq!(why(first, second, &known), Some(Why::Alias), "{first:?} {second:?}");
            assert_eq!(why(first, second, &fenced), None);
            let alike = Access { multicast: first.multicast, ..second };
            assert_eq!(why(first, alike, &known), None);
        }
        assert_eq!(why(by(0, sys, true, true), by(1, sys, false, false), &known), None, "it may poll");
        assert_eq!(why(by(0, sys, false, true), by(1, sys, true, false), &known), None, "it may have polled");
        assert_eq!(why(by(0, None, false, false), by(0, None, true, true), &known), None, "it has read");
    }

    #[test]
    fn strong_accesses_by_different_aliases_need_system_scope() {
        let nothing = Clock::default();
        let why = |first, second| {
            let first = Access { multicast: true, ..access(0, first, true) };
            first.races(&access(1, second, true), &nothing).map(|(_, why)| why)
        };
        let (gpu, sys) = (Some(Scope::Gpu), Some(Scope::Sys));
        assert_eq!(why(sys, sys), None);
        assert_eq!([why(gpu, sys), why(sys, gpu), why(gpu, gpu)], [Some(Why::Scope); 3]);
        assert_eq!([why(None, sys), why(sys, None)], [Some(Why::Unordered); 2]);
    }
}
