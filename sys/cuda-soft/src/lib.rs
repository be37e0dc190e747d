//! A CUDA device in software, behind the driver-API table.

pub mod code;
pub mod exec;
pub mod lower;
pub mod mem;
pub mod ptx;

mod config;

pub use config::{Config, Lacks, configure};
