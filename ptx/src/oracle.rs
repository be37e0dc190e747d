//! The expected result of each kernel, in a few lines of Rust. Every kernel test compares with it.

pub mod channel;
pub mod fifo;
pub mod half;
pub mod ll128;

/// Bytes that depend on `seed` and on their index with period 251, the largest prime below 256, so that exchanged or
/// shifted blocks of any power-of-two size differ.
pub fn paint(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| ((index + seed.wrapping_mul(97)) % 251) as u8).collect()
}

/// Sizes to test with: zero, and each boundary with its neighbours on both sides, up to `limit`.
///
/// The boundaries are one vector (16), a warp of vectors (512), an unrolled turn of a warp (2048), and the powers of
/// two around a block's turn and a page.
pub fn sizes(limit: usize) -> Vec<usize> {
    let boundaries = [1usize, 4, 8, 16, 32, 48, 64, 120, 128, 512, 960, 1024, 2048, 4096, 8192, 32768, 65536];
    let mut sizes: Vec<_> =
        boundaries.iter().flat_map(|&b| [b - 1, b, b + 1]).filter(|&s| s <= limit).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}
