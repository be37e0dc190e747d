//! Measures the memory that an input makes a decoder use, so that no unchecked length field can allocate a gigabyte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Largest number of bytes that a decoder may hold at a time for an input of `len` bytes. `spare` bytes are allowed for
/// any input.
pub const fn limit(len: usize, spare: usize) -> usize {
    64 * len + spare
}

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with a count of the bytes that each thread holds: the `#[global_allocator]` of tests and
/// fuzzers.
#[derive(Debug)]
pub struct Counting;

impl Counting {
    fn grown(bytes: usize) {
        let now = NOW.get().saturating_add(bytes);
        NOW.set(now);
        PEAK.set(PEAK.get().max(now));
    }

    /// Signed, because a thread may free memory that another thread allocated.
    fn shrunk(bytes: usize) {
        NOW.set(NOW.get().saturating_sub(bytes));
    }
}

// SAFETY: every call is passed on to the system's allocator as it came; the counters are plain cells of this thread,
// need no initialisation and no destructor, and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::grown(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::grown(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::shrunk(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::grown(size);
        Self::shrunk(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `f`. Returns its result and the largest number of additional bytes that this thread held meanwhile.
pub fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = f();
    (result, PEAK.get() - before)
}
