//! Doorbells: how a waiting kernel, stream or process learns that memory may have changed.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// One doorbell per memory object, in memory that every process mapping the object shares.
///
/// Whoever stores rings; whoever waits for a value reads [`sequence`](Self::sequence), looks at the value, and
/// sleeps while the sequence has not moved. Host code that stores through a plain pointer does not ring, so a
/// sleep is always bounded and the value looked at again.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    /// Counts rings, wrapping.
    pub seq: AtomicU32,
    /// How many sleepers there may be; a process that died asleep leaves it too high, which costs a system call
    /// per ring and nothing else.
    pub waiters: AtomicU32,
}

impl Doorbell {
    /// A doorbell nobody has rung.
    #[must_use]
    pub const fn new() -> Self {
        Self { seq: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    /// The number to compare with later. Read it before looking at the memory.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.seq.load(Ordering::SeqCst)
    }

    /// Tells every sleeper that memory behind this doorbell has changed. Call it after the store.
    pub fn ring(&self) {
        // SYNC soft.doorbell: orders the caller's stores before the new sequence, and the sequence before the
        // look at `waiters`; a sleeper orders its count before its look at the sequence.
        self.seq.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            // SAFETY: the word outlives the call; FUTEX_WAKE writes nothing.
            unsafe { libc::syscall(libc::SYS_futex, self.seq.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Sleeps until somebody rings, at once if the sequence is no longer `seen`, at most `limit`.
    pub fn sleep(&self, seen: u32, limit: Duration) {
        sleep_any(&[(self, seen)], limit);
    }
}

/// Sleeps until one of the doorbells is rung, at once if one of the sequences has moved, at most `limit`.
///
/// Beyond 64 doorbells, or where the kernel lacks `futex_waitv` (before 5.16), only some are waited for and the
/// sleep is at most a millisecond.
pub fn sleep_any(bells: &[(&Doorbell, u32)], limit: Duration) {
    for (bell, _) in bells {
        bell.waiters.fetch_add(1, Ordering::SeqCst);
    }
    fence(Ordering::SeqCst); // SYNC soft.doorbell
    match bells {
        [] => std::thread::sleep(limit.min(COARSE)),
        [(bell, seen)] => wait_one(bell, *seen, limit),
        many if many.iter().any(|(bell, seen)| bell.sequence() != *seen) => {}
        many => {
            let (first, rest) = many.split_at(many.len().min(MAX_WAITV));
            let limit = if rest.is_empty() { limit } else { limit.min(COARSE) };
            if !wait_many(first, limit) {
                wait_one(first[0].0, first[0].1, limit.min(COARSE));
            }
        }
    }
    for (bell, _) in bells {
        bell.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

const COARSE: Duration = Duration::from_millis(1);
const MAX_WAITV: usize = 64;
const NO_FLAGS: libc::c_uint = 0;

fn wait_one(bell: &Doorbell, seen: u32, limit: Duration) {
    let limit = timespec(limit);
    // SAFETY: the word and the time outlive the call; the futex is shared between processes, hence not PRIVATE.
    unsafe { libc::syscall(libc::SYS_futex, bell.seq.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
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

/// False when the kernel cannot wait on several words.
fn wait_many(bells: &[(&Doorbell, u32)], limit: Duration) -> bool {
    const FUTEX2_SIZE_U32: u32 = 2;
    let mut waits = [WaitV { val: 0, uaddr: 0, flags: FUTEX2_SIZE_U32, reserved: 0 }; MAX_WAITV];
    for (wait, (bell, seen)) in waits.iter_mut().zip(bells) {
        wait.val = u64::from(*seen);
        wait.uaddr = bell.seq.as_ptr() as u64;
    }
    let mut now = timespec(Duration::ZERO);
    // SAFETY: writes one timespec that lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let until = timespec(Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + limit);
    // SAFETY: the array, its words and the time outlive the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waits.as_ptr(),
            bells.len() as libc::c_uint,
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
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_moved_sequence_does_not_sleep() {
        let (a, b) = (Doorbell::new(), Doorbell::new());
        let seen = (a.sequence(), b.sequence());
        b.ring();
        let start = Instant::now();
        sleep_any(&[(&a, seen.0), (&b, seen.1)], LONG);
        b.sleep(seen.1, LONG);
        assert!(start.elapsed() < LONG / 2);
        assert_eq!(a.waiters.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_ring_wakes_a_sleeper_on_any_of_several() {
        let bells = [Doorbell::new(), Doorbell::new(), Doorbell::new()];
        for rung in 0..3 {
            let start = Instant::now();
            std::thread::scope(|s| {
                let sleeper = s.spawn(|| {
                    let seen: Vec<_> = bells.iter().map(|b| (b, b.sequence())).collect();
                    while bells[rung].sequence() == seen[rung].1 {
                        sleep_any(&seen, LONG);
                    }
                });
                while bells[rung].waiters.load(Ordering::SeqCst) == 0 && !sleeper.is_finished() {
                    std::thread::yield_now();
                }
                bells[rung].ring();
            });
            assert!(start.elapsed() < LONG / 2);
        }
    }

    #[test]
    fn a_sleep_ends_by_itself() {
        let bell = Doorbell::new();
        bell.sleep(bell.sequence(), Duration::from_millis(5));
        sleep_any(&[], Duration::from_millis(5));
    }
}
