//! The signals that end a job.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

static LAST: AtomicI32 = AtomicI32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Catches the signals that ask a program to end, except those that it was started to ignore, as by nohup(1).
pub(crate) fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if !is_ignored(signal) {
            let handler: extern "C" fn(i32) = note;
            // SAFETY: the handler only stores to atomics, which is async-signal-safe.
            unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        }
    }
}

/// Asks without a change: a handler that stands even for a moment would count a signal that is to be ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction is plain data, for which zeros are valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is given, and `now` is a live output.
    let status = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    status == 0 && now.sa_sigaction == libc::SIG_IGN
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
