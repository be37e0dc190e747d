//! One rank's part in agreeing on the next generation of its group.
//!
//! Each step from one generation to the next is a single decision by ballots, as in Lamport's "Paxos Made Simple": a rank
//! that `may_decide` with those who promised to take part in no lower attempt proposes members, and they are agreed once
//! as many have accepted them. Ranks that are gone for certain count as acceptors that have spoken their last word, which
//! their witness knows.
#![forbid(unsafe_code)]

use super::ballots::Ballots;
use super::callers::Callers;
use super::message::{Accepted, Ballot, Departure, Envelope, Message, Report, Vote};
use super::quorum::Ranks;
use super::roster::Roster;

/// Ticks without news after which a rank that reaches too few others is cut off.
const CUT_OFF: u32 = 10;
/// Ticks without news after which ranks that reach enough others, but do not all reach each other, give up.
const STUCK: u32 = 60;

/// How an agreement stands at one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is decided yet. These have neither called `shrink` nor gone.
    Waiting(Ranks),
    /// This rank is a member of the next generation.
    Agreed { generation: u64, members: Ranks },
    /// A member has its communicator of this generation, so all have, and none may begin the next one here.
    Completed,
    /// The others agreed on a group without this rank.
    Excluded,
    /// Too few others can be reached to decide anything.
    CutOff,
    /// Enough can be reached, but no set of them that may decide reach each other.
    NoPaths,
    /// This rank leaves out other ranks than that one does.
    Differs(u32),
}

/// One rank's view of the group, and the votes that bind it.
#[derive(Debug)]
pub(crate) struct Membership {
    roster: Roster,
    /// The last generation that the caller has taken.
    taken: u64,
    /// False while this group is being made as the next generation of another one: until the caller has completed that
    /// generation, this rank may still vote there, and must not vote here.
    active: bool,
    /// Whether this group is the next generation of another one.
    succeeds: bool,
    callers: Callers,
    ballots: Ballots,
    outbox: Vec<(u32, Envelope)>,
}

impl Membership {
    /// All ranks of a new communicator; `hosts[r]` is equal for ranks of one host. `succeeds`: the communicator is being made
    /// as the next generation of another one, and nothing is agreed in it before [`activate`](Self::activate).
    pub(crate) fn new(me: u32, hosts: Vec<u32>, succeeds: bool) -> Self {
        Self {
            roster: Roster::new(me, hosts, succeeds),
            taken: 0,
            active: !succeeds,
            succeeds,
            callers: Callers::default(),
            ballots: Ballots::new(me, me, 0),
            outbox: Vec::new(),
        }
    }

    /// Learns which ranks share a host: `hosts[r]` is equal for those.
    pub(crate) fn set_hosts(&mut self, hosts: Vec<u32>) {
        self.roster.departures.set_hosts(hosts);
    }

    /// Messages to be sent, in this order, and their receivers.
    pub(crate) fn take_outbox(&mut self) -> Vec<(u32, Envelope)> {
        std::mem::take(&mut self.outbox)
    }

    /// This rank goes on in this communicator and is bound to nothing in the one before. Tells all others.
    pub(crate) fn activate(&mut self) {
        self.active = true;
        self.tell_vote(self.roster.others());
    }

    /// Takes part in agreeing on the next generation, without the ranks `without`.
    pub(crate) fn call(&mut self, without: Ranks) {
        self.callers.call(without);
        self.evaluate();
    }

    /// Takes part no more, except to vote.
    pub(crate) fn withdraw(&mut self) {
        if self.callers.withdraw() {
            self.ballots.abandon();
            self.report();
        }
    }

    /// This rank will not be a member of a later group, so that nobody waits for it. It votes all the same.
    pub(crate) fn stand_down(&mut self) {
        self.callers.stand_down();
        self.ballots.abandon();
        self.report();
    }

    #[cfg(test)]
    pub(super) fn agreed(&self) -> (u64, &Ranks) {
        (self.roster.generation, &self.roster.group)
    }

    /// Takes the generation that was agreed; the members, in order.
    pub(crate) fn take(&mut self) -> Ranks {
        self.taken = self.roster.generation;
        self.callers.withdraw();
        self.roster.group.clone()
    }

    /// Whether [`complete`](Self::complete) was called.
    pub(crate) fn is_completed(&self) -> bool {
        self.ballots.vote().completed
    }

    /// The caller has the communicator of this `generation`, and knows that all members have it: it goes on there and votes here
    /// no more. False if this rank has taken part in an attempt for a later one.
    pub(crate) fn complete(&mut self, generation: u64) -> bool {
        if self.roster.generation != generation || self.ballots.is_bound() {
            return false;
        }
        self.ballots.complete();
        self.tell_vote(self.roster.others());
        true
    }

