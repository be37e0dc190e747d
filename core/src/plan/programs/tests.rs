//! The programs are right.

use super::super::check::check;
use super::super::program::ReplicationPolicy;
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

#[test]
fn compiled_programs_are_right() {
    let every = |ranks| all(ranks).into_iter().chain([all_reduce::two_shot_packets(ranks)]);
    for ranks in [2, 3] {
        every(ranks).for_each(|program| right(&program.compile().unwrap()));
        for policy in [ReplicationPolicy::Interleaved, ReplicationPolicy::None] {
            every(ranks)
                .for_each(|program| right(&program.instances(2).replication(policy).compile().unwrap()));
        }
    }
    for plan in every(4).map(|program| program.instances(3).compile().unwrap()) {
        assert_eq!(check(&plan), [], "{}", plan.name);
    }
}
