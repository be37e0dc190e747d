//! How a proxy's thread runs.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::fifo::Fifo;

/// How a proxy waits while its FIFO is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls without a pause. For a core that nothing else uses.
    Spin,
    /// Polls, and yields to other threads after every few polls.
    #[default]
    Yield,
    /// Polls as `Yield` does; after about a thousand polls in vain, sleeps for the given time before each. An idle proxy then
    /// costs next to nothing, and a trigger may wait that long; stopping the proxy wakes it.
    Sleep(Duration),
}

/// Settings of a [`Proxy`](super::Proxy).
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Slots of the FIFO, a power of two; [`Fifo::DEFAULT_SIZE`] unless set.
    pub(crate) fifo_size: usize,
    /// How the thread waits while there is nothing to do.
    pub(crate) idle: Idle,
    /// The core that the thread runs on. `None`: the cores of the GPU's NUMA node if the system names them, otherwise the
    /// caller's.
    pub(crate) cpu: Option<usize>,
    /// The rank that abort records name.
    pub(crate) rank: u32,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self { fifo_size: Fifo::DEFAULT_SIZE, idle: Idle::default(), cpu: None, rank: 0 }
    }
}

impl ProxyConfig {
    /// The same with another FIFO size.
    #[must_use]
    pub fn with_fifo_size(mut self, size: usize) -> Self {
        self.fifo_size = size;
        self
    }

    /// The same with another way to wait.
    #[must_use]
    pub fn with_idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
    }

    /// The same on core `cpu`.
    #[must_use]
    pub fn with_cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// The same for rank `rank`.
    #[must_use]
    pub fn with_rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }
}

/// Counts polls in vain and pauses accordingly.
#[derive(Debug)]
pub(super) struct Idler {
    idle: Idle,
    polls: u32,
}

/// Polls between two yields.
const YIELD_EVERY: u32 = 32;
/// Polls before the first sleep.
const BEFORE_SLEEP: u32 = 1024;

impl Idler {
    pub(super) fn new(idle: Idle) -> Self {
        Self { idle, polls: 0 }
    }

    /// Starts anew after a poll that found something.
    pub(super) fn reset(&mut self) {
        self.polls = 0;
    }

    /// Pauses after a poll in vain. `waiting`: work is under way, so do not sleep. Unparking the thread ends a sleep.
    pub(super) fn pause(&mut self, waiting: bool) {
        self.polls = self.polls.saturating_add(1);
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Sleep(pause) if self.polls > BEFORE_SLEEP && !waiting => std::thread::park_timeout(pause),
            Idle::Yield | Idle::Sleep(_) if self.polls.is_multiple_of(YIELD_EVERY) => {
                std::thread::yield_now()
            }
            Idle::Yield | Idle::Sleep(_) => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_proxy_sleeps_only_after_many_polls_in_vain_and_while_no_work_is_under_way() {
        let took = |pause, polls, waiting| {
            let mut idler = Idler { idle: Idle::Sleep(pause), polls };
            let began = Instant::now();
            idler.pause(waiting);
            assert_eq!(idler.polls, polls + 1);
            began.elapsed()
        };
        let (long, short) = (Duration::from_secs(10), Duration::from_millis(10));
        assert!(took(long, 0, false) < long && took(long, BEFORE_SLEEP - 1, false) < long);
        assert!(took(long, BEFORE_SLEEP, true) < long);
        assert!(took(short, BEFORE_SLEEP, false) >= short);
        let mut idler = Idler { idle: Idle::Spin, polls: BEFORE_SLEEP };
        idler.reset();
        assert_eq!(idler.polls, 0);
    }
}
