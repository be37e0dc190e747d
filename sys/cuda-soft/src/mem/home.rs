//! Whose memory a range of addresses is.

/// Whose memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Of a device.
    Device(usize),
    /// Pinned memory of the host, which the driver allocated.
    Pinned,
    /// Memory of the host that the user registered.
    Registered,
}

impl Home {
    /// Whether the host can access it without a call.
    pub(crate) fn is_host(self) -> bool {
        !matches!(self, Self::Device(_))
    }
}
