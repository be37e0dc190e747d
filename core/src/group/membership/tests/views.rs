//! The view of one rank: when it reports, whom it takes for gone, and which verdict follows from what the others say.

use super::{hear, one_of_three, said};
use crate::group::membership::agreement::{Membership, Verdict};
use crate::group::membership::message::{Ballot, Departure, Envelope, Message, Report, Vote};
use crate::group::membership::quorum::Ranks;

fn calling(without: &[u32]) -> Report {
    Report { without: Some(without.iter().copied().collect()), ..Report::default() }
}

fn report_of(rank: &mut Membership, from: u32, report: Report) {
    let generation = rank.agreed().0;
    rank.receive(from, Envelope { generation, message: Message::Report(report) });
}

/// The reports that `rank` sends with its next tick.
fn reports(rank: &mut Membership) -> Vec<(u32, Report)> {
    rank.tick();
    let report = |(to, message)| match message {
        Message::Report(report) => Some((to, report)),
        _ => None,
    };
    said(rank).into_iter().filter_map(report).collect()
}

#[test]
fn a_rank_reports_at_once_what_is_new_and_otherwise_now_and_then() {
    let mut rank = one_of_three(false);
    rank.call(Ranks::new());
    let pattern = |rank: &mut Membership, ticks: u32| -> Vec<bool> {
        (0..ticks).map(|_| !reports(rank).is_empty()).collect()
    };
    let repeated = [true, false, false, false, false, true, false];
    assert_eq!(pattern(&mut rank, 7), repeated);
    rank.linked(2);
    assert_eq!(pattern(&mut rank, 7), repeated, "a new link is news");
    report_of(&mut rank, 0, Report::default());
    assert_eq!(said(&mut rank), [], "its own report is enough for an answer");
    assert_eq!(pattern(&mut rank, 7), repeated, "another rank is heard for the first time");
    for turn in 0..4 {
        report_of(&mut rank, 0, Report::default());
        assert_eq!(pattern(&mut rank, 1), [turn == 3], "the same again is no news");
    }
    // A rank that is out answers the first report, because it does not report by itself.
    let mut out = one_of_three(false);
    out.stand_down();
    let _ = said(&mut out);
    for answers in [2, 0] {
        report_of(&mut out, 0, Report::default());
        assert_eq!(said(&mut out).len(), answers);
    }
}

#[test]
fn a_rank_that_has_seen_the_end_of_a_process_of_its_host_is_its_witness() {
    for same_host in [false, true] {
        let mut rank = one_of_three(false);
        rank.set_hosts(vec![0, 1, if same_host { 1 } else { 2 }]);
        rank.call(Ranks::new());
        rank.lost(2, true);
        let said = reports(&mut rank);
        let [(0, report)] = &said[..] else { panic!("{said:?}") };
        let seen: Vec<_> = report.departed.iter().map(|gone| (gone.rank, gone.how, gone.witness)).collect();
        let died = (2, Departure::Died, 1);
        assert_eq!(seen, if same_host { vec![died] } else { vec![] });
    }
}

/// The number of ticks until the verdict is `wanted`; before each, `each` happens.
fn ticks_until(
    rank: &mut Membership,
    wanted: &Verdict,
    mut each: impl FnMut(&mut Membership),
) -> Option<u32> {
    (1..100).find(|_| {
        each(rank);
        rank.tick();
        rank.verdict() == *wanted
    })
}

/// Rank 2 of five reaches rank 1 only. Reports delay the verdict while they say something new.
#[test]
fn a_rank_is_cut_off_once_nothing_new_comes() {
    let cut_off = |each: &mut dyn FnMut(&mut Membership)| {
        let mut rank = Membership::new(2, vec![0, 1, 2, 3, 4], false);
        [0, 3, 4].into_iter().for_each(|peer| rank.lost(peer, false));
        rank.call(Ranks::new());
        report_of(&mut rank, 1, calling(&[]));
        ticks_until(&mut rank, &Verdict::CutOff, each)
    };
    assert_eq!(cut_off(&mut |_| {}), Some(10), "it makes no attempt");
    assert_eq!(cut_off(&mut |rank| report_of(rank, 1, calling(&[]))), Some(10));
    let mut news = (0..20_u32).map(|turn| Report { heard: [turn % 5].into(), ..calling(&[]) });
    let ticks = cut_off(&mut |rank| {
        if let Some(report) = news.next() {
            report_of(rank, 1, report);
        }
    });
    assert_eq!(ticks, Some(29), "ten after the last news");
}

#[test]
fn who_leaves_out_other_ranks_is_named_unless_one_leaves_out_the_other() {
    let verdict = |mine: &[u32], from: u32, theirs: &[u32]| {
        let mut rank = Membership::new(1, vec![0, 1, 2, 3], false);
        rank.call(mine.iter().copied().collect());
        report_of(&mut rank, from, calling(theirs));
        rank
    };
    for (mine, theirs, named) in [
        (&[3][..], &[2][..], true),
        (&[], &[2], true),
        (&[3], &[3], false),
        (&[3], &[1], false),
        (&[3], &[1, 3], false),
        (&[0], &[2], false),
    ] {
        let rank = verdict(mine, 0, theirs);
        assert_eq!(rank.verdict() == Verdict::Differs(0), named, "{mine:?} {theirs:?}: {:?}", rank.verdict());
    }
    // The other withdraws because of the same difference: that makes no other error of it.
    let mut rank = verdict(&[3], 0, &[2]);
    report_of(&mut rank, 0, Report { out: true, ..Report::default() });
    assert_eq!(rank.verdict(), Verdict::Differs(0));
}

