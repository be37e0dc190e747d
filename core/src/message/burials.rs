//! Peers that have ended, of whose operations nobody has been told, in their order, and what has come of their next lives.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::line::Line;
use super::links::Arrival;
use super::member::Member;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::{Mutex, lock};

#[derive(Default)]
pub(super) struct Burials {
    /// In order; a thread may be at any of them. Locked after the engine's arrivals.
    queue: Mutex<VecDeque<Burial>>,
}

struct Burial {
    member: Arc<Member>,
    lines: Vec<Arc<Line>>,
    why: Error,
    /// Devices that copy have until then.
    settled: Deadline,
    /// A thread is at it.
    taken: bool,
    successors: Successors,
}

/// Links, and news of them, of later lives of a rank: served once its earlier life has ended.
pub(super) type Successors = VecDeque<(Arc<Member>, Arrival)>;

/// The end of a peer that this thread is at. Dropping it before [`Burials::remove`] leaves it to others.
pub(super) struct Taken<'a> {
    burials: &'a Burials,
    pub(super) member: Arc<Member>,
    pub(super) lines: Vec<Arc<Line>>,
    pub(super) why: Error,
    pub(super) settled: Deadline,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.burials.queue);
        if let Some(burial) = queue.iter_mut().find(|burial| Arc::ptr_eq(&burial.member, &self.member)) {
            burial.taken = false;
        }
    }
}

impl Burials {
    pub(super) fn add(&self, member: Arc<Member>, lines: Vec<Arc<Line>>, why: Error, settled: Deadline) {
        let successors = Successors::new();
        lock(&self.queue).push_back(Burial { member, lines, why, settled, taken: false, successors });
    }

    /// The first of a wanted rank that nobody is at. Lives of one rank end one after the other, and no rank waits for another one.
    pub(super) fn take(&self, is_wanted: impl Fn(u32) -> bool) -> Option<Taken<'_>> {
        let mut ranks = BTreeSet::new();
        let mut queue = lock(&self.queue);
        let burial = queue.iter_mut().find(|burial| {
            let rank = burial.member.rank;
            ranks.insert(rank) && !burial.taken && is_wanted(rank)
        })?;
        burial.taken = true;
        Some(Taken {
            burials: self,
            member: burial.member.clone(),
            lines: burial.lines.clone(),
            why: burial.why.clone(),
            settled: burial.settled,
        })
    }

    /// Takes the burial of `member` out, with what waits for it.
    pub(super) fn remove(&self, member: &Arc<Member>) -> Successors {
        let mut queue = lock(&self.queue);
        let place = queue.iter().position(|burial| Arc::ptr_eq(&burial.member, member));
        place.and_then(|place| queue.remove(place)).map(|burial| burial.successors).unwrap_or_default()
    }

    /// Whether a peer of a wanted rank is still to end.
    pub(super) fn have(&self, is_wanted: impl Fn(u32) -> bool) -> bool {
        lock(&self.queue).iter().any(|burial| is_wanted(burial.member.rank))
    }

    /// Has what came of `member` wait until an earlier life of its rank has ended, if one is to end.
    pub(super) fn hold_back(&self, member: Arc<Member>, arrival: Arrival) -> Option<(Arc<Member>, Arrival)> {
        let mut queue = lock(&self.queue);
        let is_other_life =
            |burial: &&mut Burial| burial.member.rank == member.rank && !Arc::ptr_eq(&burial.member, &member);
        match queue.iter_mut().rfind(is_other_life) {
            Some(burial) => burial.successors.push_back((member, arrival)),
            None => return Some((member, arrival)),
        }
        None
    }

    /// Whether links of `member` wait for an earlier life to end.
    pub(super) fn hold(&self, member: &Arc<Member>) -> bool {
        let queue = lock(&self.queue);
        queue.iter().flat_map(|burial| &burial.successors).any(|(held, _)| Arc::ptr_eq(held, member))
    }

    /// The members whose links wait for an earlier life to end.
    pub(super) fn held(&self) -> Vec<Arc<Member>> {
        let queue = lock(&self.queue);
        queue.iter().flat_map(|burial| &burial.successors).map(|(member, _)| member.clone()).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::bounds_tests::member_of;
    use super::*;
    use crate::error::ErrorKind;

    /// What came of the second life may reach nobody before the end of the first.
    #[test]
    fn lives_of_one_rank_end_one_after_the_other_and_those_of_another_meanwhile() {
        let burials = Burials::default();
        let lives = [(1, 0), (1, 1), (2, 0)].map(|(rank, life)| member_of(rank, life));
        for member in &lives {
            let why = Error::new(ErrorKind::PeerLost, "test", "it left");
            burials.add(member.clone(), Vec::new(), why, Deadline::after(std::time::Duration::ZERO));
        }
        let take = |expected: &Arc<Member>| {
            let taken = burials.take(|_| true).expect("one is to end");
            assert!(Arc::ptr_eq(&taken.member, expected), "{:?}", taken.member);
            taken
        };
        let first = take(&lives[0]);
        assert!(burials.take(|rank| rank == 1).is_none(), "a thread is at the first life");
        let other = take(&lives[2]);
        assert!(burials.take(|_| true).is_none());
        drop(first);
        let first = take(&lives[0]);
        burials.remove(&lives[0]);
        let second = take(&lives[1]);
        drop((first, other, second));
    }
}
