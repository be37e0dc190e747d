//! Kernels of plans against an oracle that knows only what a step means.

mod blocks;
#[path = "../device/mod.rs"]
#[expect(dead_code, reason = "the others are other tests'")]
mod device;
mod elements;
mod first;
mod given_up;
mod groups;
mod lanes;
mod laps;
mod lines;
mod model;
mod moves;
mod multicast;
mod port;
mod repeats;
mod rig;
#[path = "../ring/mod.rs"]
#[expect(dead_code, reason = "the others are other tests'")]
mod ring;
mod rows;
mod solo;
mod trace;