    /// A member seeks a later generation than the one that this rank is making.
    pub(crate) fn is_superseded(&self, generation: u64) -> bool {
        self.roster.generation > generation || self.callers.somebody_else_calls() || self.ballots.is_bound()
    }

    /// Whether all members of the last agreed group can be reached.
    pub(crate) fn reaches_all(&self) -> bool {
        self.roster.group.is_disjoint(&self.roster.unreachable)
    }

    /// There is a path to `peer` from now on, or another one. Tells it what this rank is bound to, so that it can be witness.
    pub(crate) fn linked(&mut self, peer: u32) {
        if self.active && (self.succeeds || *self.ballots.vote() != Vote::none(0)) {
            self.tell_vote([peer].into());
        }
        self.callers.report_soon();
    }

    /// There is no path to `peer` any more; `died`: its process was seen to have ended, and nothing it said was missed.
    pub(crate) fn lost(&mut self, peer: u32, died: bool) {
        if self.roster.unreachable.insert(peer) {
            if died && self.roster.departures.same_host(self.roster.me, peer) {
                self.roster.departures.witness(peer, Departure::Died);
            }
            self.changed();
        }
    }

    /// `peer` has said BYE on every path.
    pub(crate) fn left(&mut self, peer: u32) {
        if self.roster.unreachable.insert(peer) {
            self.roster.departures.witness(peer, Departure::Left);
            self.changed();
        }
    }

    /// Tells the other ranks the vote that binds this rank, before it says BYE.
    pub(crate) fn last_words(&mut self) {
        if self.active && *self.ballots.vote() != Vote::none(0) {
            self.tell_vote(self.roster.others());
        }
    }

    /// A message from `from`.
    pub(crate) fn receive(&mut self, from: u32, envelope: Envelope) {
        let Envelope { generation, message } = envelope;
        if let Message::Vote(vote) = message {
            return self.roster.departures.hear_vote(from, vote);
        }
        if !self.active || self.roster.unreachable.contains(&from) {
            return;
        }
        if let Message::Decided(members) = message {
            if generation > self.roster.generation {
                self.adopt(generation, members);
            }
            return;
        }
        if generation < self.roster.generation {
            let decided = Envelope {
                generation: self.roster.generation,
                message: Message::Decided(self.roster.group.clone()),
            };
            return self.outbox.push((from, decided));
        }
        if generation > self.roster.generation {
            // Asks what was decided: a report of this generation is answered with that.
            let report = Message::Report(self.callers.own_report(&self.roster));
            return self.send(from, report);
        }
        if !self.roster.group.contains(&from) || !self.roster.group.contains(&self.roster.me) {
            return;
        }
        if self.is_completed() {
            if matches!(message, Message::Report(_) | Message::Prepare(_) | Message::Propose(..)) {
                self.tell_vote([from].into());
            }
            return;
        }
        match message {
            Message::Report(report) => self.hear_report(from, report),
            Message::Prepare(ballot) => self.prepare(from, ballot),
            Message::Promise(ballot, accepted) => self.hear_promise(from, ballot, accepted),
            Message::Refuse(promised) => self.ballots.hear_refusal(promised),
            Message::Propose(ballot, members) => self.accept(from, ballot, members),
            Message::Accept(ballot) => self.hear_accept(from, ballot),
            Message::Decided(_) | Message::Vote(_) => {}
        }
        if self.roster.all_report() {
            self.evaluate();
        }
    }

    /// Called about twenty times a second while the caller waits.
    pub(crate) fn tick(&mut self) {
        let Some(report) = self.callers.tick() else { return };
        self.ballots.tick();
        if report {
            self.report();
        }
        self.evaluate();
    }

    /// How it stands.
    pub(crate) fn verdict(&self) -> Verdict {
        if !self.roster.group.contains(&self.roster.me) {
            return Verdict::Excluded;
        }
        if self.roster.generation > self.taken {
            return Verdict::Agreed {
                generation: self.roster.generation,
                members: self.roster.group.clone(),
            };
        }
        if self.roster.departures.somebody_completed(&self.roster.group, self.roster.generation) {
            return Verdict::Completed;
        }
        if let Some(rank) = self.callers.differing(&self.roster) {
            return Verdict::Differs(rank);
        }
        let awaited = self.callers.awaited(&self.roster);
        if awaited.is_empty() && !self.ballots.is_attempting() {
            let quiet = self.callers.quiet();
            if quiet >= CUT_OFF && !self.roster.may_decide(&self.roster.reached(), Ballot::LAST) {
                return Verdict::CutOff;
            }
            if quiet >= STUCK && self.callers.candidate(&self.roster).is_none() {
                return Verdict::NoPaths;
            }
        }
        Verdict::Waiting(awaited)
    }

