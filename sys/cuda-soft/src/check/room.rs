//! How much the detector keeps: a kernel that touches more memory is ended, and does not pass unseen.

/// Bytes that are kept, and their limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Room {
    used: u64,
    limit: u64,
}

/// The limit is reached: the detector cannot follow an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Room {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: 0, limit }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Counts `bytes` that are to be kept for an access.
    ///
    /// # Errors
    /// `Full` if the limit does not allow them. Nothing is counted then.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Full> {
        if self.used + bytes as u64 > self.limit {
            return Err(Full);
        }
        self.add(bytes);
        Ok(())
    }

    /// Counts `bytes` that are kept in any case. An access that needs more fails later.
    pub(super) fn add(&mut self, bytes: usize) {
        self.used += bytes as u64;
    }

    /// Counts `bytes` as no longer kept.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.used -= bytes as u64;
    }
}

impl Default for Room {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
