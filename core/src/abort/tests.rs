//! Words, listeners and records that learn of an abort, and the text of its cause.

use super::*;
use crate::sync::raw::{AtomicU32, Ordering};

struct Counter(AtomicU32);

impl AbortListener for Counter {
    fn aborted(&self, _: &AbortCause) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn word() -> AbortWord {
    let memory = Arc::new(AtomicU32::new(0));
    // SAFETY: the atomic lives as long as the `Arc` that the word keeps.
    unsafe { AbortWord::from_ptr(NonNull::new(memory.as_ptr()).unwrap(), memory) }
}

#[test]
fn of_many_threads_exactly_one_cause_wins() {
    let abort = Abort::new();
    assert!(abort.check("wait").is_ok());
    let won: Vec<u32> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|rank| {
                let abort = abort.clone();
                s.spawn(move || abort.abort(AbortCause::peer_lost(rank, "killed")).then_some(rank))
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(won.len(), 1);
    let error = abort.check("wait").unwrap_err();
    assert_eq!((error.kind(), error.peer()), (ErrorKind::PeerLost, Some(won[0])));
}

/// Reasons come from programs and from peers, and errors are printed at terminals.
#[test]
fn control_characters_of_a_reason_are_escaped() {
    let reason = "gave \"up\"\n\x1b[2Jat l'étape 3";
    for cause in [AbortCause::requested(1, reason), AbortCause::peer_lost(1, reason)] {
        let error = cause.to_error("wait");
        assert!(error.message().ends_with(r#"gave "up"\n\u{1b}[2Jat l'étape 3"#), "{:?}", error.message());
    }
}

#[test]
fn words_and_listeners_see_it_whether_early_or_late() {
    let abort = Abort::new();
    let counter = Arc::new(Counter(AtomicU32::new(0)));
    let listener: Arc<dyn AbortListener> = counter.clone();
    let (early, late) = (word(), word());
    abort.attach(early.clone());
    abort.listen(&listener);
    assert!(!early.is_raised());
    abort.abort(AbortCause::requested(2, "user"));
    abort.attach(late.clone());
    abort.listen(&listener);
    assert!(early.is_raised() && late.is_raised());
    assert_eq!(counter.0.load(Ordering::Relaxed), 2);
}

#[test]
fn all_living_listeners_hear_it_and_those_that_are_gone_are_forgotten() {
    let abort = Abort::new();
    let counters = [0, 1, 2].map(|_| Arc::new(Counter(AtomicU32::new(0))));
    let listeners = counters.each_ref().map(|counter| counter.clone() as Arc<dyn AbortListener>);
    for listener in &listeners {
        abort.listen(listener);
        abort.listen(&(Arc::new(Counter(AtomicU32::new(0))) as Arc<dyn AbortListener>));
    }
    assert_eq!(lock(&abort.shared.outlets).listeners.len(), 4, "the last of those that are gone, too");
    abort.abort(AbortCause::requested(2, "user"));
    assert_eq!(counters.map(|counter| counter.0.load(Ordering::Relaxed)), [1, 1, 1]);
}

#[test]
fn a_record_is_read_only_when_complete() {
    #[repr(C)]
    struct Record([AtomicU32; 2]);
    let memory = Arc::new(Record([AtomicU32::new(1), AtomicU32::new(42)]));
    let at = NonNull::from(&memory.0).cast::<[u32; 2]>();
    // SAFETY: two words inside the `Arc` that the cell keeps; only atomics write them.
    let cell = unsafe { AbortRecordCell::from_ptr(at, memory.clone()) };
    assert_eq!(cell.read(2), None);
    memory.0[0].store(2, Ordering::Release);
    assert_eq!(cell.read(2), Some([2, 42]));
}
