//! The proxy handler that checks every trigger of `aqueduct_fifo_push`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aqueduct_ptx::abi::ProxyTrigger;

use aqueduct::proxy::{ProxyHandler, ProxyHandlerResult};

/// Checks that each thread's triggers arrive once, in the thread's order, with the words that the kernel writes.
pub(super) struct Checker {
    /// The expected number of each thread's next trigger.
    next: Vec<u64>,
    /// Triggers per thread and launch. The numbers start again with each launch.
    count: u64,
    wrong: Arc<AtomicU64>,
}

impl Checker {
    pub(super) fn new(threads: u32, count: u32, wrong: Arc<AtomicU64>) -> Self {
        Self { next: vec![0; threads as usize], count: u64::from(count), wrong }
    }

    fn accepts(&mut self, [thread, serial, both, mixed]: [u64; 4]) -> bool {
        let Some(next) = usize::try_from(thread).ok().and_then(|thread| self.next.get_mut(thread)) else {
            return false;
        };
        let right = *next == serial && both == (thread << 32 | serial) && mixed == thread ^ serial;
        *next = if serial + 1 == self.count { 0 } else { serial + 1 };
        right
    }
}

impl ProxyHandler for Checker {
    fn handle(&mut self, _: u64, trigger: &ProxyTrigger) -> aqueduct::Result<ProxyHandlerResult> {
        if !self.accepts(trigger.payload()) {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ProxyHandlerResult::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_that_is_lost_doubled_torn_or_foreign_is_seen() {
        let words = |thread: u64, serial: u64| [thread, serial, thread << 32 | serial, thread ^ serial];
        let mut checker = Checker::new(2, 3, Arc::default());
        for (thread, serial) in [(0, 0), (1, 0), (0, 1), (0, 2), (0, 0), (1, 1)] {
            assert!(checker.accepts(words(thread, serial)), "{thread} {serial}");
        }
        assert!(!checker.accepts(words(0, 2)), "one lost");
        assert!(checker.accepts(words(0, 0)));
        assert!(!checker.accepts(words(0, 0)), "one doubled");
        assert!(!checker.accepts(words(2, 0)), "a thread that does not exist");
        assert!(!checker.accepts([1, 2, 1 << 32 | 1, 3]), "words of two triggers");
    }
}
