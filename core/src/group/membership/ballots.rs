//! One rank's ballots in the current generation: what it has promised and accepted, and its own attempt to decide.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::message::{Accepted, Ballot, Vote};
use super::quorum::Ranks;

/// Ticks that the first attempt may take.
const ATTEMPT: u32 = 12;
/// No attempt may take longer than this many times the first one.
const MAX_PATIENCE: u32 = 16;

/// Ticks that an attempt may take. Later ones may take longer, so that a slow network is no obstacle for ever.
fn patience(ballot: Ballot) -> u32 {
    ATTEMPT * ballot.round.min(MAX_PATIENCE)
}

/// A rank's vote, and its own attempt to decide.
#[derive(Debug)]
pub(super) struct Ballots {
    me: u32,
    /// How many members of the group have lower ranks.
    place: u32,
    vote: Vote,
    attempt: Option<Attempt>,
    /// The highest round seen.
    round: u32,
    /// Ticks until the next attempt may begin.
    pause: u32,
}

/// An attempt of this rank to decide.
#[derive(Debug)]
struct Attempt {
    ballot: Ballot,
    promises: BTreeMap<u32, Accepted>,
    proposed: Option<Ranks>,
    accepts: Ranks,
    age: u32,
}

impl Ballots {
    /// Of rank `me`, the `place`-th of the group of this `generation`, counted from 0. It is bound to nothing.
    pub(super) fn new(me: u32, place: u32, generation: u64) -> Self {
        Self { me, place, vote: Vote::none(generation), attempt: None, round: 0, pause: 0 }
    }

    pub(super) fn vote(&self) -> &Vote {
        &self.vote
    }

    /// Whether this rank has taken part in an attempt.
    pub(super) fn is_bound(&self) -> bool {
        self.vote.promised != Ballot::NONE || self.vote.accepted.is_some()
    }

    /// This rank votes no more in this generation.
    pub(super) fn complete(&mut self) {
        self.vote.completed = true;
    }

    pub(super) fn is_attempting(&self) -> bool {
        self.attempt.is_some()
    }

    /// Whether this rank may begin an attempt now.
    pub(super) fn may_begin(&self) -> bool {
        self.attempt.is_none() && self.pause == 0 && !self.vote.completed
    }

    /// Begins an attempt above all that were seen.
    pub(super) fn begin(&mut self) -> Ballot {
        self.round = self.round.max(self.vote.promised.round).saturating_add(1);
        let ballot = Ballot::new(self.round, self.me);
        let (promises, accepts) = (BTreeMap::new(), Ranks::new());
        self.attempt = Some(Attempt { ballot, promises, proposed: None, accepts, age: 0 });
        ballot
    }

    pub(super) fn abandon(&mut self) {
        self.attempt = None;
    }

    pub(super) fn tick(&mut self) {
        self.pause = self.pause.saturating_sub(1);
        if let Some(attempt) = &mut self.attempt {
            attempt.age += 1;
            if attempt.age > patience(attempt.ballot) {
                self.give_way();
            }
        }
    }

    /// Gives the attempt up; the next one comes the sooner, the lower this rank is.
    fn give_way(&mut self) {
        self.attempt = None;
        self.pause = self.place.saturating_mul(3).saturating_add(2);
    }

    /// Gives this rank's attempt up if `ballot` is above it, and lets that one finish: two deciders that try again as soon
    /// as they can would overtake each other for ever on a slow network.
    fn yield_to(&mut self, ballot: Ballot) {
        if self.attempt.as_ref().is_some_and(|attempt| attempt.ballot < ballot) {
            self.give_way();
            self.pause = self.pause.saturating_add(patience(ballot));
        }
    }

    fn bind(&mut self, ballot: Ballot) -> Result<(), Ballot> {
        self.round = self.round.max(ballot.round);
        if ballot < self.vote.promised {
            return Err(self.vote.promised);
        }
        self.vote.promised = ballot;
        self.yield_to(ballot);
        Ok(())
    }

    /// Promises to take part in no attempt below `ballot`; what this rank has accepted before.
    ///
    /// # Errors
    /// The higher attempt that it has promised already.
    pub(super) fn promise(&mut self, ballot: Ballot) -> Result<Accepted, Ballot> {
        self.bind(ballot)?;
        Ok(self.vote.accepted.clone())
    }

    /// Accepts `members` in attempt `ballot`.
    ///
    /// # Errors
    /// The higher attempt that it has promised already.
    pub(super) fn accept(&mut self, ballot: Ballot, members: Ranks) -> Result<(), Ballot> {
        self.bind(ballot)?;
        self.vote.accepted = Some((ballot, members));
        Ok(())
    }

    /// Another rank has refused an attempt because it has promised `promised`.
    pub(super) fn hear_refusal(&mut self, promised: Ballot) {
        self.round = self.round.max(promised.round);
        self.yield_to(promised);
    }

