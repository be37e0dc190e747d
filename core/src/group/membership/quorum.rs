//! The rule for which ranks may go on, which all sides compute alike, and the choice where several groups could.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

/// A set of ranks.
pub(crate) type Ranks = BTreeSet<u32>;

/// How many choices the search for the largest candidate tries before it settles for the best so far.
const MAX_CHOICES: u32 = 20_000;

/// Whether `voters` may decide for `group`: more than half of it, or half of it with its lowest rank, after `departed`
/// ranks are subtracted. Two sets of voters of which both may have a rank in common.
pub(super) fn may_decide(group: &Ranks, departed: &Ranks, voters: &Ranks) -> bool {
    let electorate: Ranks = group.difference(departed).copied().collect();
    let votes = electorate.intersection(voters).count();
    let lowest = electorate.first().is_some_and(|rank| voters.contains(rank));
    votes * 2 > electorate.len() || (votes * 2 == electorate.len() && lowest)
}

/// The largest subset of `ranks` of which all pairs are `linked`, and of several the one that comes first in order. Exact
/// while few pairs are not linked, otherwise nearly so; the same at every rank that asks with the same arguments.
pub(super) fn largest_linked(ranks: &Ranks, linked: impl Fn(u32, u32) -> bool) -> Ranks {
    let ranks: Vec<u32> = ranks.iter().copied().collect();
    let apart: Vec<(u32, u32)> = (0..ranks.len())
        .flat_map(|i| ranks[i + 1..].iter().map(move |b| (i, *b)))
        .map(|(i, b)| (ranks[i], b))
        .filter(|(a, b)| !linked(*a, *b))
        .collect();
    let mut search = Search { apart, best: Ranks::new(), choices: 0 };
    search.run(ranks.into_iter().collect());
    search.best
}

struct Search {
    apart: Vec<(u32, u32)>,
    best: Ranks,
    choices: u32,
}

impl Search {
    fn run(&mut self, ranks: Ranks) {
        self.choices += 1;
        if ranks.len() < self.best.len() || (self.choices > MAX_CHOICES && !self.best.is_empty()) {
            return;
        }
        let left = |ranks: &Ranks, (a, b): (u32, u32)| ranks.contains(&a) && ranks.contains(&b);
        let Some(&(a, b)) = self.apart.iter().find(|pair| left(&ranks, **pair)) else {
            if ranks.len() > self.best.len() || ranks < self.best {
                self.best = ranks;
            }
            return;
        };
        // First without the one that is apart from more of the others, so that the first answer is a good one.
        let degree = |rank: u32| {
            let with = self.apart.iter().filter(|(a, b)| *a == rank || *b == rank);
            with.filter(|pair| left(&ranks, **pair)).count()
        };
        let order = if degree(a) > degree(b) { [a, b] } else { [b, a] };
        for rank in order {
            let mut fewer = ranks.clone();
            fewer.remove(&rank);
            self.run(fewer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(of: &[u32]) -> Ranks {
        of.iter().copied().collect()
    }

    #[test]
    fn more_than_half_or_half_with_the_lowest_and_the_departed_do_not_count() {
        let (all, none) = (ranks(&[0, 1, 2, 3]), Ranks::new());
        for (departed, voters, may) in [
            (&none, ranks(&[1, 2, 3]), true),
            (&none, ranks(&[0, 3]), true),
            (&none, ranks(&[1, 2]), false),
            (&none, ranks(&[0]), false),
            (&ranks(&[0]), ranks(&[1, 2]), true),
            (&ranks(&[0, 1]), ranks(&[2]), true),
            (&ranks(&[0, 1]), ranks(&[3]), false),
            (&ranks(&[0, 1]), ranks(&[0, 1, 3]), false),
            (&all, none.clone(), false),
        ] {
            let may_be = !all.is_subset(departed) && may;
            assert_eq!(may_decide(&all, departed, &voters), may_be, "{departed:?} {voters:?}");
        }
    }

    #[test]
    fn two_sets_that_may_decide_meet() {
        for size in 1..=6_u32 {
            let all: Ranks = (0..size).collect();
            let of = |bits: u32| all.iter().copied().filter(|r| bits >> r & 1 == 1).collect::<Ranks>();
            for departed in 0..1 << size {
                for (a, b) in (0..1_u32 << size).flat_map(|a| (0..1_u32 << size).map(move |b| (a, b))) {
                    let live = [a, b].map(|bits| of(bits & !departed));
                    if live.iter().all(|voters| may_decide(&all, &of(departed), voters)) {
                        assert!(!live[0].is_disjoint(&live[1]), "{live:?} without {departed:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_linked_set_is_found_and_the_lower_ranks_are_preferred() {
        let apart = |pairs: &'static [(u32, u32)]| {
            move |a: u32, b: u32| !pairs.contains(&(a, b)) && !pairs.contains(&(b, a))
        };
        let all: Ranks = (0..5).collect();
        assert_eq!(largest_linked(&all, apart(&[])), all);
        assert_eq!(largest_linked(&all, apart(&[(0, 1)])), ranks(&[0, 2, 3, 4]));
        assert_eq!(largest_linked(&all, apart(&[(0, 1), (0, 2)])), ranks(&[1, 2, 3, 4]));
        assert_eq!(largest_linked(&all, apart(&[(0, 1), (2, 3), (0, 4)])), ranks(&[1, 2, 4]));
        assert_eq!(largest_linked(&all, |_, _| false), ranks(&[0]));
        // Of two of the same size that are found, the first in order counts, not the one that was found first.
        assert_eq!(largest_linked(&ranks(&[0, 1, 2, 3]), apart(&[(0, 2), (0, 3), (1, 3)])), ranks(&[0, 1]));
    }

    /// Two dozen pairs have millions of answers of one size, and a full search of a few that are apart from many would take
    /// as long.
    #[test]
    fn a_search_among_many_broken_paths_ends_soon_with_a_good_answer() {
        let pairs: Ranks = (0..48).collect();
        let evens: Ranks = (0..48).step_by(2).collect();
        assert_eq!(largest_linked(&pairs, |a, b| a / 2 != b / 2), evens);
        let all: Ranks = (0..30).collect();
        for few in [(0..10), (20..30)] {
            let many: Ranks = all.iter().copied().filter(|rank| !few.contains(rank)).collect();
            assert_eq!(largest_linked(&all, |a, b| few.contains(&a) == few.contains(&b)), many, "{few:?}");
        }
    }
}
