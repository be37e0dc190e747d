//! A lock for each stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use crate::sync::{Mutex, lock};

/// `CU_STREAM_LEGACY`: the stream that null is, too.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: another stream in each thread.
const PER_THREAD: usize = 2;
/// The most streams without calls whose locks are kept.
const IDLE: usize = 256;

/// The handle's address, with the thread where that decides.
type Key = (usize, Option<ThreadId>);

/// Locks by the driver's handles of streams.
#[derive(Debug, Default)]
pub(super) struct StreamLocks {
    known: Mutex<HashMap<Key, Arc<Mutex<()>>>>,
}

impl StreamLocks {
    /// The lock of a stream by its handle's address. It stays the same as long as somebody has it.
    pub(super) fn of(&self, address: usize) -> Arc<Mutex<()>> {
        let key = match address {
            0 => (LEGACY, None),
            PER_THREAD => (PER_THREAD, Some(thread::current().id())),
            other => (other, None),
        };
        let mut known = lock(&self.known);
        if let Some(found) = known.get(&key) {
            return found.clone();
        }
        if known.len() >= IDLE {
            known.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        known.entry(key).or_default().clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn handles_of_one_stream_have_one_lock() {
        let locks = StreamLocks::default();
        let same = |one: &Arc<Mutex<()>>, other: usize| Arc::ptr_eq(one, &locks.of(other));
        let (legacy, mine, one) = (locks.of(0), locks.of(PER_THREAD), locks.of(4096));
        assert!(same(&legacy, LEGACY) && same(&mine, PER_THREAD) && same(&one, 4096));
        assert!(!same(&legacy, PER_THREAD) && !same(&one, 8192) && !same(&one, 0));
        assert!(thread::scope(|scope| scope.spawn(|| !same(&mine, PER_THREAD)).join().unwrap()));
    }

    /// A stream that is called again allocates nothing, and dropped streams do not pile up.
    #[test]
    fn locks_stay_while_they_are_few_or_held() {
        let locks = StreamLocks::default();
        let first = Arc::downgrade(&locks.of(4096));
        assert!(first.upgrade().is_some());
        let held = locks.of(8192);
        for nth in 0..4 * IDLE {
            locks.of((3 + nth) * 4096);
        }
        assert!(first.upgrade().is_none() && Arc::ptr_eq(&held, &locks.of(8192)));
        assert!(lock(&locks.known).len() <= IDLE);
    }
}
