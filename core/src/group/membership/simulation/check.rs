//! Invariants that hold whenever a process of a simulated job has got a communicator.

use std::collections::BTreeMap;

use super::Time;
use super::job::Job;
use super::process::Name;
use crate::group::membership::quorum::{Ranks, may_decide};

/// Runs `job` until `end`, and checks it whenever `shrink` has returned a communicator.
pub(super) fn run(job: &mut Job, end: Time) {
    while job.step(end) {
        if std::mem::take(&mut job.made_one) {
            check(job);
        }
    }
    check(job);
}

/// Whether the processes that have `name` can agree on anything, all that is gone among them subtracted.
fn is_able(job: &Job, name: &Name) -> bool {
    // The last group that was agreed over its links.
    let communicators =
        job.processes.iter().flat_map(|process| &process.communicators).filter(|one| one.name == *name);
    let latest = communicators.max_by_key(|one| one.membership.agreed().0).expect("somebody has it");
    let members: Ranks =
        latest.membership.agreed().1.iter().map(|rank| latest.ranks[*rank as usize]).collect();
    let current = |rank: &&u32| {
        let process = &job.processes[**rank as usize];
        process.communicators[process.current].name == *name
    };
    // A process that went on in a later communicator is bound there, also after its end.
    let gone = members.iter().filter(current).filter(|rank| !job.is_there(**rank)).copied().collect();
    let voters = members.iter().filter(current).filter(|rank| job.is_there(**rank)).copied().collect();
    may_decide(&members, &gone, &voters)
}

/// Never two groups that can go on, and never one without a rank that all its members reach.
fn check(job: &Job) {
    // Communicators that some process has, and when the first call for it began.
    let mut made: BTreeMap<&Name, Time> = BTreeMap::new();
    for (name, began) in job.processes.iter().flat_map(|process| &process.returned) {
        let first = made.entry(name).or_insert(*began);
        *first = (*first).min(*began);
    }
    // One whose other members went on without this process is a dead end: of those it can make no other.
    let able: Vec<&Name> = made.keys().copied().filter(|name| is_able(job, name)).collect();
    assert!(able.len() <= 1, "seed {}: two groups: {able:?}", job.seed);
    let followed = |name: &Name| made.keys().any(|later| later.len() > name.len() && later.starts_with(name));
    for (name, began) in &made {
        let rival = made.keys().find(|other| other.len() == name.len() && *other != name && followed(other));
        assert!(!followed(name) || rival.is_none(), "seed {}: {name:?} and {rival:?}", job.seed);
        let members = &name.last().expect("it has members").1;
        let up = |a: u32, b: u32| job.broken.get(&(a, b)).is_none_or(|at| at > began);
        let reached = |d: u32| members.iter().all(|m| up(d, *m) && up(*m, d));
        assert!(
            members.iter().any(|d| reached(*d)),
            "seed {}: {members:?} have no rank that all reach",
            job.seed
        );
    }
}
