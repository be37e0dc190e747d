//! One rank's part in agreeing on the next generation of its group.
//!
//! Each step from one generation to the next is a single decision by ballots, as in Lamport's "Paxos Made Simple": a rank
//! that `may_decide` with those who promised to take part in no lower attempt proposes members, and they are agreed once
//! as many have accepted them. Ranks that are gone for certain count as acceptors that have spoken their last word, which
//! their witness knows.
#![forbid(unsafe_code)]

use super::ballots::Ballots;
use super::departures::Departures;
use super::message::{Accepted, Ballot, Departure, Envelope, Message, Report, Vote};
use super::quorum::{Ranks, may_decide};
use super::reports::{Reports, View};

/// Up to this many ranks, each reports to all others, and all members of a new group must hear each other.
const ALL_REPORT: usize = 16;
/// In larger groups each reports to so many of the lowest ranks, one of which decides.
const DECIDERS: usize = 4;
/// Ticks between reports that say nothing new.
const REPEAT: u32 = 5;
/// Ticks without news after which two callers that have not heard each other count as having no path.
const SETTLED: u32 = 30;
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

/// What one rank knows and is bound to.
#[derive(Debug)]
pub(crate) struct Membership {
    me: u32,
    /// The last agreed group, and how many were agreed before it.
    group: Ranks,
    generation: u64,
    /// The last generation that the caller has taken.
    taken: u64,
    /// False while this group is being made as the next generation of another one: until the caller has completed that
    /// generation, this rank may still vote there, and must not vote here.
    active: bool,
    /// Whether this group is the next generation of another one.
    succeeds: bool,
    unreachable: Ranks,
    departures: Departures,
    /// Whom the caller leaves out, while it waits.
    call: Option<Ranks>,
    /// It failed for good.
    out: bool,
    reports: Reports,
    ballots: Ballots,
    /// Ticks without news.
    quiet: u32,
    since_report: u32,
    news: bool,
    outbox: Vec<(u32, Envelope)>,
}

impl Membership {
    /// All ranks of a new communicator; `hosts[r]` is equal for ranks of one host. `succeeds`: the communicator is being made
    /// as the next generation of another one, and nothing is agreed in it before [`activate`](Self::activate).
    pub(crate) fn new(me: u32, hosts: Vec<u32>, succeeds: bool) -> Self {
        Self {
            me,
            group: (0..hosts.len() as u32).collect(),
            generation: 0,
            taken: 0,
            active: !succeeds,
            succeeds,
            unreachable: Ranks::new(),
            departures: Departures::new(me, hosts, succeeds),
            call: None,
            out: false,
            reports: Reports::default(),
            ballots: Ballots::new(me, me, 0),
            quiet: 0,
            since_report: 0,
            news: false,
            outbox: Vec::new(),
        }
    }

    /// Learns which ranks share a host: `hosts[r]` is equal for those.
    pub(crate) fn set_hosts(&mut self, hosts: Vec<u32>) {
        self.departures.set_hosts(hosts);
    }

    /// Messages to be sent, in this order, and their receivers.
    pub(crate) fn take_outbox(&mut self) -> Vec<(u32, Envelope)> {
        std::mem::take(&mut self.outbox)
    }

    /// This rank goes on in this communicator and is bound to nothing in the one before. Tells all others.
    pub(crate) fn activate(&mut self) {
        self.active = true;
        self.tell_vote(self.others());
    }

    /// Takes part in agreeing on the next generation, without the ranks `without`.
    pub(crate) fn call(&mut self, without: Ranks) {
        self.call = Some(without);
        (self.news, self.quiet) = (true, 0);
        self.evaluate();
    }

    /// Takes part no more, except to vote.
    pub(crate) fn withdraw(&mut self) {
        if self.call.take().is_some() {
            self.ballots.abandon();
            self.report();
        }
    }

    /// This rank will not be a member of a later group, so that nobody waits for it. It votes all the same.
    pub(crate) fn stand_down(&mut self) {
        self.out = true;
        self.call = None;
        self.ballots.abandon();
        self.report();
    }

