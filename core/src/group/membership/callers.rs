//! The users that call for the next generation, here and at the other members, and the group that they could be.
#![forbid(unsafe_code)]

use super::message::{Ballot, Report};
use super::quorum::Ranks;
use super::reports::{Reports, View};
use super::roster::Roster;

/// Ticks between reports that say nothing new.
const REPEAT: u32 = 5;
/// Ticks without news after which two callers that have not heard each other count as having no path.
const SETTLED: u32 = 30;

/// The call of this rank's user, and what the other members report.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The ranks that this rank's user leaves out, while it calls.
    call: Option<Ranks>,
    /// It failed for good.
    out: bool,
    reports: Reports,
    /// A member that left out other ranks than this rank's user does, while both called. That it has withdrawn its call since,
    /// because of the same difference, makes no other error of it.
    differs: Option<u32>,
    /// Ticks without news.
    quiet: u32,
    since_report: u32,
    news: bool,
}

impl Callers {
    /// This rank's user calls, and leaves out `without`.
    pub(super) fn call(&mut self, without: Ranks) {
        (self.call, self.differs) = (Some(without), None);
        self.note_news();
    }

    /// This rank's user calls no more. Whether it did.
    pub(super) fn withdraw(&mut self) -> bool {
        self.differs = None;
        self.call.take().is_some()
    }

    /// This rank will not be a member of a later group.
    pub(super) fn stand_down(&mut self) {
        (self.out, self.call) = (true, None);
    }

    /// The next generation is agreed: all reports are of the one before.
    pub(super) fn begin_generation(&mut self) {
        self.reports.clear();
        (self.call, self.differs) = (None, None);
        self.note_news();
    }

    /// There is something new to report, and to wait for what follows from it.
    pub(super) fn note_news(&mut self) {
        (self.news, self.quiet) = (true, 0);
    }

    /// There is something new to report.
    pub(super) fn report_soon(&mut self) {
        self.news = true;
    }

    /// For how many ticks nothing new has come.
    pub(super) fn quiet(&self) -> u32 {
        self.quiet
    }

    /// Lets a tick pass. `None` if this rank's user does not call, otherwise whether it is time to report.
    pub(super) fn tick(&mut self) -> Option<bool> {
        self.call.as_ref()?;
        self.quiet += 1;
        self.since_report += 1;
        Some(self.news || self.since_report >= REPEAT)
    }

    /// Keeps the report of `from`. Whether it must be answered at once: it is the first, and this rank, which is out, does
    /// not report by itself.
    pub(super) fn hear(&mut self, me: u32, from: u32, report: Report) -> bool {
        let before = self.reports.insert(from, report);
        if let (None, Some(call)) = (self.differs, &self.call) {
            self.differs = self.reports.differing(me, call);
        }
        if before.as_ref() != self.reports.get(from) {
            self.quiet = 0;
        }
        if before.is_none() && !self.out {
            self.news = true;
        }
        before.is_none() && self.out
    }

    /// Whether a user of another rank wants the next generation.
    pub(super) fn somebody_else_calls(&self) -> bool {
        self.reports.somebody_calls()
    }

    /// This rank's report, and to whom it goes now.
    pub(super) fn take_report(&mut self, roster: &Roster) -> (Report, Ranks) {
        (self.news, self.since_report) = (false, 0);
        let mut to = roster.others();
        if !roster.all_report() {
            let deciders = roster.deciders();
            to.retain(|rank| deciders.contains(rank) || self.reports.get(*rank).is_some());
        }
        (self.own_report(roster), to)
    }

    pub(super) fn own_report(&self, roster: &Roster) -> Report {
        Report {
            without: self.call.clone(),
            out: self.out,
            heard: self.reports.from(),
            unreachable: roster.unreachable.clone(),
            departed: roster.departures.of(&roster.group),
        }
    }

    /// Members that this rank must still hear of: neither left out nor gone, and not calling.
    pub(super) fn awaited(&self, roster: &Roster) -> Ranks {
        let Some(without) = &self.call else { return Ranks::new() };
        let mut awaited = roster.others();
        awaited.retain(|rank| {
            !without.contains(rank) && !roster.departures.contains(*rank) && !self.reports.has_answered(*rank)
        });
        if !roster.all_report() && !roster.deciders().contains(&roster.me) {
            // The others report to the deciders only.
            awaited.retain(|rank| roster.deciders().contains(rank));
        }
        awaited
    }

    /// A member whose user leaves out other ranks than this rank's does, neither of the two being among them.
    pub(super) fn differing(&self, roster: &Roster) -> Option<u32> {
        self.differs.or_else(|| self.reports.differing(roster.me, self.call.as_ref()?))
    }

    /// The members that this rank would agree to, if they may decide.
    pub(super) fn candidate(&self, roster: &Roster) -> Option<Ranks> {
        let without = self.call.as_ref()?;
        if !self.awaited(roster).is_empty()
            || self.differing(roster).is_some()
            || without.contains(&roster.me)
        {
            return None;
        }
        let own = self.own_report(roster);
        let view = View { me: roster.me, own: &own, others: &self.reports, all_report: roster.all_report() };
        let mut callers = roster.reached();
        callers.retain(|rank| {
            view.calls(*rank, without) && !without.contains(rank) && !roster.departures.contains(*rank)
        });
        let candidate = view.largest_connected(&callers, self.quiet >= SETTLED)?;
        let voters = candidate.union(without).copied().collect();
        roster.may_decide(&voters, Ballot::LAST).then_some(candidate)
    }

    /// The members to propose in `ballot`: those who could go on with the votes of those that they leave out.
    pub(super) fn free_choice(&self, roster: &Roster, voters: &Ranks, ballot: Ballot) -> Option<Ranks> {
        let (members, without) = (self.candidate(roster)?, self.call.as_ref()?);
        let agreed = members.union(&without.intersection(voters).copied().collect()).copied().collect();
        (members.contains(&roster.me) && roster.may_decide(&agreed, ballot)).then_some(members)
    }
}
