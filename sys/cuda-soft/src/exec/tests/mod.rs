//! Tests of the engine with hand-built code and oracles in Rust.

mod arithmetic;
mod converged;
mod divergence;
mod faults;
mod floats;
mod memory;
mod registers;
mod rig;
mod scheduling;
mod waiting;
mod watchdog;
