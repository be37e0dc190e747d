//! How peers end: outside of the turn in which they are found lost, because devices may still copy for their operations. They end one after the
//! other, and links of a rank's next life are served after that.
#![forbid(unsafe_code)]

use std::sync::{Arc, TryLockError};

use super::burials::Burial;
use super::engine::{Engine, Turn};
use super::inbox::Item;
use super::line::Line;
use super::links::Arrival;
use super::member::Member;
use super::transfers::settled;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::{Ordering, lock};

impl Engine {
    /// Ends `member` because of `why`: everything under way with it ends, once, after the turn.
    pub(super) fn lose(&self, turn: &mut Turn, member: &Arc<Member>, why: &Error) {
        if let Some(lines) = member.finish(why) {
            self.add_burial(member, lines, why, settled());
            turn.lost = true;
        }
    }

    /// Has what is under way with a peer that has ended because of `why`, on its `lines`, ended by [`bury`](Self::bury) or
    /// [`bury_all`](Self::bury_all). Devices that copy have until `settled`.
    pub(super) fn add_burial(
        &self,
        member: &Arc<Member>,
        lines: Vec<Arc<Line>>,
        why: &Error,
        settled: Deadline,
    ) {
        let mut members = lock(&self.members);
        if members.get(&member.rank).is_some_and(|known| Arc::ptr_eq(known, member)) {
            members.remove(&member.rank);
        }
        drop(members);
        self.burials.add(member.clone(), lines, why.clone(), settled);
    }

    /// Ends what is under way with peers that have ended, unless another thread is at it: that one sees to all of them. Call it without
    /// the turn, which others take meanwhile.
    pub(super) fn bury(&self) {
        loop {
            let at_it = match self.burials.at_it.try_lock() {
                Ok(at_it) => at_it,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.bury_in_order();
            drop(at_it);
            // Whoever has added one since, and has seen this thread at it, relies on it.
            if lock(&self.burials.queue).is_empty() {
                return;
            }
        }
    }

    /// As [`bury`](Self::bury); also waits for another thread that is at it.
    pub(super) fn bury_all(&self) {
        let at_it = lock(&self.burials.at_it);
        self.bury_in_order();
        drop(at_it);
        self.bury();
    }

    /// The caller is the one at it.
    fn bury_in_order(&self) {
        loop {
            let mut queue = lock(&self.burials.queue);
            let Some(Burial { member, lines, why, settled, .. }) = queue.front_mut() else { return };
            let (member, lines, why, settled) =
                (member.clone(), std::mem::take(lines), why.clone(), *settled);
            drop(queue);
            self.end_operations(&member, lines, &why, settled);
            let mut arrivals = lock(&self.arrivals);
            let ended = lock(&self.burials.queue).pop_front();
            let mut successors = ended.map(|burial| burial.successors).unwrap_or_default();
            if successors.is_empty() {
                continue;
            }
            let held: Vec<Arc<Member>> = successors.iter().map(|(member, _)| member.clone()).collect();
            // Before what has come since.
            successors.append(&mut arrivals);
            *arrivals = successors;
            self.has_arrivals.store(true, Ordering::Release);
            drop(arrivals);
            self.hub.wake();
            // Sending may have failed on a link that was not served.
            held.iter().for_each(Member::leave_to_progress);
        }
    }

    fn end_operations(&self, member: &Arc<Member>, lines: Vec<Arc<Line>>, why: &Error, settled: Deadline) {
        for line in lines {
            line.end();
            member.fail(&line, why, settled);
        }
        // It may have come and gone between two turns.
        member.arrive();
        member.deliver(Item::Gone(why.clone()));
        match self.turn.try_lock() {
            Ok(mut turn) => self.forget(&mut turn, member),
            // The thread that makes progress forgets the links at the end of its turn, and with them their descriptors.
            Err(_) => member.mark_dirty(),
        }
    }

    /// The next arrival that does not wait for an earlier life of its rank to end.
    pub(super) fn next_arrival(&self) -> Option<(Arc<Member>, Arrival)> {
        let mut arrivals = lock(&self.arrivals);
        let mut queue = lock(&self.burials.queue);
        while let Some((member, arrival)) = arrivals.pop_front() {
            let is_earlier = |burial: &&mut Burial| {
                burial.member.rank == member.rank && !Arc::ptr_eq(&burial.member, &member)
            };
            match queue.iter_mut().rfind(is_earlier) {
                Some(burial) => burial.successors.push_back((member, arrival)),
                None => return Some((member, arrival)),
            }
        }
        None
    }
}
