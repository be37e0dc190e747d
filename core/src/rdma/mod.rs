//! RDMA: NICs through libibverbs, and safe owners of everything made on them.
//!
//! [`Verbs`] is the library as a value: libibverbs or a stand-in. A [`Device`] is one NIC, a [`Context`] the opened one, a
//! [`Port`] one of its ports with the address chosen on it. In a [`ProtectionDomain`] memory becomes a [`MemoryRegion`], and
//! a [`QueuePair`] of type RC is created, whose states are types: [`Reset`], [`Init`], [`ReadyToReceive`], [`ReadyToSend`].
//! Work requests are collected in a [`Batch`] and posted with one doorbell; their [`Completion`]s are polled from a
//! [`CompletionQueue`]. A [`MemoryWindow`] gives one peer the right to a part of a region, and takes it away without a system call. [`Window`] does the arithmetic of signalling every k-th request.
//!
//! - **Ownership.** Each object keeps what it was made from alive, so that any order of drops is right: queue pair before
//!   completion queue before context, memory region before domain. `Drop` never panics; what cannot be destroyed is logged
//!   and left to the kernel.
//! - **Memory.** A region keeps its memory until the NIC can no longer reach it. Requests name ranges that were checked
//!   against their region. A range of a region that is gone, like every wrong key, is a failed completion.
//! - **Order.** The requests of one queue pair are executed and completed in the order of posting, with one exception: a
//!   [`fence`](Request::fence) is needed after reads and atomics whose result a later request sends. What the data of one
//!   write is relative to the next depends on [`Access`]: flags must not be registered for relaxed ordering.
//! - **Fork.** In a forked child calls fail and `Drop` does nothing. When the library is loaded it is told to protect
//!   registered pages from fork(2), unless the kernel does that itself (Linux 5.12).
//! - **Threads.** Everything here is `Send + Sync`, except that a [`Batch`] is filled by one thread at a time.

mod access;
mod address;
mod batch;
mod cause;
mod choose;
mod completion;
mod context;
mod cq;
mod device;
mod distance;
mod event;
mod explain;
mod gid;
mod library;
mod mr;
mod mw;
mod port;
mod qp;
mod region;
mod settings;
mod status;
mod window;

#[cfg(test)]
mod tests;

pub use access::Access;
pub use address::QpAddress;
pub use batch::{Batch, INLINE_BYTES, Request};
pub(crate) use cause::Cause;
pub use choose::Port;
pub use completion::{Completion, Done, Failure, Operation, Status};
pub use context::{Atomics, Context, DeviceAttributes, ProtectionDomain};
pub use cq::{CompletionChannel, CompletionQueue};
pub use device::Device;
pub use distance::{Distance, distance, nearest};
pub use event::{About, AsyncEvent, EventKind};
pub use gid::{Gid, GidEntry, GidKind, choose_gid};
pub use library::{Provenance, Verbs};
pub use mr::{KeepAlive, MemoryRegion};
pub use mw::MemoryWindow;
pub use port::{LinkLayer, PortAttributes, PortState};
pub use qp::{
    Init, PostError, QpCounters, QpOptions, QueuePair, ReadyToReceive, ReadyToSend, Receiving, Reset, State,
};
pub use region::{LocalRange, RemoteRange, RemoteRegion};
pub use settings::Settings;
#[cfg(test)]
pub(crate) use tests::standin;
pub use window::Window;
