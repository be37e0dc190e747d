//! How many processors there are for a thread that computes.

use std::thread;

/// Those that this process may use: its affinity and its cgroup say so.
pub(crate) fn allowed() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// This process's part of those that it may use, if processes of the host that may use some of the same compute at the same time. `others`
/// are their process ids; `None` is one of which nothing is known here. At least one.
pub(crate) fn share(others: impl IntoIterator<Item = Option<u32>>) -> usize {
    let mine = affinity(0);
    let shares = |other: Option<u32>| match (mine, other.and_then(affinity_of)) {
        (Some(mine), Some(theirs)) => overlap(&mine, &theirs),
        _ => true,
    };
    let sharing = 1 + others.into_iter().filter(|other| shares(*other)).count();
    (allowed() / sharing).max(1)
}

fn affinity_of(pid: u32) -> Option<libc::cpu_set_t> {
    affinity(libc::pid_t::try_from(pid).ok()?)
}

/// The processors that a process may use; 0 is this thread.
fn affinity(pid: libc::pid_t) -> Option<libc::cpu_set_t> {
    // SAFETY: all-zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live output of so many bytes.
    let result = unsafe { libc::sched_getaffinity(pid, size_of::<libc::cpu_set_t>(), &raw mut set) };
    (result == 0).then_some(set)
}

fn overlap(a: &libc::cpu_set_t, b: &libc::cpu_set_t) -> bool {
    let bits = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: numbers below the bits of a set.
    (0..bits).any(|cpu| unsafe { libc::CPU_ISSET(cpu, a) && libc::CPU_ISSET(cpu, b) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> libc::cpu_set_t {
        // SAFETY: all-zero is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: small numbers.
        cpus.iter().for_each(|cpu| unsafe { libc::CPU_SET(*cpu, &mut set) });
        set
    }

    #[test]
    fn who_may_use_the_same_processors_shares_them() {
        let me = std::process::id();
        assert_eq!(share([]), allowed());
        assert_eq!(share([Some(me)]), (allowed() / 2).max(1), "another rank of this process");
        assert_eq!(share([None; 3]), (allowed() / 4).max(1), "processes that cannot be seen");
        assert_eq!(share(vec![None; 100_000]), 1);
        // None has the largest number.
        assert_eq!(share([Some(u32::MAX)]), (allowed() / 2).max(1));
    }

    #[test]
    fn sets_overlap_if_one_processor_is_in_both() {
        assert!(overlap(&set(&[0, 5]), &set(&[5, 900])));
        assert!(!overlap(&set(&[0, 4]), &set(&[1, 5])) && !overlap(&set(&[]), &set(&[1])));
    }
}
