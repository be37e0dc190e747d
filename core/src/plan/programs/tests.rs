//! The programs are right.

use super::super::check::check;
use super::judge::{right, runs};
use super::{all, all_reduce, synchronised};

#[test]
fn programs_are_right() {
    for ranks in [2, 3, 4] {
        all(ranks).into_iter().for_each(|program| right(&synchronised(program)));
        runs(&synchronised(all_reduce::two_shot_packets(ranks)));
    }
    for plan in all(8).into_iter().map(synchronised) {
        assert_eq!(check(&plan), [], "{}", plan.name);
    }
    right(&synchronised(all_reduce::recursive_halving(16)));
}

#[test]
fn a_plan_of_1024_ranks_is_checked() {
    let mut plan = synchronised(all_reduce::recursive_halving(1024));
    assert_eq!(check(&plan), []);
    // The last exchange of one rank takes a chunk that is its partner's.
    super::super::samples::change(&mut plan, 700, 0, 9, |moved| {
        moved.sources[0].first ^= 1;
        moved.targets[0].first ^= 1;
    });
    let findings = check(&plan);
    assert!(!findings.is_empty());
    assert!(findings.iter().any(|finding| finding.to_string().contains("rank 700 block 0")), "{findings:?}");
}
