//! Every order in which an abort meets those who attach to it.

use super::*;
use crate::sync::{AtomicU32, Ordering};

struct Counter {
    told: AtomicU32,
    rank: AtomicU32,
}

impl Counter {
    fn new() -> Arc<Self> {
        Arc::new(Self { told: AtomicU32::new(0), rank: AtomicU32::new(u32::MAX) })
    }
}

impl AbortListener for Counter {
    fn aborted(&self, cause: &AbortCause) {
        self.told.fetch_add(1, Ordering::Relaxed);
        self.rank.store(cause.rank.unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

fn word() -> AbortWord {
    let memory = Arc::new(raw::AtomicU32::new(0));
    // SAFETY: the atomic lives as long as the `Arc` that the word keeps.
    unsafe { AbortWord::from_ptr(NonNull::new(memory.as_ptr()).unwrap(), memory) }
}

/// Two ranks abort at the same time: one cause wins, and every listener is called once, with that cause.
#[test]
fn loom_the_first_cause_wins_and_is_told_once() {
    loom::model(|| {
        let abort = Abort::new();
        let counter = Counter::new();
        let listener: Arc<dyn AbortListener> = counter.clone();
        abort.listen(&listener);
        let other = abort.clone();
        let thread = loom::thread::spawn(move || {
            let won = other.abort(AbortCause::peer_lost(1, "killed"));
            // The losing thread sees the winning cause at once.
            (won, other.cause().unwrap().rank.unwrap())
        });
        let here = (abort.abort(AbortCause::peer_lost(0, "killed")), abort.cause().unwrap().rank.unwrap());
        let there = thread.join().unwrap();
        assert!(here.0 != there.0, "exactly one wins");
        let winner = if here.0 { 0 } else { 1 };
        assert_eq!((here.1, there.1), (winner, winner));
        assert_eq!(counter.told.load(Ordering::Relaxed), 1);
        assert_eq!(counter.rank.load(Ordering::Relaxed), winner);
    });
}

/// A listener and a word that are attached while the abort happens are neither missed nor told twice.
#[test]
fn loom_attached_meanwhile_hears_it_exactly_once() {
    loom::model(|| {
        let abort = Abort::new();
        let other = abort.clone();
        let thread = loom::thread::spawn(move || other.abort(AbortCause::requested(1, "enough")));
        let (counter, word) = (Counter::new(), word());
        let listener: Arc<dyn AbortListener> = counter.clone();
        abort.listen(&listener);
        abort.attach(word.clone());
        assert!(thread.join().unwrap());
        assert_eq!(counter.told.load(Ordering::Relaxed), 1);
        assert!(word.is_raised());
    });
}
