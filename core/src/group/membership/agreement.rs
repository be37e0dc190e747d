//! One rank's part in agreeing on the next generation of its group.
//!
//! Each step from one generation to the next is a single decision by ballots, as in Lamport's "Paxos Made Simple": a rank
//! that `may_decide` with those who promised to take part in no lower attempt proposes members, and they are agreed once
//! as many have accepted them. Ranks that are gone for certain count as acceptors that have spoken their last word, which
//! their witness knows.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::message::{Accepted, Ballot, Departed, Departure, Envelope, Message, Report, Vote};
use super::quorum::{Ranks, largest_linked, may_decide};

/// Up to this many ranks, each reports to all others, and all members of a new group must hear each other.
const ALL_REPORT: usize = 16;
/// In larger groups each reports to so many of the lowest ranks, one of which decides.
const DECIDERS: usize = 4;
/// Ticks between reports that say nothing new.
const REPEAT: u32 = 5;
/// Ticks after which the first attempt that was not answered is given up.
const ATTEMPT: u32 = 12;
/// An attempt is given this many times as long as the first one at most.
const MAX_PATIENCE: u32 = 16;
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

/// Ticks that an attempt may take. Later ones may take longer, so that a slow network is no obstacle for ever.
fn patience(ballot: Ballot) -> u32 {
    ATTEMPT.saturating_mul(ballot.round.min(MAX_PATIENCE))
}

/// What one rank knows and is bound to.
#[derive(Debug)]
pub(crate) struct Membership {
    me: u32,
    /// Equal for ranks of one host.
    hosts: Vec<u32>,
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
    vote: Vote,
    unreachable: Ranks,
    departed: BTreeMap<u32, Departed>,
    /// What others said that they are bound to.
    votes: BTreeMap<u32, Vote>,
    /// Whom the caller leaves out, while it waits.
    call: Option<Ranks>,
    /// It failed for good.
    out: bool,
    reports: BTreeMap<u32, Report>,
    attempt: Option<Attempt>,
    /// The highest round seen.
    round: u32,
    /// Ticks until the next attempt may begin.
    pause: u32,
    /// Ticks without news.
    quiet: u32,
    since_report: u32,
    news: bool,
    outbox: Vec<(u32, Envelope)>,
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

impl Membership {
    /// All ranks of a new communicator; `hosts[r]` is equal for ranks of one host. `succeeds`: the communicator is being made
    /// as the next generation of another one, and nothing is agreed in it before [`activate`](Self::activate).
    pub(crate) fn new(me: u32, hosts: Vec<u32>, succeeds: bool) -> Self {
        Self {
            me,
            group: (0..hosts.len() as u32).collect(),
            hosts,
            generation: 0,
            taken: 0,
            active: !succeeds,
            succeeds,
            vote: Vote::none(0),
            unreachable: Ranks::new(),
            departed: BTreeMap::new(),
            votes: BTreeMap::new(),
            call: None,
            out: false,
            reports: BTreeMap::new(),
            attempt: None,
            round: 0,
            pause: 0,
            quiet: 0,
            since_report: 0,
            news: false,
            outbox: Vec::new(),
        }
    }

    /// Learns which ranks share a host: `hosts[r]` is equal for those.
    pub(crate) fn set_hosts(&mut self, hosts: Vec<u32>) {
        self.hosts = hosts;
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
            self.attempt = None;
            self.report();
        }
    }

    /// This rank will not be a member of a later group, so that nobody waits for it. It votes all the same.
    pub(crate) fn stand_down(&mut self) {
        self.out = true;
        (self.call, self.attempt) = (None, None);
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
        self.vote.completed
    }

    /// The caller has the communicator of this `generation`, and knows that all members have it: it goes on there and votes here
    /// no more. False if this rank has taken part in an attempt for a later one.
    pub(crate) fn complete(&mut self, generation: u64) -> bool {
        let bound = self.vote.promised != Ballot::NONE || self.vote.accepted.is_some();
        if self.generation != generation || bound {
            return false;
        }
        self.vote.completed = true;
        self.tell_vote(self.others());
        true
    }

    /// A member seeks a later generation than the one that this rank is making.
    pub(crate) fn is_superseded(&self, generation: u64) -> bool {
        let seeks = |report: &Report| report.without.is_some();
        self.generation > generation || self.reports.values().any(seeks) || self.vote.promised != Ballot::NONE
    }

    /// Whether all members of the last agreed group can be reached.
    pub(crate) fn reaches_all(&self) -> bool {
        self.group.is_disjoint(&self.unreachable)
    }

