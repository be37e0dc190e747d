//! Buffers that device code accesses by address.

/// A range of host addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) end: u64,
}

impl Range {
    /// The range of a buffer. Device code may then access the buffer through its address.
    pub(super) fn of<T>(buffer: &[T]) -> Range {
        let base = buffer.as_ptr().expose_provenance() as u64;
        Range { base, end: base + size_of_val(buffer) as u64 }
    }

    #[inline(always)]
    pub(super) fn holds(self, first: u64, end: u64) -> bool {
        first >= self.base && end <= self.end && first <= end
    }
}

/// A 128-byte piece of a buffer that device code accesses by address, aligned for vector accesses.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Line([std::sync::atomic::AtomicU64; 16]);

impl Line {
    /// Sets one of the sixteen words.
    pub(super) fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Allocates a buffer of at least `bytes` bytes: zeros, or what a seed determines.
pub(super) fn lines(bytes: u64, garbage: Option<u64>) -> Box<[Line]> {
    let lines: Box<[Line]> = (0..bytes.div_ceil(128)).map(|_| Line::default()).collect();
    if let Some(seed) = garbage {
        let mut garbage = fastrand::Rng::with_seed(seed);
        lines.iter().for_each(|line| (0..16).for_each(|word| line.set(word, garbage.u64(..))));
    }
    lines
}
