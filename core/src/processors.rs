//! How many processors there are for a thread that computes.

use std::thread;

/// Those that this process may use: its affinity and its cgroup say so.
pub(crate) fn allowed() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Those for one of `ranks` processes or threads of this host that compute at the same time: its part of the host, or what it is bound to
/// if that is less. At least one.
pub(crate) fn share(ranks: usize) -> usize {
    // SAFETY: it takes a number and returns one.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let online = usize::try_from(online).unwrap_or(1);
    allowed().min(online / ranks.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_least_one_and_at_most_what_the_process_may_use() {
        assert_eq!(share(usize::MAX), 1);
        let all = share(1);
        assert!((1..=allowed()).contains(&all));
        assert_eq!(share(0), all);
        assert!(share(2) <= all);
    }
}
