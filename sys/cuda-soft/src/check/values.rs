//! The bytes that kernels and streams wrote last: a value that differs from them is the host's.

use std::ops::Range;

/// Bytes of memory that are kept together.
pub(super) const PAGE: u64 = 4096;

/// The bytes of a page that kernels and streams wrote.
#[derive(Debug)]
pub(super) struct Values {
    bytes: Box<[u8; PAGE as usize]>,
    /// Those that a kernel or stream wrote.
    known: Box<[bool; PAGE as usize]>,
}

impl Default for Values {
    fn default() -> Self {
        Self { bytes: Box::new([0; PAGE as usize]), known: Box::new([false; PAGE as usize]) }
    }
}

impl Values {
    /// A kernel or stream has written `bytes` at an offset in the page.
    pub(super) fn wrote(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.known[at..at + bytes.len()].fill(true);
    }

    /// Whether kernels and streams wrote what memory now has there.
    pub(super) fn hold(&self, at: usize, now: &[u8]) -> bool {
        let range = at..at + now.len();
        self.known[range.clone()].iter().all(|known| *known) && self.bytes[range] == *now
    }

    /// Nobody knows who writes there from now on.
    pub(super) fn forget(&mut self, range: Range<usize>) {
        self.known[range].fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_if_all_its_bytes_are() {
        let mut values = Values::default();
        values.wrote(4, &[1, 2]);
        assert!(values.hold(4, &[1, 2]) && values.hold(5, &[2]));
        assert!(!values.hold(4, &[1, 3]) && !values.hold(3, &[0, 1]) && !values.hold(5, &[2, 0]));
        values.wrote(6, &[0]);
        assert!(values.hold(4, &[1, 2, 0]));
        values.forget(5..6);
        assert!(values.hold(4, &[1]) && values.hold(6, &[0]) && !values.hold(4, &[1, 2]));
    }
}
