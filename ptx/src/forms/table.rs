//! The rows of the device library, by family.

mod barrier;
mod common;
mod fifo;
mod memory;
mod plain;
mod port;
mod semaphore;

use super::operation::Operation;

/// Every operation, in the order of header and functions.
pub(super) fn operations() -> impl Iterator<Item = &'static Operation> {
    [memory::ALL, port::ALL, fifo::ALL, semaphore::ALL, barrier::ALL, plain::ALL].into_iter().flatten()
}
