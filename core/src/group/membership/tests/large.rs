//! Groups of more than sixteen ranks, in which each rank reports to the four lowest only.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::{Group, said};
use crate::group::membership::agreement::{Membership, Verdict};
use crate::group::membership::message::{Ballot, Departed, Departure, Envelope, Message, Report, Vote};
use crate::group::membership::quorum::Ranks;

const SIZE: u32 = 20;

fn one_of_many(me: u32) -> Membership {
    Membership::new(me, (0..SIZE).collect(), false)
}

/// The receivers of what `rank` reports after its next tick.
fn receivers(rank: &mut Membership) -> Ranks {
    let _ = said(rank);
    for _ in 0..5 {
        rank.tick();
    }
    said(rank)
        .into_iter()
        .filter(|(_, message)| matches!(message, Message::Report(_)))
        .map(|(to, _)| to)
        .collect()
}

fn report_of(rank: &mut Membership, from: u32, report: Report) {
    rank.receive(from, Envelope { generation: 0, message: Message::Report(report) });
}

/// Rank 19 has died, 10 and 11 have lost each other, and the user of rank 5 calls last. Rank 0 decides; no report goes to a
/// rank that is not among the four lowest, unless in answer to its own.
#[test]
fn the_ranks_of_a_large_group_report_to_the_lowest_four_one_of_which_decides() {
    let mut group = Group::new(&(0..SIZE).collect::<Vec<_>>());
    group.kill(19);
    group.part(10, 11);
    group.call((0..19).filter(|rank| *rank != 5));
    let reported = RefCell::new(BTreeSet::new());
    let watch = |from: u32, to: u32, message: &Message| {
        assert!(!matches!(message, Message::Prepare(_)) || from == 0, "rank {from} decides");
        if matches!(message, Message::Report(_)) {
            reported.borrow_mut().insert((from, to));
        }
        false
    };
    group.pass(40, &watch);
    assert_eq!(group.ranks[0].verdict(), Verdict::Waiting([5].into()));
    assert_eq!(group.ranks[7].verdict(), Verdict::Waiting(Ranks::new()), "it awaits the four lowest");
    group.call([5]);
    group.pass(60, &watch);
    let members: Ranks = (0..19).filter(|rank| *rank != 11).collect();
    for rank in (0..19).filter(|rank| *rank != 11) {
        let agreed = Verdict::Agreed { generation: 1, members: members.clone() };
        assert_eq!(group.ranks[rank as usize].verdict(), agreed, "rank {rank}");
    }
    assert_eq!(group.ranks[11].verdict(), Verdict::Excluded);
    let expected = (0..19).flat_map(|from| (0..19).map(move |to| (from, to)));
    let expected: BTreeSet<_> = expected.filter(|(from, to)| from != to && (*from < 4 || *to < 4)).collect();
    assert_eq!(*reported.borrow(), expected);
}

/// Without rank 0, which has left, the lowest four are others: also for a rank that still has a path to it.
#[test]
fn a_rank_that_has_gone_decides_nothing_and_the_next_takes_its_place() {
    let mut rank = one_of_many(10);
    rank.call(Ranks::new());
    assert_eq!(rank.verdict(), Verdict::Waiting([0, 1, 2, 3].into()));
    assert_eq!(receivers(&mut rank), Ranks::from([0, 1, 2, 3]));
    let left = Departed { rank: 0, how: Departure::Left, witness: 1, vote: Vote::none(0) };
    report_of(&mut rank, 1, Report { departed: vec![left], ..Report::default() });
    assert_eq!(rank.verdict(), Verdict::Waiting([1, 2, 3, 4].into()));
    assert_eq!(receivers(&mut rank), Ranks::from([1, 2, 3, 4]));
    rank.lost(3, false);
    assert_eq!(receivers(&mut rank), Ranks::from([1, 2, 4, 5]));
    // Ranks that report to this one may await its report.
    report_of(&mut rank, 15, Report::default());
    assert_eq!(receivers(&mut rank), Ranks::from([1, 2, 4, 5, 15]));
    let mut decider = one_of_many(3);
    decider.call([7].into());
    let others = (0..SIZE).filter(|rank| ![3, 7].contains(rank)).collect();
    assert_eq!(decider.verdict(), Verdict::Waiting(others), "all report to it");
    // Of seventeen ranks each reports to the lowest, of sixteen to all.
    for (size, to) in [(17, Ranks::from([0, 1, 2, 3])), (16, (0..16).filter(|rank| *rank != 10).collect())] {
        let mut rank = Membership::new(10, (0..size).collect(), false);
        rank.call(Ranks::new());
        assert_eq!(receivers(&mut rank), to, "of {size}");
    }
}

/// A decider takes a path between two others for granted, because they do not hear each other; its own it must know, and
/// goes on without a rank that does not hear it once nothing has changed for a while.
#[test]
fn a_decider_proposes_ranks_that_do_not_hear_each_other_but_must_hear_it() {
    for heard in [false, true] {
        let mut rank = one_of_many(0);
        rank.call(Ranks::new());
        for from in 1..SIZE {
            let heard = if heard || from != 12 { Ranks::from([0]) } else { Ranks::new() };
            report_of(&mut rank, from, Report { without: Some(Ranks::new()), heard, ..Report::default() });
        }
        let _ = said(&mut rank);
        let begins = |rank: &mut Membership| {
            rank.tick();
            said(rank).iter().any(|(_, message)| matches!(message, Message::Prepare(_)))
        };
        let ticks = (1..200).find(|_| begins(&mut rank));
        assert!(
            ticks.is_some_and(|ticks| if heard { ticks == 1 } else { (20..=40).contains(&ticks) }),
            "{ticks:?}"
        );
        for from in 1..SIZE {
            let ballot = Ballot::new(1, 0);
            rank.receive(from, Envelope { generation: 0, message: Message::Promise(ballot, None) });
        }
        let proposed = said(&mut rank).into_iter().find_map(|(_, message)| match message {
            Message::Propose(_, members) => Some(members),
            _ => None,
        });
        assert_eq!(proposed, Some((0..SIZE).filter(|rank| heard || *rank != 12).collect()));
    }
}
