//! What the integration tests share.

pub mod ranks;

/// `len` bytes that differ by place and by `seed`; the period 251 makes swapped blocks visible.
pub fn paint(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 251) as u8).collect()
}
