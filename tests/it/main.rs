//! Integration, multi-process and conformance tests of aqueduct.
//!
//! Every hardware test has the same body as a software one and is ignored with its need stated; run them on a machine
//! with GPUs by `cargo test -p aqueduct-tests -- --ignored`. There, an absent device is a failure, never a pass.

mod bad_input;
mod channels;
mod collectives;
mod conformance;
mod data;
mod group;
mod launchers;
mod readme;
