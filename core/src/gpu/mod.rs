//! GPUs: the driver, its devices, and safe owners of everything made in them.
//!
//! A [`Driver`] is a value: the NVIDIA driver or the software device. A [`Device`] is one of its GPUs, a [`Context`] what is made
//! on it. [`Stream`], [`Event`] and [`GraphExec`] order work; [`GpuBuffer`] and [`PinnedBuffer`] hold data, and a [`DeviceSlice`]
//! names a range of either together with its owner; processes share it through the registered memory of a communicator;
//! [`Module`] and [`Function`] load and launch kernels.
//!
//! - **Lifetime.** Asynchronous calls take what keeps memory alive, and the stream retains it until the work is done.
//!   `Drop` never waits, panics or unmaps what running work uses: it leaves the rest to [`Context::reap`].
//! - **Waiting.** Every wait has a deadline and polls.
//! - **Good guest.** Each call restores the caller's current context. In a forked child calls fail and `Drop` does
//!   nothing. After driver shutdown `Drop` is silent.
//! - **Threads.** Everything here is `Send + Sync` except guards, which belong to the thread that made them.

mod buffer;
mod capture;
mod context;
mod copy;
mod device;
mod disk_cache;
mod disposal;
mod dmabuf;
pub(crate) mod driver;
mod event;
mod gate;
mod graph;
mod handle;
pub(crate) mod ipc;
mod jit;
mod keep;
mod kept;
mod launch;
mod launch_order;
mod link;
mod module;
pub(crate) mod multicast;
mod order;
mod outcomes;
mod params;
mod pinned;
mod pod;
mod pointer;
pub(crate) mod probe;
mod query;
mod reaper;
mod room;
mod select;
mod slice;
mod slots;
mod staging;
mod status;
mod stream;
mod unfinished;
pub(crate) mod vmm;
mod waiting;

#[cfg(test)]
mod tests;

pub use crate::volatile::VolatileSlice;
pub use buffer::{BufferOptions, GpuBuffer, HandlePolicy};
pub use context::Context;
pub(crate) use context::ThreadCaptureMode;
pub use cuda_driver_sys::{CUdeviceptr, CUresult};
pub use device::{ComputeCapability, Device, PeerLink};
pub(crate) use disk_cache::{DiskCache, Key};
pub(crate) use dmabuf::DmaBuf;
#[cfg(test)]
pub(crate) use driver::Hooks;
pub use driver::{Driver, Provenance};
pub use event::Event;
pub use graph::{CaptureMode, GraphExec};
pub use keep::KeepAlive;
pub(crate) use launch::bytes;
pub use launch::{KernelArg, KernelParam, LaunchConfig, arg};
pub(crate) use launch_order::Company;
pub(crate) use link::KeptKernel;
pub use module::{Function, FunctionAttributes, Module};
pub(crate) use pinned::HostRegistration;
pub use pinned::PinnedBuffer;
pub use pod::Pod;
pub(crate) use pointer::{MemoryKind, PointerInfo};
pub(crate) use room::{Room, Series};
pub use select::SoftwareTable;
pub use slice::DeviceSlice;
#[cfg(test)]
pub(crate) use status::is_sticky;
pub use stream::Stream;
