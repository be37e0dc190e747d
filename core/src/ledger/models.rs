//! The wait of `close` for memory that nobody gives back, under loom: an abort ends it.

use std::sync::Arc;
use std::time::Duration;

use super::holds::HoldId;
use super::receipt::Ledger;
use crate::abort::{Abort, AbortCause};
use crate::deadline::Deadline;
use crate::group::subscriber::Subscriber;

#[test]
fn loom_an_abort_wakes_who_waits_for_releases() {
    loom::model(|| {
        let (ledger, abort) = (Arc::new(Ledger::new(0)), Abort::new());
        let holds = [HoldId::Token(1), HoldId::Memory(1)].map(|id| ledger.hold(id, Arc::new(()), 1));
        let (told, other) = (ledger.clone(), abort.clone());
        let thread = loom::thread::spawn(move || {
            other.abort(AbortCause::requested(0, "enough"));
            told.changed();
        });
        let holder = ledger.wait_released(&abort, Deadline::after(Duration::MAX));
        assert_eq!(holder, Some(1), "nobody gave it back");
        thread.join().unwrap();
        drop(holds);
    });
}