    /// There is a path to `peer` from now on, or another one. Tells it what this rank is bound to, so that it can be witness.
    pub(crate) fn linked(&mut self, peer: u32) {
        if self.active && (self.succeeds || self.vote != Vote::none(0)) {
            self.send(peer, Message::Vote(self.vote.clone()));
        }
        self.news = true;
    }

    /// There is no path to `peer` any more; `died`: its process was seen to have ended, and nothing it said was missed.
    pub(crate) fn lost(&mut self, peer: u32, died: bool) {
        if self.unreachable.insert(peer) {
            if died && self.same_host(self.me, peer) {
                self.note_departed(peer, Departure::Died);
            }
            self.changed();
        }
    }

    /// `peer` has said BYE on every path.
    pub(crate) fn left(&mut self, peer: u32) {
        if self.unreachable.insert(peer) {
            self.note_departed(peer, Departure::Left);
            self.changed();
        }
    }

    /// What this rank is bound to, for those to whom it is about to say BYE.
    pub(crate) fn last_words(&mut self) {
        if self.active && self.vote != Vote::none(0) {
            self.tell_vote(self.others());
        }
    }

    /// A message from `from`.
    pub(crate) fn receive(&mut self, from: u32, envelope: Envelope) {
        let Envelope { generation, message } = envelope;
        if let Message::Vote(vote) = message {
            // Two threads of the sender may have sent theirs in either order.
            match self.votes.get_mut(&from) {
                Some(known) if known.is_later_than(&vote) => {}
                Some(known) => *known = vote,
                None => drop(self.votes.insert(from, vote)),
            }
            return;
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
        if self.vote.completed {
            if matches!(message, Message::Report(_) | Message::Prepare(_) | Message::Propose(..)) {
                self.send(from, Message::Vote(self.vote.clone()));
            }
            return;
        }
        match message {
            Message::Report(report) => self.hear_report(from, report),
            Message::Prepare(ballot) => self.prepare(from, ballot),
            Message::Promise(ballot, accepted) => self.hear_promise(from, ballot, accepted),
            Message::Refuse(ballot) => self.hear_refusal(ballot),
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
        self.pause = self.pause.saturating_sub(1);
        if let Some(attempt) = &mut self.attempt {
            attempt.age += 1;
            if attempt.age > patience(attempt.ballot) {
                self.give_way();
            }
        }
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
        let completed = |vote: &Vote| vote.completed && vote.generation == self.generation;
        if self.group.iter().filter_map(|rank| self.votes.get(rank)).any(completed) {
            return Verdict::Completed;
        }
        if let Some(rank) = self.differing() {
            return Verdict::Differs(rank);
        }
        let awaited = self.awaited();
        if awaited.is_empty() && self.attempt.is_none() {
            let departed = self.subtracted(Ballot::LAST);
            if self.quiet >= CUT_OFF && !may_decide(&self.group, &departed, &self.reached()) {
                return Verdict::CutOff;
            }
            if self.quiet >= STUCK && self.candidate().is_none() {
                return Verdict::NoPaths;
            }
        }
        Verdict::Waiting(awaited)
    }

    fn same_host(&self, a: u32, b: u32) -> bool {
        let host = |rank: u32| self.hosts.get(rank as usize);
        host(a).is_some() && host(a) == host(b)
    }

    fn send(&mut self, to: u32, message: Message) {
        self.outbox.push((to, Envelope { generation: self.generation, message }));
    }

    /// Sends what this rank is bound to.
    fn tell_vote(&mut self, to: Ranks) {
        for rank in to {
            self.send(rank, Message::Vote(self.vote.clone()));
        }
    }

    /// Tells the ranks of this host what this rank is bound to, before it acts on it: should it die, one of them is witness.
    fn tell_host(&mut self) {
        let witnesses = self.others().into_iter().filter(|rank| self.same_host(self.me, *rank)).collect();
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

    fn note_departed(&mut self, rank: u32, how: Departure) {
        let vote = match self.votes.get(&rank) {
            Some(vote) => vote.clone(),
            // In a group that succeeds another one, a rank that never spoke here may be bound there.
            None if self.succeeds => return,
            None => Vote::none(0),
        };
        self.learn_departed(Departed { rank, how, witness: self.me, vote });
    }

    /// Keeps the latest words of `departed`. Whether that was news.
    fn learn_departed(&mut self, departed: Departed) -> bool {
        match self.departed.get(&departed.rank) {
            Some(known) if !departed.vote.is_later_than(&known.vote) => false,
            _ => self.departed.insert(departed.rank, departed).is_none(),
        }
    }

    /// The ranks that do not count in attempt `ballot`: gone for certain, and bound to nothing that forbids it.
    fn subtracted(&self, ballot: Ballot) -> Ranks {
        let free = |departed: &&Departed| {
            let vote = &departed.vote;
            !vote.completed
                && (vote.generation < self.generation
                    || (vote.generation == self.generation && vote.promised <= ballot))
        };
        self.departed.values().filter(free).map(|departed| departed.rank).collect()
    }

    /// Those of whom the caller must still hear: members that are neither left out nor gone, and do not call.
    fn awaited(&self) -> Ranks {
        let Some(without) = &self.call else { return Ranks::new() };
        let calls =
            |rank: &u32| self.reports.get(rank).is_some_and(|report| report.without.is_some() || report.out);
        let mut awaited = self.others();
        awaited.retain(|rank| !without.contains(rank) && !self.departed.contains_key(rank) && !calls(rank));
        if self.group.len() > ALL_REPORT && !self.deciders().contains(&self.me) {
            // The others report to the deciders only.
            awaited.retain(|rank| self.deciders().contains(rank));
        }
        awaited
    }

    /// The ranks to which members of a large group report.
    fn deciders(&self) -> Ranks {
        let there = |rank: &u32| !self.departed.contains_key(rank);
        self.reached().into_iter().filter(there).take(DECIDERS).collect()
    }

    fn own_report(&self) -> Report {
        Report {
            without: self.call.clone(),
            out: self.out,
            heard: self.reports.keys().copied().collect(),
            unreachable: self.unreachable.clone(),
            departed: self
                .departed
                .values()
                .filter(|gone| self.group.contains(&gone.rank))
                .cloned()
                .collect(),
        }
    }

    fn report(&mut self) {
        (self.news, self.since_report) = (false, 0);
        let mut to = self.others();
        if self.group.len() > ALL_REPORT {
            let deciders = self.deciders();
            to.retain(|rank| deciders.contains(rank) || self.reports.contains_key(rank));
        }
        let report = self.own_report();
        for rank in to {
            self.send(rank, Message::Report(report.clone()));
        }
    }

    fn hear_report(&mut self, from: u32, report: Report) {
        for departed in &report.departed {
            let seen = departed.how == Departure::Left || self.same_host(departed.witness, departed.rank);
            if seen && departed.rank != self.me && self.learn_departed(departed.clone()) {
                (self.news, self.quiet) = (true, 0);
            }
        }
        let before = self.reports.insert(from, report);
        if before.is_none() && !self.out {
            self.news = true;
        } else if before.is_none() {
            self.report();
        }
        if before.as_ref() != self.reports.get(&from) {
            self.quiet = 0;
        }
    }

    /// A member whose caller leaves out other ranks than this rank's does, neither of the two being among them.
    fn differing(&self) -> Option<u32> {
        let mine = self.call.as_ref()?;
        let differs = |(rank, report): &(&u32, &Report)| {
            !mine.contains(rank)
                && report.without.as_ref().is_some_and(|theirs| theirs != mine && !theirs.contains(&self.me))
        };
        self.reports.iter().find(differs).map(|(rank, _)| *rank)
    }

    /// The members that this rank would agree to, if they may decide.
    fn candidate(&self) -> Option<Ranks> {
        let without = self.call.as_ref()?;
        if !self.awaited().is_empty() || self.differing().is_some() || without.contains(&self.me) {
            return None;
        }
        let own = self.own_report();
        let view = |rank: u32| if rank == self.me { Some(&own) } else { self.reports.get(&rank) };
        let mut callers = self.reached();
        callers.retain(|rank| {
            let calls = view(*rank).is_some_and(|report| report.without.as_ref() == Some(without));
            calls && !without.contains(rank) && !self.departed.contains_key(rank)
        });
        let all_report = self.group.len() <= ALL_REPORT;
        // Whether there are paths between two callers, or `None` while that is not known.
        let paths = |a: u32, b: u32| {
            let (at_a, at_b) = (view(a)?, view(b)?);
            if at_a.unreachable.contains(&b) || at_b.unreachable.contains(&a) {
                return Some(false);
            }
            let heard = at_a.heard.contains(&b) && at_b.heard.contains(&a);
            (heard || !(all_report || a == self.me || b == self.me)).then_some(true)
        };
        let unknown = |a: &u32| callers.range(a + 1..).any(|b| paths(*a, *b).is_none());
        if self.quiet < SETTLED && callers.iter().any(unknown) {
            return None;
        }
        let candidate = largest_linked(&callers, |a, b| paths(a, b) == Some(true));
        let voters = candidate.union(without).copied().collect();
        may_decide(&self.group, &self.subtracted(Ballot::LAST), &voters).then_some(candidate)
    }

    /// Begins an attempt if this rank is the one to do so.
    fn evaluate(&mut self) {
        if self.attempt.is_some() || self.pause > 0 || self.vote.completed || !self.active {
            return;
        }
        if self.candidate().and_then(|members| members.first().copied()) != Some(self.me) {
            return;
        }
        self.round = self.round.max(self.vote.promised.round).saturating_add(1);
        let ballot = Ballot::new(self.round, self.me);
        let (promises, accepts) = (BTreeMap::new(), Ranks::new());
        self.attempt = Some(Attempt { ballot, promises, proposed: None, accepts, age: 0 });
        for rank in self.others() {
            self.send(rank, Message::Prepare(ballot));
        }
        self.prepare(self.me, ballot);
    }

    /// Gives the attempt up; the next one comes the sooner, the lower this rank is.
    fn give_way(&mut self) {
        self.attempt = None;
        let place = self.group.range(..self.me).count() as u32;
        self.pause = 2 + 3 * place;
    }

    /// Gives this rank's attempt up if `ballot` is above it, and lets that one finish: two deciders that only try again as
    /// soon as they can would overtake each other for ever on a slow network.
    fn yield_to(&mut self, ballot: Ballot) {
        if self.attempt.as_ref().is_some_and(|attempt| attempt.ballot < ballot) {
            self.give_way();
            self.pause += patience(ballot);
        }
    }

    fn prepare(&mut self, from: u32, ballot: Ballot) {
        self.round = self.round.max(ballot.round);
        if ballot < self.vote.promised {
            return self.answer(from, Message::Refuse(self.vote.promised));
        }
        self.bind(ballot);
        self.tell_host();
        self.answer(from, Message::Promise(ballot, self.vote.accepted.clone()));
    }

    fn accept(&mut self, from: u32, ballot: Ballot, members: Ranks) {
        self.round = self.round.max(ballot.round);
        if ballot < self.vote.promised {
            return self.answer(from, Message::Refuse(self.vote.promised));
        }
        self.bind(ballot);
        self.vote.accepted = Some((ballot, members));
        self.tell_host();
        self.answer(from, Message::Accept(ballot));
    }

    fn bind(&mut self, ballot: Ballot) {
        self.vote = Vote { promised: ballot, ..self.vote.clone() };
        self.yield_to(ballot);
    }

    fn answer(&mut self, to: u32, message: Message) {
        match message {
            message if to != self.me => self.send(to, message),
            Message::Promise(ballot, accepted) => self.hear_promise(to, ballot, accepted),
            Message::Accept(ballot) => self.hear_accept(to, ballot),
            _ => {}
        }
    }

    fn hear_refusal(&mut self, promised: Ballot) {
        self.round = self.round.max(promised.round);
        self.yield_to(promised);
    }

    fn hear_promise(&mut self, from: u32, ballot: Ballot, accepted: Accepted) {
        let departed = self.subtracted(ballot);
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot) else { return };
        attempt.promises.insert(from, accepted);
        let voters: Ranks = attempt.promises.keys().copied().collect();
        if attempt.proposed.is_some() || !may_decide(&self.group, &departed, &voters) {
            return;
        }
        // What may have been decided already is what is proposed; only if there is no such thing, this rank chooses.
        let spoken = attempt.promises.values().flatten().cloned();
        let last_words = self.departed.values().filter(|gone| departed.contains(&gone.rank));
        let last_words = last_words.filter(|gone| gone.vote.generation == self.generation);
        let last_words = last_words.filter_map(|gone| gone.vote.accepted.clone());
        let earlier = spoken.chain(last_words).max_by_key(|(ballot, _)| *ballot).map(|(_, members)| members);
        let members = match earlier.or_else(|| self.free_choice(&departed, &voters)) {
            Some(members) => members,
            None => return,
        };
        if let Some(attempt) = &mut self.attempt {
            attempt.proposed = Some(members.clone());
        }
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
        let departed = self.subtracted(ballot);
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot) else { return };
        attempt.accepts.insert(from);
        if !may_decide(&self.group, &departed, &attempt.accepts) {
            return;
        }
        if let Some(members) = attempt.proposed.clone() {
            self.adopt(self.generation + 1, members);
        }
    }

    /// `members` are agreed. Tells all who may not know.
    fn adopt(&mut self, generation: u64, members: Ranks) {
        let before = self.others();
        self.generation = generation;
        self.group = members;
        self.vote = Vote::none(generation);
        self.reports.clear();
        (self.call, self.attempt) = (None, None);
        (self.round, self.pause, self.quiet, self.news) = (0, 0, 0, true);
        for rank in before {
            self.send(rank, Message::Decided(self.group.clone()));
        }
    }
}
