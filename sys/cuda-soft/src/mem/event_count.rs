//! Event counts: how a waiting kernel, stream or process learns that memory may have changed.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// An event count over a futex. Each memory object has one, in memory that all processes mapping the object share.
///
/// A thread that stores to the memory calls [`notify`](Self::notify). A thread that waits for a value reads
/// [`sequence`](Self::sequence), then checks the value, and sleeps only while the sequence stays the same. Host code
/// that stores through a plain pointer does not notify, so every sleep is bounded, and the value is checked again after
/// it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct EventCount {
    /// Number of notifications, wrapping.
    pub seq: AtomicU32,
    /// Upper bound of the number of sleepers. A process that dies asleep leaves it too high, which costs a system call
    /// per notification and nothing else.
    pub waiters: AtomicU32,
}

impl EventCount {
    /// An event count without notifications.
    #[must_use]
    pub const fn new() -> Self {
        Self { seq: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// The sequence, to be read before the memory is checked.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.seq.load(Ordering::SeqCst)
    }

    /// Wakes all sleepers because memory has changed. Call it after the store.
    pub fn notify(&self) {
        // SYNC soft.event-count: orders the caller's stores before the new sequence, and the new sequence before the
        // read of `waiters`. A sleeper orders its increment of `waiters` before its read of the sequence.
        self.seq.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            // SAFETY: the word outlives the call, and FUTEX_WAKE does not write.
            unsafe { libc::syscall(libc::SYS_futex, self.seq.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Sleeps until a notification, for at most `limit`. Returns at once if the sequence is no longer `seen`.
    pub fn wait(&self, seen: u32, limit: Duration) {
        wait_any(&[(self, seen)], limit);
    }
}

/// Sleeps until one of the event counts is notified, for at most `limit`. Returns at once if one of the sequences has
/// changed.
///
/// With more than 64 event counts, or on a kernel without `futex_waitv` (before 5.16), the call waits for only some of
/// them, and at most a millisecond.
pub fn wait_any(event_counts: &[(&EventCount, u32)], limit: Duration) {
    for (event_count, _) in event_counts {
        event_count.waiters.fetch_add(1, Ordering::SeqCst);
    }
    fence(Ordering::SeqCst); // SYNC soft.event-count
    match event_counts {
        [] => std::thread::sleep(limit.min(COARSE)),
        [(event_count, seen)] => wait_one(event_count, *seen, limit),
        many if many.iter().any(|(event_count, seen)| event_count.sequence() != *seen) => {}
        many => {
            let (first, rest) = many.split_at(many.len().min(MAX_WAITV));
            let limit = if rest.is_empty() { limit } else { limit.min(COARSE) };
            if !wait_many(first, limit) {
                wait_one(first[0].0, first[0].1, limit.min(COARSE));
            }
        }
    }
    for (event_count, _) in event_counts {
        event_count.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

const COARSE: Duration = Duration::from_millis(1);
const MAX_WAITV: usize = 64;
const NO_FLAGS: libc::c_uint = 0;

fn wait_one(event_count: &EventCount, seen: u32, limit: Duration) {
    let limit = timespec(limit);
    // SAFETY: word and time outlive the call. The futex is not PRIVATE, because processes share it.
    unsafe {
        libc::syscall(libc::SYS_futex, event_count.seq.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit)
    };
}

/// `struct futex_waitv` of linux/futex.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct WaitV {
    val: u64,
    uaddr: u64,
    flags: u32,
    reserved: u32,
}

/// Waits on several words. Returns false if the kernel cannot.
fn wait_many(event_counts: &[(&EventCount, u32)], limit: Duration) -> bool {
    const FUTEX2_SIZE_U32: u32 = 2;
    let mut waits = [WaitV { val: 0, uaddr: 0, flags: FUTEX2_SIZE_U32, reserved: 0 }; MAX_WAITV];
    for (wait, (event_count, seen)) in waits.iter_mut().zip(event_counts) {
        wait.val = u64::from(*seen);
        wait.uaddr = event_count.seq.as_ptr() as u64;
    }
    let mut now = timespec(Duration::ZERO);
    // SAFETY: `now` is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let until = timespec(Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + limit);
    // SAFETY: the array, its words and the time outlive the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waits.as_ptr(),
            event_counts.len() as libc::c_uint,
            NO_FLAGS,
            &raw const until,
            libc::CLOCK_MONOTONIC,
        )
    };
    if rc >= 0 {
        return true;
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    !matches!(code, Some(libc::ENOSYS | libc::EPERM | libc::EINVAL))
}

fn timespec(d: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: d.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever sleeps for so long is not woken.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_changed_sequence_does_not_sleep() {
        let (a, b) = (EventCount::new(), EventCount::new());
        let seen = (a.sequence(), b.sequence());
        b.notify();
        wait_any(&[(&a, seen.0), (&b, seen.1)], LONG);
        b.wait(seen.1, LONG);
        assert_eq!(a.waiters.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_notification_wakes_a_sleeper_on_any_of_several() {
        let event_counts = [EventCount::new(), EventCount::new(), EventCount::new()];
        for notified in 0..3 {
            std::thread::scope(|s| {
                let sleeper = s.spawn(|| {
                    let seen: Vec<_> = event_counts.iter().map(|b| (b, b.sequence())).collect();
                    while event_counts[notified].sequence() == seen[notified].1 {
                        wait_any(&seen, LONG);
                    }
                });
                while event_counts[notified].waiters.load(Ordering::SeqCst) == 0 && !sleeper.is_finished() {
                    std::thread::yield_now();
                }
                event_counts[notified].notify();
            });
        }
    }

    #[test]
    fn a_sleep_ends_by_itself() {
        let event_count = EventCount::new();
        event_count.wait(event_count.sequence(), Duration::from_millis(5));
        wait_any(&[], Duration::from_millis(5));
    }
}
