//! Which ranks are gone for certain, who has seen it, and what each of them was bound to at the end.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::message::{Ballot, Departed, Departure, Vote};
use super::quorum::Ranks;

/// One rank's knowledge of departed ranks, and the votes that the others told it in case they depart.
#[derive(Debug)]
pub(super) struct Departures {
    me: u32,
    /// Equal for ranks of one host.
    hosts: Vec<u32>,
    /// This group is the next generation of another one.
    succeeds: bool,
    /// The latest vote that each rank told this one.
    votes: BTreeMap<u32, Vote>,
    departed: BTreeMap<u32, Departed>,
}

impl Departures {
    pub(super) fn new(me: u32, hosts: Vec<u32>, succeeds: bool) -> Self {
        Self { me, hosts, succeeds, votes: BTreeMap::new(), departed: BTreeMap::new() }
    }

    pub(super) fn set_hosts(&mut self, hosts: Vec<u32>) {
        self.hosts = hosts;
    }

    /// Whether the ranks share a host, so that the kernel tells one when the process of the other ends.
    pub(super) fn same_host(&self, a: u32, b: u32) -> bool {
        let host = |rank: u32| self.hosts.get(rank as usize);
        host(a).is_some() && host(a) == host(b)
    }

    pub(super) fn contains(&self, rank: u32) -> bool {
        self.departed.contains_key(&rank)
    }

    /// Keeps the vote that `from` told this rank, if it is later than the one known: two threads of the sender may have
    /// sent theirs in either order.
    pub(super) fn hear_vote(&mut self, from: u32, vote: Vote) {
        // One that was on its way when its rank went binds those who subtract that rank, too.
        if let Some(gone) = self.departed.get_mut(&from)
            && vote.is_later_than(&gone.vote)
        {
            gone.vote = vote.clone();
        }
        match self.votes.get_mut(&from) {
            Some(known) if known.is_later_than(&vote) => {}
            Some(known) => *known = vote,
            None => drop(self.votes.insert(from, vote)),
        }
    }

    /// Whether one of `group` has told that it completed `generation`.
    pub(super) fn somebody_completed(&self, group: &Ranks, generation: u64) -> bool {
        let completed = |vote: &Vote| vote.completed && vote.generation == generation;
        group.iter().filter_map(|rank| self.votes.get(rank)).any(completed)
    }

    /// This rank has seen `rank` go.
    pub(super) fn witness(&mut self, rank: u32, how: Departure) {
        let vote = match self.votes.get(&rank) {
            Some(vote) => vote.clone(),
            // In a group that succeeds another one, a rank that never spoke here may be bound there.
            None if self.succeeds => return,
            None => Vote::none(0),
        };
        self.learn(Departed { rank, how, witness: self.me, vote });
    }

    /// Takes what another rank reports, if its witness can have seen it. Whether that was news.
    pub(super) fn hear(&mut self, departed: &Departed) -> bool {
        let seen = departed.how == Departure::Left || self.same_host(departed.witness, departed.rank);
        seen && departed.rank != self.me && self.learn(departed.clone())
    }

    /// Keeps the latest vote of `departed`. Whether its rank was not known to be gone.
    fn learn(&mut self, departed: Departed) -> bool {
        match self.departed.get(&departed.rank) {
            Some(known) if !departed.vote.is_later_than(&known.vote) => false,
            _ => self.departed.insert(departed.rank, departed).is_none(),
        }
    }

    /// The members of `group` that are gone, for a report.
    pub(super) fn of(&self, group: &Ranks) -> Vec<Departed> {
        self.departed.values().filter(|gone| group.contains(&gone.rank)).cloned().collect()
    }

    /// The ranks that do not count in attempt `ballot` of `generation`: gone for certain, and bound to nothing that forbids
    /// it.
    pub(super) fn subtracted(&self, generation: u64, ballot: Ballot) -> Ranks {
        let free = |departed: &&Departed| {
            let vote = &departed.vote;
            let past = vote.generation < generation;
            !vote.completed && (past || (vote.generation == generation && vote.promised <= ballot))
        };
        self.departed.values().filter(free).map(|departed| departed.rank).collect()
    }

