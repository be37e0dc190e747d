//! The signals that end a job.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static LAST: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Catches the signals that ask a program to end, except those that whoever started it made it ignore, as nohup(1) does
/// with SIGHUP.
pub(crate) fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(i32) = note;
        // SAFETY: the handler only stores to atomics, which is async-signal-safe.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        if before == libc::SIG_IGN {
            // SAFETY: restores what was there before.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// The signal that came last, and how many have come.
pub(crate) fn caught() -> (i32, u32) {
    let count = COUNT.load(Ordering::Acquire);
    (LAST.load(Ordering::Relaxed), count)
}

extern "C" fn note(signal: i32) {
    LAST.store(signal, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Release);
}
