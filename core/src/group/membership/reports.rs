//! Reports of the members about each other, from which the members of the next group follow.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::message::Report;
use super::quorum::{Ranks, largest_linked};

/// The latest report of each other rank, of the current generation.
#[derive(Debug, Default)]
pub(super) struct Reports(BTreeMap<u32, Report>);

impl Reports {
    /// Keeps the report of `from`. The one before.
    pub(super) fn insert(&mut self, from: u32, report: Report) -> Option<Report> {
        self.0.insert(from, report)
    }

    pub(super) fn get(&self, rank: u32) -> Option<&Report> {
        self.0.get(&rank)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The ranks that have reported.
    pub(super) fn from(&self) -> Ranks {
        self.0.keys().copied().collect()
    }

    /// Whether nothing need be awaited from `rank`: its user has called, or it will not be a member.
    pub(super) fn has_answered(&self, rank: u32) -> bool {
        self.0.get(&rank).is_some_and(|report| report.without.is_some() || report.out)
    }

    /// Whether a user of another rank wants the next generation.
    pub(super) fn somebody_calls(&self) -> bool {
        self.0.values().any(|report| report.without.is_some())
    }

    /// A rank whose user leaves out other ranks than `mine`, which is what rank `me` leaves out, and neither of the two the other.
    pub(super) fn differing(&self, me: u32, mine: &Ranks) -> Option<u32> {
        let differs = |(rank, report): &(&u32, &Report)| {
            !mine.contains(rank)
                && report.without.as_ref().is_some_and(|theirs| theirs != mine && !theirs.contains(&me))
        };
        self.0.iter().find(differs).map(|(rank, _)| *rank)
    }
}

/// The reports as rank `me` sees them.
pub(super) struct View<'a> {
    pub(super) me: u32,
    pub(super) own: &'a Report,
    pub(super) others: &'a Reports,
    /// All members report to each other. Otherwise a path between two others counts until it is known to be broken.
    pub(super) all_report: bool,
}

impl View<'_> {
    fn of(&self, rank: u32) -> Option<&Report> {
        if rank == self.me { Some(self.own) } else { self.others.get(rank) }
    }

    /// Whether the user of `rank` calls, and leaves out exactly `without`.
    pub(super) fn calls(&self, rank: u32, without: &Ranks) -> bool {
        self.of(rank).is_some_and(|report| report.without.as_ref() == Some(without))
    }

    /// Whether there are paths between two callers, or `None` while that is not known.
    fn paths(&self, a: u32, b: u32) -> Option<bool> {
        let (at_a, at_b) = (self.of(a)?, self.of(b)?);
        if at_a.unreachable.contains(&b) || at_b.unreachable.contains(&a) {
            return Some(false);
        }
        let heard = at_a.heard.contains(&b) && at_b.heard.contains(&a);
        (heard || !(self.all_report || a == self.me || b == self.me)).then_some(true)
    }

    /// The largest set of `callers` that all reach each other. `None` while a path is not known, unless `settled`: then it
    /// counts as broken.
    pub(super) fn largest_connected(&self, callers: &Ranks, settled: bool) -> Option<Ranks> {
        let unknown = |a: &u32| callers.range(a + 1..).any(|b| self.paths(*a, *b).is_none());
        if !settled && callers.iter().any(unknown) {
            return None;
        }
        Some(largest_linked(callers, |a, b| self.paths(a, b) == Some(true)))
    }
}
