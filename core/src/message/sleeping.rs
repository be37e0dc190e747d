//! How a thread, or an outer event loop, sleeps until there is work for a messenger.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::engine::{Engine, Turn};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::net::ready::{READ, WRITE};
use crate::sync::{Ordering, lock};

/// The most messengers whose queues a thread keeps in mind. With more, it forgets them all and is told of messages again.
const MOST_KNOWN: usize = 4096;

thread_local! {
    /// Messengers on which this thread has slept, each with its [news](super::hub::Hub::news) at that time.
    static KNOWN: RefCell<HashMap<u64, u64>> = RefCell::default();
}

impl Engine {
    /// Whether queues were given messages, or room was found for a send that had been refused, since this thread last asked: another
    /// thread may have made progress after this one found its queue empty or was refused, and nobody slept then. A thread is told of
    /// each message once: a program may let messages wait in a queue, and sleep.
    fn has_news(&self) -> bool {
        let (messenger, now) = self.hub.news();
        let news = KNOWN.try_with(|known| {
            let mut known = known.borrow_mut();
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(messenger, now).unwrap_or(0) != now
        });
        // A thread that ends keeps nothing in mind.
        news.unwrap_or(false)
    }

    /// Asks for the descriptor to become readable when there is work. True if there is some now; then nothing was asked for.
    pub(super) fn arm(&self) -> Result<bool> {
        let mut turn = lock(&self.turn);
        if turn.armed.is_none() {
            turn.armed = Some(self.hub.alarm.fall_asleep());
        }
        let busy = self.prepare_to_sleep(&mut turn);
        if matches!(busy, Ok(true)) {
            turn.disarm(&self.hub.alarm);
        }
        self.end_turn(turn);
        busy
    }

    /// Has every link tell of what comes. True if there is work already.
    fn prepare_to_sleep(&self, turn: &mut Turn) -> Result<bool> {
        // Other threads see the sleeper from here on, and send on their own what they push.
        self.send_all(turn);
        // Before links are asked to tell of what comes, which costs their peers a system call.
        if self.has_news() {
            return Ok(true);
        }
        Ok(self.announce(turn))
    }

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
    fn announce(&self, turn: &mut Turn) -> bool {
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

    /// Sleeps until something can have happened, or `deadline`.
    pub(super) fn sleep_until(&self, deadline: Deadline) -> Result<()> {
        let alarm = &self.hub.alarm;
        let sleeper = alarm.fall_asleep();
        let slept = self.sleep_announced(deadline);
        alarm.awake(sleeper);
        slept
    }

    fn sleep_announced(&self, deadline: Deadline) -> Result<()> {
        let mut turn = lock(&self.turn);
        let busy = self.prepare_to_sleep(&mut turn);
        if !matches!(busy, Ok(false)) {
            self.end_turn(turn);
            return busy.map(drop);
        }
        let until = self.due(&mut turn).map_or(deadline, |due| due.min(deadline));
        let mut events = std::mem::take(&mut turn.events);
        drop(turn);
        let failed = |error| Error::system("wait", "cannot wait for events", error);
        let waited = self.epoll.wait(until.poll_ms(), &mut events).map_err(failed);
        // The next progress need not ask again.
        let mut turn = lock(&self.turn);
        self.activate(&mut turn, &events);
        events.clear();
        turn.events = events;
        waited
    }

    /// When progress has something to do, even if no descriptor tells anything.
    pub(super) fn next_deadline(&self) -> Option<Deadline> {
        self.due(&mut lock(&self.turn))
    }

    fn due(&self, turn: &mut Turn) -> Option<Deadline> {
        self.hub.take_timed(&mut turn.timed);
        // The first operation under way is too late then.
        let due = turn.timed.iter().filter_map(|member| member.next_deadline()).min();
        // Whether the peers' hosts answer is looked at then.
        let check = (!turn.links.is_empty()).then(|| Deadline::after(self.checks));
        [due, check].into_iter().flatten().reduce(Deadline::min)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use crate::message::alarm::Alarm;
    use crate::sync::{Mutex, lock};

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
