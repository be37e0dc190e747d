//! The members of the last agreed group, as one of them sees them: whom it reaches, and who is gone.
#![forbid(unsafe_code)]

use super::departures::Departures;
use super::message::Ballot;
use super::quorum::{Ranks, may_decide};

/// Up to this many ranks, each reports to all others, and all members of a new group must hear each other.
const ALL_REPORT: usize = 16;
/// In larger groups each reports to so many of the lowest ranks, one of which decides.
const DECIDERS: usize = 4;

/// The members of the group, as rank `me` knows them.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) me: u32,
    /// The last agreed group, and how many were agreed before it.
    pub(super) group: Ranks,
    pub(super) generation: u64,
    pub(super) unreachable: Ranks,
    pub(super) departures: Departures,
}

impl Roster {
    pub(super) fn new(me: u32, hosts: Vec<u32>, succeeds: bool) -> Self {
        let group = (0..hosts.len() as u32).collect();
        let departures = Departures::new(me, hosts, succeeds);
        Self { me, group, generation: 0, unreachable: Ranks::new(), departures }
    }

    /// The members that can be reached, this one included.
    pub(super) fn reached(&self) -> Ranks {
        self.group.difference(&self.unreachable).copied().collect()
    }

    /// The other members that can be reached.
    pub(super) fn others(&self) -> Ranks {
        self.reached().into_iter().filter(|rank| *rank != self.me).collect()
    }

    /// The other members of this host that can be reached.
    pub(super) fn host_mates(&self) -> Ranks {
        self.others().into_iter().filter(|rank| self.departures.same_host(self.me, *rank)).collect()
    }

    /// How many members have lower ranks.
    pub(super) fn place(&self) -> u32 {
        self.group.range(..self.me).count() as u32
    }

    /// Whether all members report to each other.
    pub(super) fn all_report(&self) -> bool {
        self.group.len() <= ALL_REPORT
    }

    /// The ranks to which members of a large group report.
    pub(super) fn deciders(&self) -> Ranks {
        let there = |rank: &u32| !self.departures.contains(*rank);
        self.reached().into_iter().filter(there).take(DECIDERS).collect()
    }

    /// Whether `voters` may decide in attempt `ballot`.
    pub(super) fn may_decide(&self, voters: &Ranks, ballot: Ballot) -> bool {
        may_decide(&self.group, &self.departures.subtracted(self.generation, ballot), voters)
    }
}
