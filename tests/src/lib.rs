//! Helpers for the integration tests.

pub mod ranks;

/// `len` bytes that depend on offset and `seed`. The prime period 251 makes swapped blocks visible.
pub fn paint(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 251) as u8).collect()
}
