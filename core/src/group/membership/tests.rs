//! Directed runs of one agreement: messages arrive at once, and the test chooses which paths exist and who dies when.

use std::collections::VecDeque;

use super::agreement::{Membership, Verdict};
use super::message::{Envelope, Message};
use super::quorum::Ranks;

mod large;
mod views;

/// The memberships of all ranks, and what is on its way between them.
struct Group {
    ranks: Vec<Membership>,
    broken: Vec<(u32, u32)>,
    dead: Ranks,
    underway: VecDeque<(u32, u32, Envelope)>,
}

impl Group {
    /// `hosts[r]` is equal for ranks of one host.
    fn new(hosts: &[u32]) -> Self {
        let ranks = (0..hosts.len() as u32).map(|me| Membership::new(me, hosts.to_vec(), false)).collect();
        Self { ranks, broken: Vec::new(), dead: Ranks::new(), underway: VecDeque::new() }
    }

    /// No path between `a` and `b` any more; neither has seen the other's process end.
    fn part(&mut self, a: u32, b: u32) {
        self.broken.extend([(a, b), (b, a)]);
        for (at, of) in [(a, b), (b, a)] {
            self.ranks[at as usize].lost(of, false);
            self.send(at);
        }
    }

    /// The process of `rank` is killed. The ranks of its host that it has a path to see that.
    fn kill(&mut self, rank: u32) {
        self.dead.insert(rank);
        for peer in 0..self.ranks.len() as u32 {
            if peer != rank && !self.broken.contains(&(rank, peer)) {
                self.ranks[peer as usize].lost(rank, true);
                self.send(peer);
            }
        }
    }

    /// The user of `rank` drops its communicator, and its process ends.
    fn leave(&mut self, rank: u32) {
        self.ranks[rank as usize].last_words();
        self.dead.insert(rank);
        self.send(rank);
        self.deliver(&|_, _, _| false);
        for peer in 0..self.ranks.len() as u32 {
            if peer != rank && !self.broken.contains(&(rank, peer)) {
                self.ranks[peer as usize].left(rank);
                self.send(peer);
            }
        }
    }

    fn call(&mut self, ranks: impl IntoIterator<Item = u32>) {
        for rank in ranks {
            self.ranks[rank as usize].call(Ranks::new());
            self.send(rank);
        }
    }

    /// Sends the messages in `rank`'s outbox.
    fn send(&mut self, rank: u32) {
        for (to, envelope) in self.ranks[rank as usize].take_outbox() {
            self.underway.push_back((rank, to, envelope));
        }
    }

    /// Delivers everything and lets time pass, until `until` is about to be delivered, or a minute has passed.
    fn run(&mut self, until: impl Fn(u32, u32, &Message) -> bool) -> bool {
        self.pass(1200, &until)
    }

    /// The same for so many ticks.
    fn pass(&mut self, ticks: u32, until: &impl Fn(u32, u32, &Message) -> bool) -> bool {
        for _ in 0..ticks {
            if self.deliver(until) {
                return true;
            }
            for rank in 0..self.ranks.len() as u32 {
                if !self.dead.contains(&rank) {
                    self.ranks[rank as usize].tick();
                    self.send(rank);
                }
            }
        }
        false
    }

    /// Delivers everything, until `until` is about to be delivered.
    fn deliver(&mut self, until: &impl Fn(u32, u32, &Message) -> bool) -> bool {
        while let Some((from, to, envelope)) = self.underway.pop_front() {
            if until(from, to, &envelope.message) {
                self.underway.push_front((from, to, envelope));
                return true;
            }
            if !self.dead.contains(&to) && !self.broken.contains(&(from, to)) {
                self.ranks[to as usize].receive(from, envelope);
                self.send(to);
            }
        }
        false
    }

    fn members(&self, rank: u32) -> &Ranks {
        self.ranks[rank as usize].agreed().1
    }
}

/// Should the rank die once it has answered, only its host can say what it is bound to.
#[test]
fn promises_and_acceptances_are_told_the_host_before_they_are_answered() {
    let mut rank = Membership::new(1, vec![0, 1, 1], false);
    let ballot = super::message::Ballot::new(1, 0);
    let members = Ranks::from([0, 1, 2]);
    for asked in [Message::Prepare(ballot), Message::Propose(ballot, members.clone())] {
        let accepted = matches!(asked, Message::Propose(..)).then(|| (ballot, members.clone()));
        rank.receive(0, Envelope { generation: 0, message: asked });
        let said = rank.take_outbox();
        let [(2, Envelope { message: Message::Vote(vote), .. }), (0, _)] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!((vote.promised, &vote.accepted), (ballot, &accepted));
    }
}

