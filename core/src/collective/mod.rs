//! Collectives over a communicator. So far: all-reduce.

mod algorithm;
mod all_reduce;
mod region;

pub use algorithm::Algorithm;
pub use all_reduce::{AllReduce, AllReduceConfig};
pub use aqueduct_ptx::collective::{ElementType, ReduceOp};
