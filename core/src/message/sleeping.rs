//! How a thread, or an outer event loop, sleeps until there is work for a messenger.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;

use super::engine::{Engine, Turn};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sync::lock;

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
        turn.arm(&self.hub.alarm);
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
        // Whether the peers' hosts answer is looked at then, and whether devices have ended with what nobody needs any more.
        let checks = !turn.links.is_empty() || self.hub.exposures.resources.have_leftovers();
        let check = checks.then(|| Deadline::after(self.checks));
        [due, check].into_iter().flatten().reduce(Deadline::min)
    }
}
