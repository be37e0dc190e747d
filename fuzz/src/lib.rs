//! Fuzz targets: one for every decoder of bytes that come from outside this process.
//!
//! [`TARGETS`] is the list. Whatever a target is given, it must end soon, must not panic, must take memory in proportion
//! to its input ([`memory`]), and, where there is an encoder, what it accepts must survive being encoded again. The tests
//! replay the corpora on stable Rust; `ci/deep.sh fuzz` looks for more with libFuzzer.

pub mod corpus;
pub mod memory;
mod software;
mod targets;

pub use targets::{Form, TARGETS, Target, target};

/// What real encoders write, by the target that it belongs to.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = aqueduct::internals::fuzzing::seeds();
    all.extend(software::triggers());
    all
}
