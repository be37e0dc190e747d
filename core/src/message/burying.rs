//! How peers end: outside of the turn in which they are found lost, because devices may still copy for their operations. The lives of a rank
//! end one after the other, and links of the next one are served after that.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::burials::Taken;
use super::engine::{Engine, Turn};
use super::inbox::Item;
use super::line::Line;
use super::links::Arrival;
use super::member::Member;
use super::transfers::settled;
use crate::deadline::{Backoff, Deadline};
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

    /// Ends what is under way with peers that have ended, those left out that another thread is at. Call it without the turn, which others
    /// take meanwhile.
    pub(super) fn bury(&self) {
        while let Some(taken) = self.burials.take(|_| true) {
            self.end_one(taken);
        }
    }

    /// As [`bury`](Self::bury); also waits for other threads that are at it.
    pub(super) fn bury_all(&self) {
        let mut backoff = Backoff::new();
        loop {
            self.bury();
            if !self.burials.have(|_| true) {
                return;
            }
            backoff.pause(settled());
        }
    }

    /// Ends what is under way with `members`, which have ended, and waits for other threads that are at it; for a device that
    /// does not come to an end, until `limit`.
    pub(super) fn bury_these(&self, members: &[Arc<Member>], limit: Deadline) {
        let is_wanted = |rank: u32| members.iter().any(|member| member.rank == rank);
        let mut backoff = Backoff::new();
        loop {
            while let Some(taken) = self.burials.take(is_wanted) {
                self.end_one(taken);
            }
            if !self.burials.have(is_wanted) || limit.expired() {
                return;
            }
            backoff.pause(limit);
        }
    }

    fn end_one(&self, taken: Taken<'_>) {
        self.end_operations(&taken);
        let mut arrivals = lock(&self.arrivals);
        let mut successors = self.burials.remove(&taken.member);
        if successors.is_empty() {
            return;
        }
        let held: Vec<Arc<Member>> = successors.iter().map(|(member, _)| member.clone()).collect();
        // Before what has come since.
        successors.append(&mut arrivals);
        *arrivals = successors;
        self.has_arrivals.store(true, Ordering::Release);
        drop(arrivals);
        self.hub.alarm.wake();
        // Sending may have failed on a link that was not served.
        held.iter().for_each(Member::leave_to_progress);
    }

    fn end_operations(&self, Taken { member, lines, why, settled, .. }: &Taken<'_>) {
        for line in lines {
            line.end();
            member.fail(line, why, *settled);
        }
        // It may have come and gone between two turns.
        member.arrive();
        // Before the news is there: another thread may dispatch it at once.
        member.hub.departures.add(member.rank, member.clone());
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
        while let Some((member, arrival)) = arrivals.pop_front() {
            let next = self.burials.hold_back(member, arrival);
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::bounds_tests::member_of;
    use super::*;
    use crate::error::ErrorKind;

    /// Otherwise messages of a later life would come before those of an earlier one.
    #[test]
    fn what_waited_for_an_earlier_life_to_end_is_served_before_what_came_later() {
        let lives = [0, 1, 2].map(|life| member_of(1, life));
        let engine = Engine::new(lives[0].hub.clone(), std::time::Duration::MAX).unwrap();
        let why = Error::new(ErrorKind::PeerLost, "test", "it left");
        engine.add_burial(&lives[0], Vec::new(), &why, settled());
        engine.replace(lives[1].clone(), true);
        assert!(engine.next_arrival().is_none(), "it waits for the first life");
        engine.replace(lives[2].clone(), true);
        engine.bury();
        for (life, expected) in lives.iter().enumerate().skip(1) {
            let (member, _) = engine.next_arrival().expect("nothing waits any more");
            assert!(Arc::ptr_eq(&member, expected), "life {life} is not the next one: {member:?}");
        }
        // The lists of a hub hold members, which hold their hub.
        for life in &lives {
            life.hub.clear();
            life.hub.departures.clear();
            while life.hub.take_ready().is_some() {}
        }
    }

    /// A third life may have connected, so that nobody else knows the second one.
    #[test]
    fn a_life_that_waits_for_an_earlier_one_ends_with_its_messenger() {
        let lives = [0, 1].map(|life| member_of(1, life));
        let engine = Engine::new(lives[0].hub.clone(), std::time::Duration::MAX).unwrap();
        let why = Error::new(ErrorKind::PeerLost, "test", "it left");
        engine.add_burial(&lives[0], Vec::new(), &why, settled());
        engine.replace(lives[1].clone(), false);
        assert!(engine.next_arrival().is_none(), "it waits for the first life");
        engine.leave(Deadline::after(std::time::Duration::ZERO)).1.unwrap();
        assert!(lives[1].end().is_some());
        for life in &lives {
            life.hub.clear();
            life.hub.departures.clear();
            while life.hub.take_ready().is_some() {}
        }
    }

    /// All that was under way has ended when a peer is closed.
    #[test]
    fn whoever_closes_a_peer_waits_for_the_thread_that_ends_it() {
        let member = member_of(1, 0);
        let engine = Engine::new(member.hub.clone(), std::time::Duration::MAX).unwrap();
        let why = Error::new(ErrorKind::PeerLost, "test", "it left");
        engine.add_burial(&member, Vec::new(), &why, settled());
        let taken = engine.burials.take(|_| true).expect("one is to end");
        let soon = Deadline::after(std::time::Duration::from_secs(30));
        std::thread::scope(|scope| {
            let closes = scope.spawn(|| engine.bury_these(std::slice::from_ref(&member), soon));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!closes.is_finished());
            drop(taken);
        });
        assert!(!engine.burials.have(|_| true));
        member.inbox.drain();
        member.hub.clear();
        member.hub.departures.clear();
        while member.hub.take_ready().is_some() {}
    }
}
