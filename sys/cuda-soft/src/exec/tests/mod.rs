//! The engine against oracles in Rust, on hand-built code.

mod arithmetic;
mod divergence;
mod faults;
mod floats;
mod memory;
mod rig;
mod scheduling;
mod waiting;
