//! Runs plans on devices.
//!
//! [`Executor::prepare`] compiles a plan for this rank, allocates what it keeps between calls and shows it to the peers;
//! [`Executor::execute`] is one launch.

mod agreement;
mod alone;
mod arena;
mod buffers;
mod call;
mod compile;
mod config;
mod enqueue;
mod executor;
mod grid;
mod kernel;
mod lane;
mod links;
mod load;
mod multicast;
mod overflow;
mod parameter;
mod ports;
mod prepare;
mod prepared;
mod preparing;
mod rows;
mod sizes;
mod staged;
mod staging;
mod touched;
mod trace;
mod turns;
mod verdict;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod traced;

pub(crate) use agreement::all_done;
#[cfg(feature = "fuzzing")]
pub(crate) use agreement::fuzzing;
pub use alone::{Steps, prepare_alone};
pub use buffers::PlanBuffers;
pub(crate) use buffers::Window;
pub use config::ExecutorConfig;
pub use executor::Executor;
pub(super) use grid::Grids;
pub(crate) use rows::{Numbers, Rows};
pub(super) use sizes::Chunks;
pub(crate) use staged::Staging;
pub(crate) use staging::Division;

use super::{check, collective, cost, ir, lower};
