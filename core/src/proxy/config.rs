//! How a proxy's thread runs.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::fifo::Fifo;

/// What a proxy does while its FIFO is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Looks again at once. For a core that nothing else uses.
    Spin,
    /// Looks again, and gives way to other threads after every few looks.
    #[default]
    Yield,
    /// As `Yield`; after about a thousand looks in vain, sleeps so long before each. A trigger then waits up to
    /// that long, and an idle proxy costs next to nothing.
    Sleep(Duration),
}

/// Settings of a [`Proxy`](super::Proxy).
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Slots of the FIFO, a power of two; [`Fifo::DEFAULT_SIZE`] unless set.
    pub fifo_size: usize,
    /// What the thread does while there is nothing to do.
    pub idle: Idle,
    /// The core that the thread runs on. Without one, those of the GPU's NUMA node if the system names them, otherwise
    /// those of the caller.
    pub cpu: Option<usize>,
    /// The rank that abort records name.
    pub rank: u32,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self { fifo_size: Fifo::DEFAULT_SIZE, idle: Idle::default(), cpu: None, rank: 0 }
    }
}

impl ProxyConfig {
    /// With so many slots.
    #[must_use]
    pub fn with_fifo_size(mut self, size: usize) -> Self {
        self.fifo_size = size;
        self
    }

    /// With another way to wait.
    #[must_use]
    pub fn with_idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
    }

    /// On this core.
    #[must_use]
    pub fn with_cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// For this rank.
    #[must_use]
    pub fn with_rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }
}

/// How often there was nothing to do, and what follows from it.
#[derive(Debug)]
pub(super) struct Idler {
    idle: Idle,
    looks: u32,
}

/// Looks between two times of giving way.
const YIELD_EVERY: u32 = 32;
/// Looks before the first sleep.
const PATIENT: u32 = 1024;

impl Idler {
    pub(super) fn new(idle: Idle) -> Self {
        Self { idle, looks: 0 }
    }

    /// There was something to do.
    pub(super) fn reset(&mut self) {
        self.looks = 0;
    }

    /// There was nothing to do; `waiting` if something that is under way has to be looked after.
    pub(super) fn pause(&mut self, waiting: bool) {
        self.looks = self.looks.saturating_add(1);
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Sleep(pause) if self.looks > PATIENT && !waiting => std::thread::sleep(pause),
            Idle::Yield | Idle::Sleep(_) if self.looks.is_multiple_of(YIELD_EVERY) => {
                std::thread::yield_now()
            }
            Idle::Yield | Idle::Sleep(_) => std::hint::spin_loop(),
        }
    }
}
