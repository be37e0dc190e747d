//! The kernels that can be instantiated: one row per kernel file.

mod channel;
mod fifo;
mod ll128;
mod perf;
mod port;
mod row;
mod turn;

pub use row::{Arg, Entry, Kernel, Launch, Param};

/// The rows by family; one file of this module each.
const FAMILIES: &[&[Kernel]] = &[channel::ROWS, fifo::ROWS, ll128::ROWS, perf::ROWS, port::ROWS, turn::ROWS];

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Kernel> {
    FAMILIES.iter().flat_map(|rows| rows.iter())
}

/// The row with this name.
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    rows().find(|row| row.name == name)
}