/// Ranks 0 and 1 may decide for themselves, as half with the lowest rank. Ranks 2 and 3 may once rank 1 is subtracted: then
/// they are two of three. Right after it helped to decide, rank 1 is killed, and only rank 2 shares its host; or it leaves in
/// good order, tells its vote before its BYE, and no other rank shares its host.
#[test]
fn the_vote_of_a_rank_that_is_gone_binds_those_who_subtract_it() {
    type Go = fn(&mut Group, u32);
    for (hosts, go) in [([0, 1, 1, 2], Group::kill as Go), ([0, 1, 2, 3], Group::leave)] {
        let mut group = Group::new(&hosts);
        group.part(0, 2);
        group.part(0, 3);
        group.call([0, 1]);
        let decided =
            |from, to, message: &Message| (from, to) == (0, 1) && matches!(message, Message::Decided(_));
        assert!(group.run(decided), "ranks 0 and 1 do not decide: {:?}", group.ranks[0].verdict());
        go(&mut group, 1);
        group.call([2, 3]);
        assert!(!group.run(|_, _, _| false));
        assert_eq!(group.members(0), &Ranks::from([0, 1]));
        for rank in [2, 3] {
            assert_eq!(
                group.ranks[rank as usize].verdict(),
                Verdict::Excluded,
                "agreed: {:?}",
                group.members(rank)
            );
        }
    }
}

/// A rank that has promised in a later generation must not complete the earlier one: its promise may decide another
/// group.
#[test]
fn a_rank_that_has_promised_something_for_a_later_generation_does_not_complete_the_one_before() {
    for promised in [false, true] {
        let mut member = Membership::new(1, vec![0, 1, 2], false);
        let decided = Message::Decided(Ranks::from([0, 1, 2]));
        member.receive(0, Envelope { generation: 1, message: decided });
        if promised {
            member.receive(
                0,
                Envelope { generation: 1, message: Message::Prepare(super::message::Ballot::new(1, 0)) },
            );
        }
        assert_eq!(member.complete(1), !promised);
        assert_eq!(member.is_completed(), !promised);
    }
}

/// Two of those that promise have accepted different groups. The one of the higher ballot may have been decided, the other not.
#[test]
fn of_two_groups_that_were_accepted_the_one_of_the_higher_ballot_is_proposed_again() {
    let mut group = Group::new(&[0, 1, 2, 3, 4]);
    group.call(0..5);
    assert!(group.run(|from, _, message| from == 0 && matches!(message, Message::Prepare(_))));
    // Of one round, that of the lower rank is the higher; rank 0's is above both.
    for (from, by, members) in [(1, 3, Ranks::from([0, 1, 3])), (2, 2, Ranks::from([0, 1, 2]))] {
        let message = Message::Promise(
            super::message::Ballot::new(1, 0),
            Some((super::message::Ballot::new(1, by), members)),
        );
        group.ranks[0].receive(from, Envelope { generation: 0, message });
    }
    let proposed: Vec<_> = group.ranks[0]
        .take_outbox()
        .into_iter()
        .filter_map(|(_, envelope)| match envelope.message {
            Message::Propose(_, members) => Some(members),
            _ => None,
        })
        .collect();
    assert_eq!(proposed, vec![Ranks::from([0, 1, 2]); 4]);
}

/// The messages of `rank`, with their receivers.
fn said(rank: &mut Membership) -> Vec<(u32, Message)> {
    rank.take_outbox().into_iter().map(|(to, envelope)| (to, envelope.message)).collect()
}

/// Rank 1 of three on hosts of their own.
fn one_of_three(succeeds: bool) -> Membership {
    Membership::new(1, vec![0, 1, 2], succeeds)
}

fn hear(rank: &mut Membership, generation: u64, message: Message) {
    rank.receive(0, Envelope { generation, message });
}

#[test]
fn a_rank_tells_its_vote_as_soon_as_it_goes_on_in_a_group_and_answers_nothing_before() {
    let prepare = Message::Prepare(super::message::Ballot::new(1, 0));
    let mut rank = one_of_three(true);
    hear(&mut rank, 0, prepare.clone());
    rank.linked(2);
    rank.last_words();
    assert_eq!(said(&mut rank), [], "it may still vote in the group before");
    rank.activate();
    assert!(matches!(&said(&mut rank)[..], [(0, Message::Vote(_)), (2, Message::Vote(_))]));
    rank.linked(2);
    assert!(matches!(&said(&mut rank)[..], [(2, Message::Vote(_))]), "peers do not know that it is active");
    hear(&mut rank, 0, prepare);
    assert!(matches!(&said(&mut rank)[..], [(0, Message::Promise(..))]));
}

#[test]
fn a_rank_tells_new_links_and_as_its_last_words_what_it_is_bound_to_and_nothing_otherwise() {
    let mut rank = one_of_three(false);
    rank.linked(2);
    rank.last_words();
    assert_eq!(said(&mut rank), []);
    hear(&mut rank, 0, Message::Prepare(super::message::Ballot::new(1, 0)));
    let _ = said(&mut rank);
    rank.linked(2);
    assert!(matches!(&said(&mut rank)[..], [(2, Message::Vote(_))]));
    rank.last_words();
    assert!(matches!(&said(&mut rank)[..], [(0, Message::Vote(_)), (2, Message::Vote(_))]));
}

