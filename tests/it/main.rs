//! Integration, multi-process and conformance tests of aqueduct.
//!
//! Every hardware test has the same body as a software one. It is ignored, with the reason; run them on a machine with
//! GPUs by `cargo test -p aqueduct-tests hardware -- --ignored`. There, a missing device is a failure, never a pass.
//! Tests under real launchers are ignored too; `ci/deep.sh launchers` runs them.

mod attackers;
mod bad_input;
mod built_in;
mod channels;
mod churn;
mod collectives;
mod conformance;
mod data;
mod device_library;
mod dropped;
mod environment;
mod faults;
mod given_up;
mod group;
mod launchers;
mod litmus;
mod loss;
mod messages;
mod one_thread;
mod plans;
mod porting;
mod ports;
mod readme;
#[path = "../../sys/rdma-core-sys/tests/standin/mod.rs"]
mod standin;
mod transports;
mod variable;
