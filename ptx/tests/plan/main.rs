//! Kernels of plans against an oracle that knows only what a step means.

#[path = "../device/mod.rs"]
#[expect(dead_code, reason = "the others are other tests'")]
mod device;
mod first;
mod rig;