#[test]
fn who_calls_no_more_says_so_once() {
    let reports = |said: Vec<(u32, Message)>| -> Vec<_> {
        let of = |(to, message)| match message {
            Message::Report(report) => (to, report.without.is_some(), report.out),
            other => panic!("{other:?}"),
        };
        said.into_iter().map(of).collect()
    };
    let mut rank = one_of_three(false);
    rank.withdraw();
    assert_eq!(said(&mut rank), [], "it has not called");
    rank.call(Ranks::new());
    rank.tick();
    assert_eq!(reports(said(&mut rank)), [(0, true, false), (2, true, false)]);
    rank.withdraw();
    assert_eq!(reports(said(&mut rank)), [(0, false, false), (2, false, false)]);
    rank.stand_down();
    assert_eq!(reports(said(&mut rank)), [(0, false, true), (2, false, true)]);
}

/// A rank that is behind is told what was decided, and one that is ahead is asked.
#[test]
fn messages_of_other_generations_are_answered_with_what_was_decided() {
    let report = || Message::Report(super::message::Report::default());
    let mut rank = one_of_three(false);
    hear(&mut rank, 1, report());
    assert!(matches!(&said(&mut rank)[..], [(0, Message::Report(_))]), "what was decided?");
    assert!(!rank.is_superseded(0));
    let members = Ranks::from([0, 1]);
    hear(&mut rank, 1, Message::Decided(members.clone()));
    assert!(rank.is_superseded(0) && !rank.is_superseded(1));
    assert_eq!(rank.verdict(), Verdict::Agreed { generation: 1, members: members.clone() });
    let _ = said(&mut rank);
    hear(&mut rank, 0, report());
    assert_eq!(said(&mut rank), [(0, Message::Decided(members))]);
    // A decision that is not newer changes nothing.
    hear(&mut rank, 1, Message::Decided(Ranks::from([1])));
    assert_eq!(rank.agreed(), (1, &Ranks::from([0, 1])));
}

#[test]
fn ranks_outside_a_group_are_not_heard_in_it() {
    let prepare = |rank: &mut Membership, from| {
        let message = Message::Prepare(super::message::Ballot::new(1, from));
        rank.receive(from, Envelope { generation: 1, message });
        said(rank).len()
    };
    let mut member = one_of_three(false);
    hear(&mut member, 1, Message::Decided([0, 1].into()));
    let _ = said(&mut member);
    assert_eq!((prepare(&mut member, 2), prepare(&mut member, 0)), (0, 1));
    assert!(member.reaches_all());
    member.lost(2, false);
    assert!(member.reaches_all(), "it is no member");
    member.lost(0, false);
    assert!(!member.reaches_all());
    assert_eq!(prepare(&mut member, 0), 0, "from where no path is any more");
    let mut outside = one_of_three(false);
    hear(&mut outside, 1, Message::Decided([0, 2].into()));
    let _ = said(&mut outside);
    assert_eq!(prepare(&mut outside, 0), 0);
    assert_eq!(outside.verdict(), Verdict::Excluded);
}

/// Rank 2 of four loses all others, and alone may decide nothing. It says so only once nothing has changed for a while.
#[test]
fn a_rank_that_reaches_too_few_is_cut_off_after_a_while() {
    let mut rank = Membership::new(2, vec![0, 1, 2, 3], false);
    [0, 1, 3].into_iter().for_each(|peer| rank.lost(peer, false));
    rank.call([0, 1, 3].into());
    let cut_off = |rank: &mut Membership| {
        let mut waits = |_: &u32| {
            rank.tick();
            rank.verdict() == Verdict::CutOff
        };
        (1..200).find(|tick| waits(tick))
    };
    let ticks = cut_off(&mut rank);
    assert!(ticks.is_some_and(|ticks| ticks >= 10), "{ticks:?}");
    // Each loss is news, and begins the while anew.
    let mut later = Membership::new(2, vec![0, 1, 2, 3], false);
    [0, 1].into_iter().for_each(|peer| later.lost(peer, false));
    later.call([0, 1, 3].into());
    for _ in 0..9 {
        later.tick();
        assert_eq!(later.verdict(), Verdict::Waiting(Ranks::new()));
    }
    later.lost(3, false);
    let ticks = cut_off(&mut later);
    assert!(ticks.is_some_and(|ticks| ticks >= 10), "{ticks:?}");
    // It can still be one of those who decide, with ranks 0 and 1.
    let mut awaits = Membership::new(2, vec![0, 1, 2, 3], false);
    awaits.lost(3, false);
    awaits.call([3].into());
    assert_eq!(cut_off(&mut awaits), None);
    assert_eq!(awaits.verdict(), Verdict::Waiting([0, 1].into()));
}