#[test]
fn a_member_that_completed_the_generation_ends_it_for_the_others() {
    for (generation, completed) in [(0, true), (0, false), (1, true)] {
        let mut rank = one_of_three(false);
        rank.call(Ranks::new());
        rank.receive(
            0,
            Envelope { generation: 0, message: Message::Vote(Vote { completed, ..Vote::none(generation) }) },
        );
        let ends = generation == 0 && completed;
        assert_eq!(rank.verdict() == Verdict::Completed, ends, "{generation} {completed}");
    }
}

/// Calls in the generation before do not count, those in the one that is being made do.
#[test]
fn a_call_for_a_later_generation_supersedes_the_one_that_is_being_made() {
    let mut rank = one_of_three(false);
    report_of(&mut rank, 0, calling(&[]));
    let members = Ranks::from([0, 1, 2]);
    hear(&mut rank, 1, Message::Decided(members.clone()));
    assert_eq!(rank.take(), members);
    assert!(!rank.is_superseded(1));
    report_of(&mut rank, 0, Report::default());
    assert!(!rank.is_superseded(1));
    report_of(&mut rank, 0, calling(&[]));
    assert!(rank.is_superseded(1));
}

fn proposed(rank: &mut Membership) -> Option<Ranks> {
    said(rank).into_iter().find_map(|(_, message)| match message {
        Message::Propose(_, members) => Some(members),
        _ => None,
    })
}

fn promise(rank: &mut Membership, from: u32) {
    rank.receive(from, Envelope { generation: 0, message: Message::Promise(Ballot::new(1, 0), None) });
}

/// Rank 2 is out, and all hear each other: it votes, but is not proposed.
#[test]
fn only_ranks_whose_users_call_become_members() {
    let mut rank = Membership::new(0, vec![0, 1, 2], false);
    let heard = Ranks::from([0, 1, 2]);
    rank.call(Ranks::new());
    report_of(&mut rank, 1, Report { heard: heard.clone(), ..calling(&[]) });
    report_of(&mut rank, 2, Report { out: true, heard, ..Report::default() });
    rank.tick();
    promise(&mut rank, 2);
    assert_eq!(proposed(&mut rank), Some([0, 1].into()));
}

/// Ranks 0 and 1 of five leave out rank 4, ranks 2 and 3 are out. Two members are too few for a group of five unless the one
/// that they leave out votes, too, however many others do.
#[test]
fn members_are_proposed_once_those_who_are_left_out_have_voted_as_far_as_they_are_needed() {
    let mut rank = Membership::new(0, vec![0, 1, 2, 3, 4], false);
    let heard: Ranks = (0..5).collect();
    rank.call([4].into());
    report_of(&mut rank, 1, Report { heard: heard.clone(), ..calling(&[4]) });
    for from in [2, 3] {
        report_of(&mut rank, from, Report { out: true, heard: heard.clone(), ..Report::default() });
    }
    rank.tick();
    for from in [1, 2, 3] {
        promise(&mut rank, from);
        assert_eq!(proposed(&mut rank), None, "rank {from} has promised");
    }
    promise(&mut rank, 4);
    assert_eq!(proposed(&mut rank), Some([0, 1].into()));
}

/// Ranks 1 and 2 of five have heard each other, and one of them has lost the other since.
#[test]
fn a_path_that_one_end_has_lost_is_none() {
    for loser in [1, 2] {
        let mut rank = Membership::new(0, vec![0, 1, 2, 3, 4], false);
        rank.call(Ranks::new());
        for from in 1..5 {
            let unreachable = if from == loser { Ranks::from([3 - loser]) } else { Ranks::new() };
            report_of(&mut rank, from, Report { unreachable, heard: (0..5).collect(), ..calling(&[]) });
        }
        rank.tick();
        (1..5).for_each(|from| promise(&mut rank, from));
        assert_eq!(proposed(&mut rank), Some([0, 1, 3, 4].into()), "rank {loser} has lost the other");
    }
}

/// Ranks that begin attempts at the same time do not begin the next ones at the same time: each waits longer than those before it in
/// the group.
#[test]
fn the_next_attempt_comes_the_later_the_more_members_are_before_this_rank() {
    let ticks_between = |group: &[u32]| {
        let me = 4;
        let mut rank = Membership::new(me, (0..6).collect(), false);
        hear(&mut rank, 1, Message::Decided(group.iter().copied().collect()));
        let before: Ranks = group.iter().copied().filter(|rank| *rank < me).collect();
        rank.take();
        rank.call(before.clone());
        report_of(&mut rank, 5, Report { without: Some(before), heard: [4].into(), ..Report::default() });
        let next = |rank: &mut Membership| {
            let begins =
                |said: Vec<(u32, Message)>| said.iter().any(|(_, m)| matches!(m, Message::Prepare(_)));
            (1..200).find(|_| {
                rank.tick();
                begins(said(rank))
            })
        };
        let _ = said(&mut rank);
        (next(&mut rank), next(&mut rank)).1.expect("it tries again")
    };
    let [first, second, third] = [&[0, 4, 5][..], &[0, 3, 4, 5], &[0, 2, 3, 4, 5]].map(ticks_between);
    assert!(first < second && second < third, "{first} {second} {third}");
}