    /// The groups that ranks excluded from attempt `ballot` had accepted in `generation`.
    pub(super) fn last_accepted(
        &self,
        generation: u64,
        ballot: Ballot,
    ) -> impl Iterator<Item = (Ballot, Ranks)> {
        let ranks = self.subtracted(generation, ballot);
        let gone = self.departed.values().filter(move |gone| ranks.contains(&gone.rank));
        let votes = gone.map(|gone| &gone.vote).filter(move |vote| vote.generation == generation);
        votes.filter_map(|vote| vote.accepted.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_that_is_read_after_its_rank_has_gone_replaces_the_one_known() {
        let mut departures = Departures::new(0, vec![0, 0], false);
        departures.witness(1, Departure::Died);
        assert_eq!(departures.subtracted(0, Ballot::LAST), Ranks::from([1]));
        departures.hear_vote(1, Vote { completed: true, ..Vote::none(0) });
        assert_eq!(departures.subtracted(0, Ballot::LAST), Ranks::new(), "it goes on elsewhere");
    }

    /// While the group is being made, its ranks may be bound in the one before.
    #[test]
    fn in_a_group_that_succeeds_another_a_rank_that_never_spoke_is_not_subtracted() {
        for how in [Departure::Died, Departure::Left] {
            let mut departures = Departures::new(0, vec![0, 0], true);
            departures.witness(1, how);
            assert!(!departures.contains(1));
            assert_eq!(departures.subtracted(0, Ballot::LAST), Ranks::new(), "{how:?}");
            departures.hear_vote(1, Vote::none(0));
            departures.witness(1, how);
            assert_eq!(departures.subtracted(0, Ballot::LAST), Ranks::from([1]), "{how:?}");
        }
    }

    fn vote(generation: u64, round: u32) -> Vote {
        Vote { promised: Ballot::new(round, 9), ..Vote::none(generation) }
    }

    fn gone(rank: u32, how: Departure, witness: u32, vote: Vote) -> Departed {
        Departed { rank, how, witness, vote }
    }

    #[test]
    fn the_latest_vote_counts_in_whatever_order_it_comes() {
        for [first, second] in [[vote(1, 2), vote(1, 3)], [vote(1, 3), vote(1, 2)]] {
            let of_rank_1 = |departures: &Departures| departures.of(&Ranks::from([1]))[0].vote.clone();
            // By the rank itself before it goes, and by two witnesses.
            let mut departures = Departures::new(0, vec![0, 0, 1], false);
            departures.hear_vote(1, first.clone());
            departures.hear_vote(1, second.clone());
            departures.witness(1, Departure::Died);
            assert_eq!(of_rank_1(&departures), vote(1, 3));
            let mut departures = Departures::new(0, vec![0, 1, 1], false);
            assert!(departures.hear(&gone(1, Departure::Left, 2, first)));
            assert!(!departures.hear(&gone(1, Departure::Left, 0, second)), "it is known to be gone");
            assert_eq!(of_rank_1(&departures), vote(1, 3));
        }
        // Of two who have seen the same, the first counts: otherwise reports would never stop changing.
        let mut departures = Departures::new(0, vec![0, 1, 1], false);
        departures.hear(&gone(1, Departure::Left, 2, vote(1, 3)));
        departures.hear(&gone(1, Departure::Left, 0, vote(1, 3)));
        assert_eq!(departures.of(&Ranks::from([1]))[0].witness, 2);
    }

    #[test]
    fn only_a_rank_of_the_same_host_can_have_seen_a_process_end_and_none_that_of_this_rank() {
        let mut departures = Departures::new(0, vec![0, 1, 1, 2], false);
        assert!(!departures.hear(&gone(1, Departure::Died, 3, Vote::none(0))));
        assert!(!departures.contains(1));
        assert!(departures.hear(&gone(1, Departure::Died, 2, Vote::none(0))));
        assert!(departures.hear(&gone(2, Departure::Left, 3, Vote::none(0))));
        assert!(!departures.hear(&gone(0, Departure::Left, 3, Vote::none(0))));
        assert!(!departures.contains(0), "this rank is there");
    }

    /// Rank 1 has gone after it took part in attempt 2 of generation 1.
    #[test]
    fn a_rank_that_has_gone_counts_where_it_is_bound() {
        let mut departures = Departures::new(0, vec![0, 0], false);
        departures.hear_vote(1, vote(1, 2));
        departures.witness(1, Departure::Died);
        for (generation, round, free) in
            [(0, 9, false), (1, 1, false), (1, 2, true), (1, 3, true), (2, 1, true)]
        {
            let subtracted = departures.subtracted(generation, Ballot::new(round, 9));
            assert_eq!(subtracted.contains(&1), free, "attempt {round} of generation {generation}");
        }
    }
}
