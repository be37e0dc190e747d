//! Runs the PTX that nvcc generated from the C++ in `tests/corpus`, and short texts, and compares the results with oracles
//! in Rust.

mod clusters;
mod constructs;
mod integers;
mod memory;
mod numbers;
mod output;
mod rig;
mod texts;
mod threads;

/// Pseudo-random numbers that depend on a seed and an index.
fn noise(seed: u64, index: usize) -> u64 {
    let mut x =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 32)
}

/// `n` pseudo-random values.
fn values<T>(seed: u64, n: usize, make: impl Fn(u64) -> T) -> Vec<T> {
    (0..n).map(|index| make(noise(seed, index))).collect()
}
