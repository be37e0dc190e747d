//! Collectives over a communicator: [`Collective`] runs the built-in plans, or plans of the user's own, by kind and size;
//! [`Barrier`] moves no data. [`AllReduce`] is the all-reduce of handwritten kernels.

mod algorithm;
mod all_reduce;
mod barrier;
mod built_in;
mod call;
mod config;
mod geometry;
mod plans;
mod region;
mod staging;

pub use algorithm::Algorithm;
pub use all_reduce::{AllReduce, AllReduceConfig};
pub use aqueduct_ptx::collective::{ElementType, ReduceOp};
pub use barrier::Barrier;
pub use built_in::{Collective, CollectiveBuffers};
pub use config::CollectiveConfig;
