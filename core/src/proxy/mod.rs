//! The way from a kernel to the host: kernels push triggers into a [`Fifo`], one thread of the host takes them out.

mod fifo;

pub use fifo::{Fifo, FifoConsumer};
