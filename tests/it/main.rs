//! Integration, multi-process and conformance tests of aqueduct.
//!
//! Every hardware test has the same body as a software one and is ignored with its need stated; run them on a machine
//! with GPUs by `cargo test -p aqueduct-tests hardware -- --ignored`. There, an absent device is a failure, never a pass.
//! Tests under real launchers are ignored, too, and run in `ci/deep.sh launchers`.

mod bad_input;
mod channels;
mod churn;
mod collectives;
mod conformance;
mod data;
mod device_library;
mod environment;
mod faults;
mod group;
mod launchers;
mod loss;
mod ports;
mod readme;
#[path = "../../sys/rdma-core-sys/tests/standin/mod.rs"]
mod standin;
mod strangers;
mod transports;
