//! Detects that a stream's work gave up a wait.
//!
//! A kernel that waits for a peer leaves early when it is told to, and the driver then reports its work as done. So
//! the code that enqueues such a kernel names an [`Outcome`], which knows about the failure. Streams keep outcomes,
//! events and graphs take them along, and every wait asks them once the work is done. An outcome reports that
//! something has failed, but not when: only a wait that returned before the failure proves that its work ended before
//! it. After such a wait the outcome is forgotten.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::error::Result;
use crate::outcome::Outcome;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The outcomes that the work of a stream, an event or a graph depends on.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Whether there are any, so that streams without pay one load.
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Number of the latest entry; never reset.
    latest: u64,
}

#[derive(Clone)]
struct Entry {
    outcome: Arc<dyn Outcome>,
    /// Grows whenever work is enqueued that depends on the outcome, so that a wait for earlier work leaves it alone.
    number: u64,
    /// A wait has returned its failure. Later waits return it, too, until new work is enqueued.
    reported: bool,
}

/// The outcomes that some of the work depends on: what was enqueued before one moment, or into one graph.
#[derive(Default)]
pub(super) struct Pending(Vec<Entry>);

impl Outcomes {
    /// The work depends on `outcome`, too.
    pub(super) fn add(&self, outcome: &Arc<dyn Outcome>) {
        self.add_all([outcome.clone()]);
    }

    /// The work depends on everything that `others` depends on.
    pub(super) fn inherit(&self, others: &Self) {
        self.add_all(others.pending().0.into_iter().map(|entry| entry.outcome));
    }

    /// The work is that of `others` and nothing else.
    pub(super) fn replace(&self, others: &Self) {
        if self.any.load(Ordering::Acquire) {
            self.remove(|_| true);
        }
        self.inherit(others);
    }

    /// Replaces what the work depends on by `with` and returns it. At the beginning of a capture, sets aside what work
    /// that runs depends on; at its end, returns what captured work depends on.
    pub(super) fn exchange(&self, with: Pending) -> Pending {
        let mut list = lock(&self.list);
        self.any.store(!with.0.is_empty(), Ordering::Release);
        Pending(std::mem::replace(&mut list.entries, with.0))
    }

    /// The work begins anew, as that of a graph does with each launch.
    pub(super) fn begin_again(&self) {
        self.pending().0.iter().for_each(|entry| entry.outcome.forget());
    }

    /// New work is enqueued. Forgets failures that were reported, because they belong to earlier work, and outcomes
    /// whose owners are gone without a failure.
    pub(super) fn begin_work(&self) {
        if self.any.load(Ordering::Acquire) {
            self.tidy();
        }
    }

    #[cold]
    fn tidy(&self) {
        self.remove(|entry| entry.reported);
        let alone = |entry: &Entry| Arc::strong_count(&entry.outcome) == 1;
        let orphans: Vec<Entry> =
            lock(&self.list).entries.iter().filter(|entry| alone(entry)).cloned().collect();
        for orphan in orphans {
            if !orphan.outcome.has_failed() {
                self.remove(|entry| entry.is(&orphan.outcome) && entry.number == orphan.number);
            }
        }
    }

    /// The outcomes of the work enqueued so far. Call before asking the driver whether that work is done.
    pub(super) fn pending(&self) -> Pending {
        let any = self.any.load(Ordering::Acquire);
        Pending(if any { lock(&self.list).entries.clone() } else { Vec::new() })
    }

    /// `Ok` if the work that `pending` is about, which is done, depended on nothing that has failed. It then depends on
    /// nothing any more.
    pub(super) fn settle(&self, pending: Pending, op: &'static str) -> Result<()> {
        if pending.0.is_empty() { Ok(()) } else { self.ask(pending, op) }
    }

