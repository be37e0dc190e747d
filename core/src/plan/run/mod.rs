//! Runs plans on devices.
//!
//! [`Executor::prepare`] compiles a plan for this rank, allocates what it keeps between calls and shows it to the peers;
//! [`Executor::execute`] is one launch.

mod agreement;
mod arena;
mod buffers;
mod compile;
mod config;
mod executor;
mod ports;
mod prepared;
mod sizes;

#[cfg(test)]
mod tests;

pub use buffers::PlanBuffers;
pub use config::ExecutorConfig;
pub use executor::Executor;

use super::{check, collective, ir, lower};
