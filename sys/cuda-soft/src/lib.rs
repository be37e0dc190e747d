//! A CUDA device in software, behind the driver-API table.

pub mod code;
pub mod exec;
pub mod lower;
pub mod mem;
pub mod ptx;

mod config;
mod driver;
mod handles;
mod machine;
mod module;
mod stream;

pub use config::{Config, Lacks, configure};
pub use driver::driver_table;