    #[cold]
    fn ask(&self, pending: Pending, op: &'static str) -> Result<()> {
        let mut result = Ok(());
        // Asked outside the lock: an outcome takes locks of its own.
        for known in pending.0 {
            let same = |entry: &Entry| entry.is(&known.outcome) && entry.number == known.number;
            match known.outcome.outcome(op) {
                Ok(()) => self.remove(same),
                Err(error) => {
                    let mut list = lock(&self.list);
                    list.entries
                        .iter_mut()
                        .filter(|entry| same(entry))
                        .for_each(|entry| entry.reported = true);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Forgets entries. They are dropped outside the lock.
    fn remove(&self, which: impl Fn(&Entry) -> bool) {
        let mut list = lock(&self.list);
        let removed: Vec<Entry> = list.entries.extract_if(.., |entry| which(entry)).collect();
        self.any.store(!list.entries.is_empty(), Ordering::Release);
        drop(list);
        drop(removed);
    }

    fn add_all(&self, outcomes: impl IntoIterator<Item = Arc<dyn Outcome>>) {
        let mut list = lock(&self.list);
        let List { entries, latest } = &mut *list;
        for outcome in outcomes {
            *latest += 1;
            let number = *latest;
            match entries.iter_mut().find(|entry| entry.is(&outcome)) {
                Some(known) => (known.number, known.reported) = (number, false),
                None => entries.push(Entry { outcome, number, reported: false }),
            }
        }
        self.any.store(!entries.is_empty(), Ordering::Release);
    }
}

impl Entry {
    fn is(&self, other: &Arc<dyn Outcome>) -> bool {
        Arc::ptr_eq(&self.outcome, other)
    }
}

impl std::fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Outcomes").field(&lock(&self.list).entries.len()).finish()
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

    fn wait(outcomes: &Outcomes) -> Result<()> {
        outcomes.settle(outcomes.pending(), "wait")
    }

    /// Tells its failure once.
    #[derive(Debug, Default)]
    struct Once(AtomicBool);

    impl Outcome for Once {
        fn outcome(&self, op: &'static str) -> Result<()> {
            if self.0.swap(true, Ordering::Relaxed) { Ok(()) } else { Err(Error::usage(op, "given up")) }
        }

        fn has_failed(&self) -> bool {
            !self.0.load(Ordering::Relaxed)
        }
    }

    /// Its owner is gone, and new work comes before the wait.
    #[test]
    fn new_work_does_not_take_a_failure_that_is_told_once() {
        let outcomes = Outcomes::default();
        outcomes.add(&(Arc::new(Once::default()) as Arc<dyn Outcome>));
        outcomes.begin_work();
        assert!(wait(&outcomes).is_err());
    }

    #[test]
    fn a_failure_is_reported_until_new_work_is_enqueued() {
        let outcomes = Outcomes::default();
        let (switch, outcome) = failing(false);
        outcomes.add(&outcome);
        switch.0.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(wait(&outcomes).unwrap_err().op(), "wait");
        }
        outcomes.begin_work();
        wait(&outcomes).unwrap();
        outcomes.add(&outcome);
        wait(&outcomes).unwrap_err();
    }

    #[test]
    fn work_that_a_wait_found_good_stays_good() {
        let outcomes = Outcomes::default();
        let (switch, outcome) = failing(false);
        outcomes.add(&outcome);
        wait(&outcomes).unwrap();
        switch.0.store(true, Ordering::Relaxed);
        wait(&outcomes).unwrap();
    }

    /// Both began to wait for the same work; the second is asked about it after the first has enqueued more.
    #[test]
    fn each_of_two_waits_for_one_failure_returns_it() {
        let outcomes = Outcomes::default();
        let (_, outcome) = failing(true);
        outcomes.add(&outcome);
        let [first, second] = [(); 2].map(|()| outcomes.pending());
        outcomes.settle(first, "wait").unwrap_err();
        outcomes.begin_work();
        outcomes.settle(second, "wait").unwrap_err();
        wait(&outcomes).unwrap();
    }

    #[test]
    fn a_wait_for_earlier_work_does_not_forget_what_later_work_depends_on() {
        let outcomes = Outcomes::default();
        let (switch, outcome) = failing(false);
        outcomes.add(&outcome);
        let earlier = outcomes.pending();
        outcomes.add(&outcome);
        outcomes.settle(earlier, "wait").unwrap();
        switch.0.store(true, Ordering::Relaxed);
        wait(&outcomes).unwrap_err();
    }

    #[test]
    fn a_graph_takes_along_only_what_was_captured() {
        let (stream, graph) = (Outcomes::default(), Outcomes::default());
        let ((_, runs), (_, captured)) = (failing(true), failing(true));
        stream.add(&runs);
        let before = stream.exchange(Pending::default());
        wait(&stream).unwrap();
        stream.add(&captured);
        drop(graph.exchange(stream.exchange(before)));
        for (outcomes, of) in [(&stream, &runs), (&graph, &captured)] {
            let known = outcomes.pending().0;
            assert!(known.len() == 1 && known[0].is(of));
            wait(outcomes).unwrap_err();
        }
    }

    #[test]
    fn events_take_along_what_the_stream_depends_on_at_that_moment() {
        let (stream, event) = (Outcomes::default(), Outcomes::default());
        let ((_, first), (_, second)) = (failing(true), failing(true));
        event.add(&second);
        stream.add(&first);
        event.replace(&stream);
        assert_eq!(event.pending().0.len(), 1);
        wait(&event).unwrap_err();
        event.replace(&Outcomes::default());
        wait(&event).unwrap();
    }

    #[test]
    fn a_failure_is_reported_also_when_its_owner_is_gone() {
        let outcomes = Outcomes::default();
        let (one, outcome) = failing(true);
        outcomes.add(&outcome);
        drop((one, outcome));
        outcomes.begin_work();
        wait(&outcomes).unwrap_err();
        outcomes.begin_work();
        assert!(!outcomes.any.load(Ordering::Relaxed));
    }

    #[test]
    fn outcomes_whose_owners_are_gone_without_a_failure_do_not_pile_up() {
        let outcomes = Outcomes::default();
        for _ in 0..3 {
            outcomes.begin_work();
            outcomes.add(&failing(false).1);
            assert_eq!(outcomes.pending().0.len(), 1);
        }
    }
}