    #[cfg(test)]
    pub(super) fn agreed(&self) -> (u64, &Ranks) {
        (self.generation, &self.group)
    }

    /// Takes the generation that was agreed; the members, in order.
    pub(crate) fn take(&mut self) -> Ranks {
        self.taken = self.generation;
        self.call = None;
        self.group.clone()
    }

    /// Whether [`complete`](Self::complete) was called.
    pub(crate) fn is_completed(&self) -> bool {
        self.ballots.vote().completed
    }

    /// The caller has the communicator of this `generation`, and knows that all members have it: it goes on there and votes here
    /// no more. False if this rank has taken part in an attempt for a later one.
    pub(crate) fn complete(&mut self, generation: u64) -> bool {
        if self.generation != generation || self.ballots.is_bound() {
            return false;
        }
        self.ballots.complete();
        self.tell_vote(self.others());
        true
    }

    /// A member seeks a later generation than the one that this rank is making.
    pub(crate) fn is_superseded(&self, generation: u64) -> bool {
        self.generation > generation || self.reports.somebody_calls() || self.ballots.is_bound()
    }

    /// Whether all members of the last agreed group can be reached.
    pub(crate) fn reaches_all(&self) -> bool {
        self.group.is_disjoint(&self.unreachable)
    }

    /// There is a path to `peer` from now on, or another one. Tells it what this rank is bound to, so that it can be witness.
    pub(crate) fn linked(&mut self, peer: u32) {
        if self.active && (self.succeeds || *self.ballots.vote() != Vote::none(0)) {
            self.tell_vote([peer].into());
        }
        self.news = true;
    }

    /// There is no path to `peer` any more; `died`: its process was seen to have ended, and nothing it said was missed.
    pub(crate) fn lost(&mut self, peer: u32, died: bool) {
        if self.unreachable.insert(peer) {
            if died && self.departures.same_host(self.me, peer) {
                self.departures.witness(peer, Departure::Died);
            }
            self.changed();
        }
    }

    /// `peer` has said BYE on every path.
    pub(crate) fn left(&mut self, peer: u32) {
        if self.unreachable.insert(peer) {
            self.departures.witness(peer, Departure::Left);
            self.changed();
        }
    }

    /// What this rank is bound to, for those to whom it is about to say BYE.
    pub(crate) fn last_words(&mut self) {
        if self.active && *self.ballots.vote() != Vote::none(0) {
            self.tell_vote(self.others());
        }
    }

