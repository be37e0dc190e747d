//! Asking again: how long to wait between two looks at something that cannot wake us.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::deadline::Deadline;

/// First gives way to other threads, then sleeps ever longer, up to half a millisecond.
#[derive(Debug)]
pub(super) struct Backoff {
    turns: u32,
    pause: Duration,
}

const YIELDS: u32 = 200;
const SHORTEST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(500);

impl Backoff {
    pub(super) fn new() -> Self {
        Self { turns: 0, pause: SHORTEST }
    }

    pub(super) fn pause(&mut self, deadline: Deadline) {
        self.turns += 1;
        if self.turns <= YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.pause.min(deadline.remaining()));
            self.pause = (self.pause * 2).min(LONGEST);
        }
    }
}
