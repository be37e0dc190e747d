//! Has descriptors tell of what comes, for a thread that is about to sleep, and for those that sleep while another one has made progress.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::engine::{Engine, Turn};
use crate::error::Error;
use crate::net::ready::{READ, WRITE};
use crate::sync::Ordering;

impl Engine {
    /// Called at the end of a turn. Sees to it that a thread that fell asleep before misses nothing while this one runs callbacks or does
    /// not make progress: reading a link has disarmed its doorbell, and may have taken its byte from under the sleeper.
    ///
    /// A relaxed load finds the sleeper: it has announced itself before it took the turn in which it armed links and fell asleep. If that
    /// turn was before this one, the turn's lock orders the announcement before the load. If it comes later, the sleeper arms what
    /// this turn has left.
    #[inline]
    pub(super) fn relieve(&self, turn: &mut Turn) {
        if turn.unannounced && self.hub.alarm.has_sleepers() {
            self.relieve_for_sleepers(turn);
        }
    }

    /// Arming costs less than a thread that wakes up to do it.
    #[cold]
    fn relieve_for_sleepers(&self, turn: &mut Turn) {
        if self.announce(turn) {
            self.hub.alarm.wake();
        }
    }

    /// Has descriptors tell of all that can happen from here on. True if there is something to do that no descriptor tells of.
    pub(super) fn announce(&self, turn: &mut Turn) -> bool {
        let mut busy = self.has_arrivals.load(Ordering::Acquire) || self.hub.has_ready();
        // No descriptor tells of memory that is still to be copied or served.
        busy |= turn.unsent.iter().any(|member| member.waits_for_turn());
        busy |= turn.leaving.iter().any(|member| member.has_left());
        let links = &mut turn.links;
        turn.polled.retain(|token| {
            let Some(link) = links.get_mut(*token) else { return false };
            // Something that has arrived may show on no descriptor: the link stays polled. An error shows when it is read.
            link.polled = link.wire.arm().unwrap_or(true);
            if link.wire.take_room() {
                // Others sleep already, and the thread that takes the news here may never make progress.
                link.member.found_room();
                busy = true;
            }
            busy |= link.polled;
            link.polled
        });
        let mut failed = Vec::new();
        for (token, link) in turn.links.iter_mut() {
            let wanted = turn.unsent.iter().any(|member| Arc::ptr_eq(member, &link.member))
                && link.wire.waits_for_room();
            if wanted != link.wants_room {
                let Some(fd) = link.wire.descriptors().into_iter().next() else { continue };
                match self.epoll.modify(fd, READ | if wanted { WRITE } else { 0 }, token) {
                    Ok(()) => link.wants_room = wanted,
                    Err(error) => {
                        failed.push((token, Error::system("wait", "cannot watch a connection", error)));
                    }
                }
            }
        }
        for (token, error) in failed {
            self.fail(turn, token, &error);
            busy = true;
        }
        // There is something to dispatch once what was lost has been ended.
        busy |= turn.lost;
        turn.unannounced = busy;
        busy
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::super::bounds_tests::member_of;
    use super::super::handshake::Handshake;
    use super::*;
    use crate::sync::lock;

    /// The last handshake may end after progress has looked and before anybody sleeps. Nothing would tell of that.
    #[test]
    fn nobody_sleeps_while_a_peer_that_has_left_is_to_end() {
        let member = member_of(1, 0);
        let engine = Engine::new(member.hub.clone(), Duration::MAX).unwrap();
        let mut turn = Turn::default();
        let handshake = Handshake::begin(&member.hub, member.rank, member.generation);
        turn.leaving.push(member);
        assert!(!engine.announce(&mut turn), "another link is being made");
        drop(handshake);
        assert!(engine.announce(&mut turn));
    }

    /// The first sleep would never end, and the descriptor would stay readable for good once it was woken.
    #[test]
    fn an_event_loop_that_is_armed_twice_is_awake_at_once() {
        let hub = member_of(1, 0).hub.clone();
        let engine = Engine::new(hub, Duration::MAX).unwrap();
        assert!(!engine.arm().unwrap() && !engine.arm().unwrap());
        lock(&engine.turn).disarm(&engine.hub.alarm);
        assert!(!engine.hub.alarm.has_sleepers());
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use crate::message::alarm::Alarm;
    use crate::sync::{Mutex, lock};

    /// The order of a sleeper's announcement and a reader's look for it; what a turn leaves unannounced is not in this model.
    ///
    /// One thread arms a link in its turn and sleeps. Another one has read the link in its turn, and arms it again if it finds a sleeper.
    fn model(announces_first: bool) {
        loom::model(move || {
            let state = Arc::new((Alarm::new().unwrap(), Mutex::new(true)));
            let other = state.clone();
            let sleeper = thread::spawn(move || {
                let (alarm, armed) = &*other;
                let early = announces_first.then(|| alarm.fall_asleep());
                *lock(armed) = true;
                early.unwrap_or_else(|| alarm.fall_asleep())
            });
            let (alarm, armed) = &*state;
            let mut turn = lock(armed);
            *turn = alarm.has_sleepers();
            drop(turn);
            let sleeper = sleeper.join().unwrap();
            assert!(*lock(armed), "it sleeps on");
            alarm.awake(sleeper);
        });
    }

    #[test]
    fn loom_a_turn_finds_whoever_sleeps_on_what_it_has_disarmed() {
        model(true);
    }

    #[test]
    #[should_panic(expected = "it sleeps on")]
    fn loom_a_sleeper_that_announces_itself_behind_its_turn_is_missed() {
        model(false);
    }
}