    /// A message from `from`.
    pub(crate) fn receive(&mut self, from: u32, envelope: Envelope) {
        let Envelope { generation, message } = envelope;
        if let Message::Vote(vote) = message {
            return self.departures.hear_vote(from, vote);
        }
        if !self.active || self.unreachable.contains(&from) {
            return;
        }
        if let Message::Decided(members) = message {
            if generation > self.generation {
                self.adopt(generation, members);
            }
            return;
        }
        if generation < self.generation {
            let decided =
                Envelope { generation: self.generation, message: Message::Decided(self.group.clone()) };
            return self.outbox.push((from, decided));
        }
        if generation > self.generation {
            // Asks what was decided: a report of this generation is answered with that.
            let report = Message::Report(self.own_report());
            return self.send(from, report);
        }
        if !self.group.contains(&from) || !self.group.contains(&self.me) {
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
        if self.group.len() <= ALL_REPORT {
            self.evaluate();
        }
    }

    /// Called about twenty times a second while the caller waits.
    pub(crate) fn tick(&mut self) {
        if self.call.is_none() {
            return;
        }
        self.quiet += 1;
        self.since_report += 1;
        self.ballots.tick();
        if self.news || self.since_report >= REPEAT {
            self.report();
        }
        self.evaluate();
    }

    /// How it stands.
    pub(crate) fn verdict(&self) -> Verdict {
        if !self.group.contains(&self.me) {
            return Verdict::Excluded;
        }
        if self.generation > self.taken {
            return Verdict::Agreed { generation: self.generation, members: self.group.clone() };
        }
        if self.departures.somebody_completed(&self.group, self.generation) {
            return Verdict::Completed;
        }
        if let Some(rank) = self.differing() {
            return Verdict::Differs(rank);
        }
        let awaited = self.awaited();
        if awaited.is_empty() && !self.ballots.is_attempting() {
            let departed = self.departures.subtracted(self.generation, Ballot::LAST);
            if self.quiet >= CUT_OFF && !may_decide(&self.group, &departed, &self.reached()) {
                return Verdict::CutOff;
            }
            if self.quiet >= STUCK && self.candidate().is_none() {
                return Verdict::NoPaths;
            }
        }
        Verdict::Waiting(awaited)
    }

    fn send(&mut self, to: u32, message: Message) {
        self.outbox.push((to, Envelope { generation: self.generation, message }));
    }

    /// Sends what this rank is bound to.
    fn tell_vote(&mut self, to: Ranks) {
        for rank in to {
            self.send(rank, Message::Vote(self.ballots.vote().clone()));
        }
    }

    /// Tells the ranks of this host what this rank is bound to, before it acts on it: should it die, one of them is witness.
    fn tell_host(&mut self) {
        let witnesses =
            self.others().into_iter().filter(|rank| self.departures.same_host(self.me, *rank)).collect();
        self.tell_vote(witnesses);
    }

    /// The other members that can be reached.
    fn others(&self) -> Ranks {
        self.reached().into_iter().filter(|rank| *rank != self.me).collect()
    }

    /// The members that can be reached, this one included.
    fn reached(&self) -> Ranks {
        self.group.difference(&self.unreachable).copied().collect()
    }

    fn changed(&mut self) {
        (self.news, self.quiet) = (true, 0);
        if self.active {
            self.evaluate();
        }
    }

    /// Those of whom the caller must still hear: members that are neither left out nor gone, and do not call.
    fn awaited(&self) -> Ranks {
        let Some(without) = &self.call else { return Ranks::new() };
        let mut awaited = self.others();
        awaited.retain(|rank| {
            !without.contains(rank) && !self.departures.contains(*rank) && !self.reports.has_answered(*rank)
        });
        if self.group.len() > ALL_REPORT && !self.deciders().contains(&self.me) {
            // The others report to the deciders only.
            awaited.retain(|rank| self.deciders().contains(rank));
        }
        awaited
    }

    /// The ranks to which members of a large group report.
    fn deciders(&self) -> Ranks {
        let there = |rank: &u32| !self.departures.contains(*rank);
        self.reached().into_iter().filter(there).take(DECIDERS).collect()
    }

    fn own_report(&self) -> Report {
        Report {
            without: self.call.clone(),
            out: self.out,
            heard: self.reports.from(),
            unreachable: self.unreachable.clone(),
            departed: self.departures.of(&self.group),
        }
    }

    fn report(&mut self) {
        (self.news, self.since_report) = (false, 0);
        let mut to = self.others();
        if self.group.len() > ALL_REPORT {
            let deciders = self.deciders();
            to.retain(|rank| deciders.contains(rank) || self.reports.get(*rank).is_some());
        }
        let report = self.own_report();
        for rank in to {
            self.send(rank, Message::Report(report.clone()));
        }
    }

    fn hear_report(&mut self, from: u32, report: Report) {
        for departed in &report.departed {
            if self.departures.hear(departed) {
                (self.news, self.quiet) = (true, 0);
            }
        }
        let before = self.reports.insert(from, report);
        if before.is_none() && !self.out {
            self.news = true;
        } else if before.is_none() {
            self.report();
        }
        if before.as_ref() != self.reports.get(from) {
            self.quiet = 0;
        }
    }

    /// A member whose caller leaves out other ranks than this rank's does, neither of the two being among them.
    fn differing(&self) -> Option<u32> {
        self.reports.differing(self.me, self.call.as_ref()?)
    }

    /// The members that this rank would agree to, if they may decide.
    fn candidate(&self) -> Option<Ranks> {
        let without = self.call.as_ref()?;
        if !self.awaited().is_empty() || self.differing().is_some() || without.contains(&self.me) {
            return None;
        }
        let all_report = self.group.len() <= ALL_REPORT;
        let view = View { me: self.me, own: &self.own_report(), others: &self.reports, all_report };
        let mut callers = self.reached();
        callers.retain(|rank| {
            view.calls(*rank, without) && !without.contains(rank) && !self.departures.contains(*rank)
        });
        let candidate = view.largest_connected(&callers, self.quiet >= SETTLED)?;
        let voters = candidate.union(without).copied().collect();
        let departed = self.departures.subtracted(self.generation, Ballot::LAST);
        may_decide(&self.group, &departed, &voters).then_some(candidate)
    }

    /// Begins an attempt if this rank is the one to do so.
    fn evaluate(&mut self) {
        if !self.active || !self.ballots.may_begin() {
            return;
        }
        if self.candidate().and_then(|members| members.first().copied()) != Some(self.me) {
            return;
        }
        let ballot = self.ballots.begin();
        for rank in self.others() {
            self.send(rank, Message::Prepare(ballot));
        }
        self.prepare(self.me, ballot);
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
            message if to != self.me => self.send(to, message),
            Message::Promise(ballot, accepted) => self.hear_promise(to, ballot, accepted),
            Message::Accept(ballot) => self.hear_accept(to, ballot),
            _ => {}
        }
    }

