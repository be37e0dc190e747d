//! CPU time of this process: user and system, of all threads.

use std::time::{Duration, Instant};

/// CPU and wall time spent in what was metered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) user: Duration,
    pub(super) system: Duration,
    pub(super) wall: Duration,
}

impl Usage {
    /// Runs `work` and adds what it took.
    pub(super) fn meter<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (before, since) = (cpu(libc::RUSAGE_SELF), Instant::now());
        let result = work();
        self.wall += since.elapsed();
        let after = cpu(libc::RUSAGE_SELF);
        self.user += after.0.saturating_sub(before.0);
        self.system += after.1.saturating_sub(before.1);
        result
    }
}

/// User and system time of all children that have exited.
pub(super) fn children() -> (Duration, Duration) {
    cpu(libc::RUSAGE_CHILDREN)
}

fn cpu(whose: i32) -> (Duration, Duration) {
    // SAFETY: rusage is plain data, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live output. Fails only for an unknown first argument.
    unsafe { libc::getrusage(whose, &raw mut usage) };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs()) + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spins until this process has used more CPU time, however long that takes on a busy machine.
    #[test]
    fn only_metered_work_is_counted() {
        let mut usage = Usage::default();
        let used = || {
            let (user, system) = cpu(libc::RUSAGE_SELF);
            user + system
        };
        let spin = |work: Duration| {
            let until = used() + work;
            while used() < until {}
        };
        usage.meter(|| spin(Duration::from_millis(30)));
        let metered = usage.user + usage.system;
        assert!(metered >= Duration::from_millis(30), "{usage:?}");
        assert!(usage.wall > Duration::ZERO);
        let before = usage;
        spin(Duration::from_millis(10));
        assert_eq!(usage, before);
    }
}
