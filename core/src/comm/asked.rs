//! Items that were asked for and are not set up yet, and the turns that collective calls of several threads take.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::thread::{self, ThreadId};

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::setup::key::Key;
use crate::setup::run::Item;
use crate::sync::{Mutex, MutexGuard, lock, lock_until};

/// Tags of the library's own of one call; no call takes so many.
const TAGS: u64 = 1 << 16;

/// The queue of one communicator. Kept apart from what the queued items hold, which would form a cycle.
#[derive(Debug, Default)]
pub(super) struct Asked {
    queue: Mutex<Queue>,
    setup: Mutex<()>,
    shrink: Mutex<()>,
    call: Mutex<()>,
    caller: Mutex<Caller>,
}

#[derive(Debug, Default)]
struct Caller {
    /// The thread that makes the call, and what it has called.
    call: Option<(ThreadId, &'static str)>,
    /// How many calls got no turn in time.
    missed: u64,
}

/// The turn of a call that all ranks make together; nothing for calls within it.
#[must_use = "the call is over when it is dropped"]
pub(crate) struct CallTurn<'a>(Option<(&'a Asked, MutexGuard<'a, ()>)>);

impl Drop for CallTurn<'_> {
    fn drop(&mut self) {
        if let Some((asked, _)) = &self.0 {
            lock(&asked.caller).call = None;
        }
    }
}

#[derive(Default)]
struct Queue {
    items: Vec<Box<dyn Item>>,
    keys: HashSet<Key>,
    internal_tags: u64,
}

impl Asked {
    /// Adds an item for the next `setup()`.
    ///
    /// # Errors
    /// `InvalidUsage` if one with its key is waiting.
    pub(super) fn add(&self, item: Box<dyn Item>) -> Result<()> {
        let key = item.key();
        let mut queue = lock(&self.queue);
        if !queue.keys.insert(key) {
            let message =
                format!("{} was asked for twice; give each its own tag, or call setup() in between", key);
            return Err(Error::usage(key.kind.op(), message));
        }
        queue.items.push(item);
        Ok(())
    }

    /// Takes all items, in the order in which they were asked for.
    pub(super) fn take(&self) -> Vec<Box<dyn Item>> {
        let mut queue = lock(&self.queue);
        queue.keys.clear();
        std::mem::take(&mut queue.items)
    }

    /// Drops the items whose keys are `named`.
    pub(super) fn withdraw_where(&self, named: impl Fn(&Key) -> bool) {
        let withdrawn: Vec<_> = {
            let mut queue = lock(&self.queue);
            queue.keys.retain(|key| !named(key));
            queue.items.extract_if(.., |item| named(&item.key())).collect()
        };
        // Dropping an item may free memory, so it happens outside the lock.
        drop(withdrawn);
    }

    /// Begins a call that all ranks make together, once those of other threads are over. Calls `first` with the number of calls that this
    /// rank has made since the last one and that got no turn, unless this is a part of another one.
    pub(super) fn call_turn(
        &self,
        op: &'static str,
        deadline: Deadline,
        first: impl FnOnce(u64),
    ) -> Result<CallTurn<'_>> {
        if self.called().is_some() {
            return Ok(CallTurn(None));
        }
        let turn = match lock_until(&self.call, deadline, op, "a collective call of another thread") {
            Ok(turn) => turn,
            Err(error) => {
                lock(&self.caller).missed += 1;
                return Err(error);
            }
        };
        let missed = {
            let mut caller = lock(&self.caller);
            caller.call = Some((thread::current().id(), op));
            std::mem::take(&mut caller.missed)
        };
        {
            let mut queue = lock(&self.queue);
            queue.internal_tags = (queue.internal_tags / TAGS + 1 + missed) * TAGS;
        }
        first(missed);
        Ok(CallTurn(Some((self, turn))))
    }

    /// The next tag of the library's own.
    pub(super) fn next_internal_tag(&self) -> u64 {
        let mut queue = lock(&self.queue);
        queue.internal_tags += 1;
        queue.internal_tags
    }

    /// The call of all ranks within which this thread is.
    pub(super) fn called(&self) -> Option<&'static str> {
        let (thread, op) = lock(&self.caller).call?;
        (thread == thread::current().id()).then_some(op)
    }

    /// Number of the call that all ranks make together and that is underway, or was last.
    pub(super) fn call_number(&self) -> u64 {
        lock(&self.queue).internal_tags / TAGS
    }

    /// Waits for the `setup` calls of other threads, up to `deadline`.
    pub(super) fn setup_turn(&self, deadline: Deadline) -> Result<MutexGuard<'_, ()>> {
        lock_until(&self.setup, deadline, "setup", "a setup of another thread")
    }

    /// Waits for the `shrink` calls of other threads, up to `deadline`.
    pub(super) fn shrink_turn(&self, deadline: Deadline) -> Result<MutexGuard<'_, ()>> {
        lock_until(&self.shrink, deadline, "shrink", "a shrink of another thread")
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.keys).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The numbers that such calls leave out are left out once: the other ranks leave out as many.
    #[test]
    fn calls_that_got_no_turn_are_counted_until_the_next_call() {
        const OP: &str = "test";
        let asked = Asked::default();
        let turn = |told: &mut Vec<u64>| {
            let deadline = Deadline::after(Duration::from_secs(60));
            let _turn = asked.call_turn(OP, deadline, |missed| told.push(missed)).unwrap();
            assert_eq!(asked.next_internal_tag() / TAGS, asked.call_number());
            // Another thread is not within the call.
            assert_eq!(asked.called(), Some(OP));
            assert_eq!(thread::scope(|scope| scope.spawn(|| asked.called()).join().unwrap()), None);
            asked.call_number()
        };
        let mut told = Vec::new();
        assert_eq!(turn(&mut told), 1);
        let held = asked.call_turn(OP, Deadline::after(Duration::from_secs(60)), drop).unwrap();
        let is_late =
            || asked.call_turn(OP, Deadline::after(Duration::ZERO), |_| panic!("it has no turn")).is_err();
        for _ in 0..2 {
            assert!(thread::scope(|scope| scope.spawn(is_late).join().unwrap()));
        }
        drop(held);
        // The second call was `held`; two were left out.
        assert_eq!([turn(&mut told), turn(&mut told), turn(&mut told)], [5, 6, 7]);
        assert_eq!(told, [0, 2, 0, 0]);
    }
}