    fn hear_promise(&mut self, from: u32, ballot: Ballot, accepted: Accepted) {
        let Some(promises) = self.ballots.hear_promise(from, ballot, accepted) else { return };
        let departed = self.departures.subtracted(self.generation, ballot);
        let voters: Ranks = promises.keys().copied().collect();
        if !may_decide(&self.group, &departed, &voters) {
            return;
        }
        // Something may have been decided already, and is proposed again; only otherwise this rank chooses.
        let spoken = promises.values().flatten().cloned();
        let accepted = spoken.chain(self.departures.accepted(&departed, self.generation));
        let earlier = accepted.max_by_key(|(ballot, _)| *ballot).map(|(_, members)| members);
        let members = match earlier.or_else(|| self.free_choice(&departed, &voters)) {
            Some(members) => members,
            None => return,
        };
        self.ballots.propose(members.clone());
        for rank in self.others() {
            self.send(rank, Message::Propose(ballot, members.clone()));
        }
        self.accept(self.me, ballot, members);
    }

    /// The members to propose: those who could go on with the votes of those that they leave out.
    fn free_choice(&self, departed: &Ranks, voters: &Ranks) -> Option<Ranks> {
        let (members, without) = (self.candidate()?, self.call.as_ref()?);
        let agreed = members.union(&without.intersection(voters).copied().collect()).copied().collect();
        (members.contains(&self.me) && may_decide(&self.group, departed, &agreed)).then_some(members)
    }

    fn hear_accept(&mut self, from: u32, ballot: Ballot) {
        let Some((proposed, accepts)) = self.ballots.hear_accept(from, ballot) else { return };
        let departed = self.departures.subtracted(self.generation, ballot);
        if may_decide(&self.group, &departed, accepts) {
            let members = proposed.clone();
            self.adopt(self.generation + 1, members);
        }
    }

    /// `members` are agreed. Tells all who may not know.
    fn adopt(&mut self, generation: u64, members: Ranks) {
        let before = self.others();
        self.generation = generation;
        self.group = members;
        let place = self.group.range(..self.me).count() as u32;
        self.ballots = Ballots::new(self.me, place, generation);
        self.reports.clear();
        self.call = None;
        (self.quiet, self.news) = (0, true);
        for rank in before {
            self.send(rank, Message::Decided(self.group.clone()));
        }
    }
}
