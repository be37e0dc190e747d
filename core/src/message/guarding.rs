//! Code of the program's that runs within the messenger's calls: callbacks, completions, and the drop of whatever keeps memory. It may panic,
//! and what follows it is not to suffer.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program's. A panic is logged with `what`, which names the code.
#[inline]
pub(crate) fn guard(what: impl Display, run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        note_panic(what, payload);
    }
}

/// Drops something that the program may have made.
pub(crate) fn drop_guarded<T>(owner: T) {
    guard("the drop of what keeps memory", || drop(owner));
}

#[cold]
fn note_panic(what: impl Display, payload: Box<dyn Any + Send>) {
    // Its Drop is the program's, too, and might panic again.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    log::error!("{what} panicked; what follows runs all the same");
}
