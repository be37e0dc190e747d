//! The threads of this library that waiting kernels rely on. They must not block, for example by freeing device memory.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

thread_local! {
    static CURRENT: Cell<bool> = const { Cell::new(false) };
}

/// Starts a service thread; `builder` gives its name and stack.
///
/// # Errors
/// The system has no more threads.
pub(crate) fn spawn<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    builder.spawn(move || {
        CURRENT.set(true);
        body()
    })
}

/// Whether the calling thread is a service thread.
pub(crate) fn is_current() -> bool {
    CURRENT.get()
}
