//! Whom to ask whether a stream's work gave up a wait.
//!
//! A kernel that waits for a peer leaves early when it is told to, and the driver then calls its work done. So whoever
//! enqueues such a kernel names an [`Outcome`] that knows; streams keep them, events and graphs take them along, and every
//! wait asks them once the work is done.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::error::Result;
use crate::failure::Outcome;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The outcomes that the work of a stream, an event or a graph depends on.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Whether there are any, so that streams without pay one load.
    any: AtomicBool,
    list: Mutex<Vec<Entry>>,
}

#[derive(Clone)]
struct Entry {
    outcome: Arc<dyn Outcome>,
    /// A wait has returned its failure. It is asked until new work is enqueued.
    reported: bool,
}

impl Entry {
    fn is(&self, other: &Arc<dyn Outcome>) -> bool {
        Arc::ptr_eq(&self.outcome, other)
    }
}

impl Outcomes {
    /// The work depends on `outcome`, too.
    pub(super) fn add(&self, outcome: &Arc<dyn Outcome>) {
        self.add_all([outcome.clone()]);
    }

    /// The work depends on everything that `others` depends on.
    pub(super) fn inherit(&self, others: &Self) {
        if others.any.load(Ordering::Acquire) {
            let others = others.snapshot();
            self.add_all(others);
        }
    }

    /// The work is that of `others` and nothing else.
    pub(super) fn replace(&self, others: &Self) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.list).clear();
            self.any.store(false, Ordering::Release);
        }
        self.inherit(others);
    }

    /// New work is enqueued. Forgets failures that were reported, which belong to earlier work, and outcomes that nobody else
    /// has any more.
    pub(super) fn begin_work(&self) {
        if self.any.load(Ordering::Acquire) {
            let mut list = lock(&self.list);
            list.retain(|entry| !entry.reported && Arc::strong_count(&entry.outcome) > 1);
            self.any.store(!list.is_empty(), Ordering::Release);
        }
    }

    /// `Ok` if the work, which is done, depended on nothing that has failed.
    pub(super) fn settle(&self, op: &'static str) -> Result<()> {
        if self.any.load(Ordering::Acquire) { self.ask(op) } else { Ok(()) }
    }

    #[cold]
    fn ask(&self, op: &'static str) -> Result<()> {
        let mut result = Ok(());
        // Asked outside the lock: an outcome may log, and takes locks of its own.
        for known in self.snapshot() {
            if let Err(error) = known.outcome(op) {
                let mut list = lock(&self.list);
                list.iter_mut().filter(|entry| entry.is(&known)).for_each(|entry| entry.reported = true);
                result = result.and(Err(error));
            }
        }
        result
    }

    fn snapshot(&self) -> Vec<Arc<dyn Outcome>> {
        lock(&self.list).iter().map(|entry| entry.outcome.clone()).collect()
    }

    fn add_all(&self, outcomes: impl IntoIterator<Item = Arc<dyn Outcome>>) {
        let mut list = lock(&self.list);
        for outcome in outcomes {
            match list.iter_mut().find(|entry| entry.is(&outcome)) {
                Some(known) => known.reported = false,
                None => list.push(Entry { outcome, reported: false }),
            }
        }
        self.any.store(!list.is_empty(), Ordering::Release);
    }
}

impl std::fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Outcomes").field(&lock(&self.list).len()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Error;

    #[derive(Debug)]
    struct Failing(AtomicBool);

    impl Outcome for Failing {
        fn outcome(&self, op: &'static str) -> Result<()> {
            if self.0.load(Ordering::Relaxed) { Err(Error::usage(op, "given up")) } else { Ok(()) }
        }
    }

    fn failing(now: bool) -> (Arc<Failing>, Arc<dyn Outcome>) {
        let one = Arc::new(Failing(AtomicBool::new(now)));
        (one.clone(), one)
    }

    #[test]
    fn a_failure_is_reported_until_new_work_is_enqueued() {
        let outcomes = Outcomes::default();
        let (switch, outcome) = failing(false);
        outcomes.add(&outcome);
        outcomes.settle("wait").unwrap();
        switch.0.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(outcomes.settle("wait").unwrap_err().op(), "wait");
        }
        outcomes.begin_work();
        outcomes.settle("wait").unwrap();
        outcomes.add(&outcome);
        outcomes.settle("wait").unwrap_err();
    }

    #[test]
    fn events_take_along_what_the_stream_depends_on_at_that_moment() {
        let (stream, event) = (Outcomes::default(), Outcomes::default());
        let ((_, first), (_, second)) = (failing(true), failing(true));
        event.add(&second);
        stream.add(&first);
        event.replace(&stream);
        assert_eq!(event.snapshot().len(), 1);
        event.settle("wait").unwrap_err();
        event.replace(&Outcomes::default());
        event.settle("wait").unwrap();
    }

    #[test]
    fn a_failure_is_reported_also_when_its_owner_is_gone() {
        let outcomes = Outcomes::default();
        let (one, outcome) = failing(true);
        outcomes.add(&outcome);
        drop((one, outcome));
        outcomes.settle("wait").unwrap_err();
        outcomes.begin_work();
        assert!(!outcomes.any.load(Ordering::Relaxed));
    }
}
