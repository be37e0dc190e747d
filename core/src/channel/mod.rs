//! Channels: handles with which kernels communicate with one peer, and the same operations launched from the host.
//!
//! A [`MemoryChannel`] reads and writes the peer's memory with loads and stores. Its
//! [`device_handle`](MemoryChannel::device_handle) is plain data for a user's kernel; its methods launch the
//! library's own kernels on a stream. A [`SignalChannel`] has no memory: it signals and waits. A [`PortChannel`] does the
//! same as a memory channel over a connection of any transport, by way of a
//! [`ProxyService`](crate::proxy::ProxyService). [`InboundSignals`] lets a stream wait for signals that a peer's host sends
//! through a connection. A [`GridBarrier`] joins all threads of a user's kernel.

mod checks;
mod geometry;
mod grid_barrier;
mod inbound;
pub(crate) mod kernels;
mod launch;
mod memory;
mod packet;
mod port;
mod semaphore;
mod signal;

pub use grid_barrier::GridBarrier;
pub use inbound::InboundSignals;
pub use kernels::load_kernels;
pub(crate) use kernels::load_plan;
pub use memory::MemoryChannel;
pub use packet::PacketFormat;
pub use port::PortChannel;
pub use signal::SignalChannel;

pub(crate) use geometry::Geometry;