    fn attempt(&mut self, ballot: Ballot) -> Option<&mut Attempt> {
        self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot)
    }

    /// Counts a promise. All promises, while this attempt goes on and has proposed nothing.
    pub(super) fn hear_promise(
        &mut self,
        from: u32,
        ballot: Ballot,
        accepted: Accepted,
    ) -> Option<&BTreeMap<u32, Accepted>> {
        let attempt = self.attempt(ballot)?;
        attempt.promises.insert(from, accepted);
        attempt.proposed.is_none().then_some(&attempt.promises)
    }

    /// This rank's attempt proposes `members`.
    pub(super) fn propose(&mut self, members: Ranks) {
        if let Some(attempt) = &mut self.attempt {
            attempt.proposed = Some(members);
        }
    }

    /// Counts one that accepted. What was proposed, and all that accepted it, while this attempt goes on.
    pub(super) fn hear_accept(&mut self, from: u32, ballot: Ballot) -> Option<(&Ranks, &Ranks)> {
        let attempt = self.attempt(ballot)?;
        attempt.accepts.insert(from);
        attempt.proposed.as_ref().map(|members| (members, &attempt.accepts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks until `done`, at most a thousand.
    fn ticks_until(ballots: &mut Ballots, done: impl Fn(&Ballots) -> bool) -> u32 {
        let mut ticks = 0;
        while !done(ballots) && ticks < 1000 {
            ballots.tick();
            ticks += 1;
        }
        ticks
    }

    #[test]
    fn an_attempt_may_take_longer_each_time_and_the_next_waits_for_lower_ranks() {
        // Round, and ticks until its attempt is given up.
        for (round, limit) in [(1, ATTEMPT), (3, 3 * ATTEMPT), (40, MAX_PATIENCE * ATTEMPT)] {
            let mut ballots = Ballots::new(5, 2, 0);
            ballots.hear_refusal(Ballot::new(round - 1, 9));
            assert!(ballots.may_begin());
            assert_eq!(ballots.begin(), Ballot::new(round, 5));
            assert!(ballots.is_attempting() && !ballots.may_begin());
            assert_eq!(ticks_until(&mut ballots, |ballots| !ballots.is_attempting()), limit + 1);
            assert_eq!(ticks_until(&mut ballots, Ballots::may_begin), 2 * 3 + 2);
        }
    }

    #[test]
    fn an_attempt_gives_way_to_a_higher_one_only_and_lets_it_finish() {
        let (low, high) = (Ballot::new(1, 9), Ballot::new(2, 9));
        for hears in [false, true] {
            let mut ballots = Ballots::new(5, 1, 0);
            let hear = |ballots: &mut Ballots, ballot| match hears {
                false => drop(ballots.promise(ballot)),
                true => ballots.hear_refusal(ballot),
            };
            assert_eq!(ballots.begin(), Ballot::new(1, 5));
            hear(&mut ballots, low);
            hear(&mut ballots, Ballot::new(1, 5));
            assert!(ballots.is_attempting(), "of two in one round that of the lower rank is the higher");
            hear(&mut ballots, high);
            assert!(!ballots.is_attempting() && !ballots.may_begin());
            assert_eq!(ticks_until(&mut ballots, Ballots::may_begin), 3 + 2 + 2 * ATTEMPT);
            assert_eq!(ballots.begin(), Ballot::new(3, 5), "above all that were seen");
        }
    }

    #[test]
    fn a_rank_is_bound_to_the_highest_attempt_that_it_has_promised() {
        let (low, high) = (Ballot::new(1, 3), Ballot::new(2, 3));
        let members = Ranks::from([0, 1]);
        let mut ballots = Ballots::new(0, 0, 4);
        assert!(!ballots.is_bound());
        assert_eq!(ballots.promise(low), Ok(None));
        assert!(ballots.is_bound());
        ballots.accept(low, members.clone()).unwrap();
        assert_eq!(ballots.promise(high), Ok(Some((low, members.clone()))));
        assert_eq!((ballots.promise(low), ballots.accept(low, members)), (Err(high), Err(high)));
        assert_eq!(ballots.vote().promised, high);
        ballots.begin();
        ballots.abandon();
        assert!(!ballots.is_attempting() && ballots.may_begin());
        ballots.complete();
        assert!(!ballots.may_begin() && ballots.vote().completed);
    }

    #[test]
    fn answers_count_for_the_attempt_that_goes_on() {
        let mut ballots = Ballots::new(0, 0, 0);
        let ballot = ballots.begin();
        let other = Ballot::new(9, 9);
        assert!(ballots.hear_promise(1, other, None).is_none() && ballots.hear_accept(1, other).is_none());
        assert_eq!(ballots.hear_promise(1, ballot, None).unwrap().len(), 1);
        assert!(ballots.hear_accept(1, ballot).is_none(), "nothing was proposed");
        ballots.propose([0, 1].into());
        assert!(ballots.hear_promise(2, ballot, None).is_none(), "the choice is made");
        let (members, accepts) = ballots.hear_accept(2, ballot).unwrap();
        assert_eq!((members, accepts), (&Ranks::from([0, 1]), &Ranks::from([1, 2])));
    }
}
