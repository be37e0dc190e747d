//! Shapes of launches, and bytes of what kernels lay out.

/// Bytes of packets that `bytes` of data take as LL128 lines: units of 960 bytes are sent whole.
pub const fn ll128_bytes(bytes: u64) -> u64 {
    1024 * bytes.div_ceil(960)
}

/// Grid and block of a launch, both one-dimensional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: u32,
    /// Threads in a block, a multiple of 32.
    pub block: u32,
}