    fn send(&mut self, to: u32, message: Message) {
        self.outbox.push((to, Envelope { generation: self.roster.generation, message }));
    }

    /// Sends what this rank is bound to.
    fn tell_vote(&mut self, to: Ranks) {
        for rank in to {
            self.send(rank, Message::Vote(self.ballots.vote().clone()));
        }
    }

    /// Tells the ranks of this host what this rank is bound to, before it acts on it: should it die, one of them is witness.
    fn tell_host(&mut self) {
        self.tell_vote(self.roster.host_mates());
    }

    fn changed(&mut self) {
        self.callers.note_news();
        if self.active {
            self.evaluate();
        }
    }

    fn report(&mut self) {
        let (report, to) = self.callers.take_report(&self.roster);
        for rank in to {
            self.send(rank, Message::Report(report.clone()));
        }
    }

    fn hear_report(&mut self, from: u32, report: Report) {
        for departed in &report.departed {
            if self.roster.departures.hear(departed) {
                self.callers.note_news();
            }
        }
        if self.callers.hear(self.roster.me, from, report) {
            self.report();
        }
    }

    /// Begins an attempt if this rank is the one to do so.
    fn evaluate(&mut self) {
        if !self.active || !self.ballots.may_begin() {
            return;
        }
        let candidate = self.callers.candidate(&self.roster);
        if candidate.and_then(|members| members.first().copied()) != Some(self.roster.me) {
            return;
        }
        let ballot = self.ballots.begin();
        for rank in self.roster.others() {
            self.send(rank, Message::Prepare(ballot));
        }
        self.prepare(self.roster.me, ballot);
    }

    fn prepare(&mut self, from: u32, ballot: Ballot) {
        let answer = match self.ballots.promise(ballot) {
            Ok(accepted) => Message::Promise(ballot, accepted),
            Err(promised) => return self.answer(from, Message::Refuse(promised)),
        };
        self.tell_host();
        self.answer(from, answer);
    }

    fn accept(&mut self, from: u32, ballot: Ballot, members: Ranks) {
        if let Err(promised) = self.ballots.accept(ballot, members) {
            return self.answer(from, Message::Refuse(promised));
        }
        self.tell_host();
        self.answer(from, Message::Accept(ballot));
    }

    fn answer(&mut self, to: u32, message: Message) {
        match message {
            message if to != self.roster.me => self.send(to, message),
            Message::Promise(ballot, accepted) => self.hear_promise(to, ballot, accepted),
            Message::Accept(ballot) => self.hear_accept(to, ballot),
            _ => {}
        }
    }

    fn hear_promise(&mut self, from: u32, ballot: Ballot, accepted: Accepted) {
        let Some(promises) = self.ballots.hear_promise(from, ballot, accepted) else { return };
        let voters: Ranks = promises.keys().copied().collect();
        if !self.roster.may_decide(&voters, ballot) {
            return;
        }
        // Something may have been decided already, and is proposed again; only otherwise this rank chooses.
        let spoken = promises.values().flatten().cloned();
        let last_votes = self.roster.departures.last_accepted(self.roster.generation, ballot);
        let accepted = spoken.chain(last_votes);
        let earlier = accepted.max_by_key(|(ballot, _)| *ballot).map(|(_, members)| members);
        let members = match earlier.or_else(|| self.callers.free_choice(&self.roster, &voters, ballot)) {
            Some(members) => members,
            None => return,
        };
        self.ballots.propose(members.clone());
        for rank in self.roster.others() {
            self.send(rank, Message::Propose(ballot, members.clone()));
        }
        self.accept(self.roster.me, ballot, members);
    }

    fn hear_accept(&mut self, from: u32, ballot: Ballot) {
        let Some((proposed, accepts)) = self.ballots.hear_accept(from, ballot) else { return };
        if self.roster.may_decide(accepts, ballot) {
            let members = proposed.clone();
            self.adopt(self.roster.generation + 1, members);
        }
    }

    /// `members` are agreed. Tells all who may not know.
    fn adopt(&mut self, generation: u64, members: Ranks) {
        let before = self.roster.others();
        self.roster.generation = generation;
        self.roster.group = members;
        self.ballots = Ballots::new(self.roster.me, self.roster.place(), generation);
        self.callers.begin_generation();
        for rank in before {
            self.send(rank, Message::Decided(self.roster.group.clone()));
        }
    }
}
