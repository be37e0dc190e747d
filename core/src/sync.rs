//! The only place in this crate that names atomics and locks, so that `--cfg loom` can model-check a protocol.
//!
//! Protocols between threads are written against these names. Under `cfg(loom)` they are loom's, which explores every
//! interleaving and every value that the C11 model lets a relaxed load see; otherwise they are `std`'s. Loom's
//! objects exist only inside a model, so under `cfg(loom)` only the tests named `loom_*` can run (`ci/test.sh loom`).
//! A test below keeps `std::sync::atomic` out of every other file (clippy's `disallowed_types` cannot: it sees
//! through re-exports). Words in memory shared with another process or a GPU, at addresses that this code does not
//! choose, use [`raw`]: loom's own types cannot be placed there.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::sync::{PoisonError, TryLockError};

use crate::deadline::{Backoff, Deadline};
use crate::error::Result;

#[cfg(all(test, loom))]
mod models;

/// The `std` atomics, also under `cfg(loom)`: for words at addresses that this code does not choose.
pub mod raw {
    pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}

/// Locks `mutex` even if a thread panicked while it held it: our critical sections keep their data valid at
/// every step, and a poisoned lock must not turn one failure into a second panic inside a Drop.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex that other threads hold while they wait; gives up at `deadline`. `what` names the holder's work in
/// the error.
///
/// # Errors
/// Timeout.
pub fn lock_until<'a, T: ?Sized>(
    mutex: &'a Mutex<T>,
    deadline: Deadline,
    op: &'static str,
    what: &str,
) -> Result<MutexGuard<'a, T>> {
    let mut backoff = Backoff::new();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => deadline.check(op, what)?,
        }
        backoff.pause(deadline);
    }
}

/// Releases the lock of `guard`, waits until `condvar` is notified or `deadline` passes, and takes the lock again. It
/// may return early: check the state and the deadline in a loop.
///
/// Loom has no clock: in a model only a notification ends the wait, so loom reports a lost one as a deadlock.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, deadline: Deadline) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, deadline.remaining()).unwrap_or_else(PoisonError::into_inner).0
}

/// Loom has no `OnceLock`: the value in `std`'s, published by a flag that loom sees.
#[cfg(loom)]
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    published: AtomicBool,
}

#[cfg(loom)]
impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self { value: std::sync::OnceLock::new(), published: AtomicBool::new(false) }
    }
}

#[cfg(loom)]
impl<T> OnceLock<T> {
    /// As [`std::sync::OnceLock::set`]: the second caller returns only when the first value is visible.
    pub fn set(&self, value: T) -> std::result::Result<(), T> {
        let set = self.value.set(value);
        match set {
            Ok(()) => self.published.store(true, Ordering::Release),
            Err(_) => {
                while !self.published.load(Ordering::Acquire) {
                    loom::thread::yield_now();
                }
            }
        }
        set
    }

    /// As [`std::sync::OnceLock::get`].
    pub fn get(&self) -> Option<&T> {
        if self.published.load(Ordering::Acquire) { self.value.get() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Files below `directory` that name the standard atomics.
    fn offenders(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                offenders(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                if text.contains(concat!("sync::", "atomic")) {
                    found.push(path.display().to_string());
                }
            }
        }
    }

    #[test]
    fn a_held_lock_is_waited_for_until_the_deadline_only() {
        let mutex = super::Mutex::new(5);
        let held = super::lock(&mutex);
        let soon = crate::Deadline::after(std::time::Duration::from_millis(20));
        let error = super::lock_until(&mutex, soon, "setup", "another setup").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Timeout);
        drop(held);
        // An expired deadline does not refuse a lock that is free.
        assert_eq!(*super::lock_until(&mutex, soon, "setup", "another setup").unwrap(), 5);
    }

    #[test]
    fn nobody_else_names_the_standard_atomics() {
        let mut found = Vec::new();
        offenders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        // This file is found, which proves that the search works.
        assert!(found.len() == 1 && found[0].ends_with("src/sync.rs"), "use crate::sync in {found:?}");
    }
}
