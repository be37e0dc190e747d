//! Figures of the resources that a process occupies.

/// The resources of one process while nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    /// Mappings of memory that processes share: two for each link over shared memory.
    pub(super) rings: usize,
    /// Bytes that the program has allocated and not freed.
    pub(super) heap: usize,
    /// Resident bytes, after free memory was given back to the system.
    pub(super) resident: usize,
}

impl Figures {
    pub(super) fn now() -> Self {
        // SAFETY: takes no pointers.
        unsafe { libc::malloc_trim(0) };
        // SAFETY: takes no pointers.
        let heap = unsafe { libc::mallinfo2() };
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
            rings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            heap: heap.uordblks + heap.hblkhd,
            resident: pages * 4096,
        }
    }
}
