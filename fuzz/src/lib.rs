//! Fuzz targets: one for every decoder of bytes that come from outside this process.
//!
//! [`TARGETS`] is the list. For any input a target must end soon, must not panic, must use memory in proportion to the
//! input ([`memory`]) and, if there is an encoder, must decode what it accepted and encoded to the same value. The
//! tests replay the corpora on stable Rust; `ci/deep.sh fuzz` searches for more inputs with libFuzzer.

pub mod corpus;
pub mod memory;
mod software;
mod targets;

pub use targets::{Form, TARGETS, Target, target};

/// Outputs of the real encoders, each with the name of its target.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = aqueduct::internals::fuzzing::seeds();
    all.extend(software::triggers());
    all
}
