//! Parameters of your own kernels: handles, triggers and status codes of the device library.
//!
//! | type | from | the kernel's parameter in CUDA C++ |
//! |---|---|---|
//! | [`MemoryChannelHandle`] | [`MemoryChannel::device_handle`] | `const AqueductMemoryChannelHandle channel` |
//! | [`PortChannelHandle`] | [`PortChannel::device_handle`] | `const AqueductPortChannelHandle port` |
//! | [`SemaphoreHandle`] | `device_handle` of a [device semaphore](crate::comm) | `const AqueductSemaphoreHandle semaphore` |
//! | [`FifoHandle`] | [`Proxy::fifo`], [`Fifo::device_handle`] | `const AqueductFifoHandle fifo` |
//! | [`GridBarrierHandle`] | [`GridBarrier::device_handle`] | `const AqueductGridBarrierHandle grid` |
//! | [`AbortHandle`] | `abort_handle` of a [`Communicator`] or semaphore | `const AqueductAbortHandle abort` |
//! | [`ProxyTrigger`] | [`ProxyTrigger::from_payload`] | `const AqueductProxyTrigger trigger` |
//!
//! Each is plain data that [`arg`](crate::gpu::arg) passes by value, and what it leads to lives as long as the object it
//! came from: after the launch give that object's `keep_alive` to [`Stream::retain`](crate::gpu::Stream::retain). The
//! functions come from [`device_library`], or from the header `aqueduct_device.h` of the package `aqueduct-ptx`;
//! `docs/device-library.md` of the repository shows both.
//!
//! ```no_run
//! use aqueduct::Result;
//! use aqueduct::channel::{GridBarrier, MemoryChannel, PortChannel};
//! use aqueduct::comm::{Communicator, Device2DeviceSemaphore};
//! use aqueduct::device::{
//!     AbortHandle, FifoHandle, GridBarrierHandle, MemoryChannelHandle, PortChannelHandle, ProxyTrigger,
//!     SemaphoreHandle,
//! };
//! use aqueduct::gpu::{Function, LaunchConfig, Stream, arg};
//! use aqueduct::proxy::Proxy;
//!
//! /// Launches a kernel that takes one of each.
//! fn launch(
//!     kernel: &Function,
//!     stream: &Stream,
//!     comm: &Communicator,
//!     semaphore: &Device2DeviceSemaphore,
//!     (memory, port): (&MemoryChannel, &PortChannel),
//!     (proxy, grid): (&Proxy, &GridBarrier),
//! ) -> Result<()> {
//!     let abort: AbortHandle = comm.abort_handle();
//!     let memory_handle: MemoryChannelHandle = memory.device_handle();
//!     let port_handle: PortChannelHandle = port.device_handle();
//!     let semaphore_handle: SemaphoreHandle = semaphore.device_handle();
//!     let fifo: FifoHandle = proxy.fifo();
//!     let grid_handle: GridBarrierHandle = grid.device_handle(abort);
//!     let trigger = ProxyTrigger::from_payload([1, 2, 3, 4], false).expect("words of 63 bits");
//!     let args = [
//!         arg(&abort),
//!         arg(&memory_handle),
//!         arg(&port_handle),
//!         arg(&semaphore_handle),
//!         arg(&fifo),
//!         arg(&grid_handle),
//!         arg(&trigger),
//!     ];
//!     // SAFETY: these are the kernel's parameters, and what they lead to is retained.
//!     unsafe { kernel.launch(stream, &LaunchConfig::linear(8, 128).cooperative(), &args) }?;
//!     stream.retain_all([comm.keep_alive(), memory.keep_alive(), port.keep_alive()])?;
//!     stream.retain_all([semaphore.keep_alive(), grid.keep_alive()])?;
//!     stream.retain_all(proxy.keep_alive())?;
//!     comm.report_to(stream);
//!     port.report_to(stream);
//!     proxy.report_to(stream);
//!     Ok(())
//! }
//! ```
//!
//! [`MemoryChannel::device_handle`]: crate::channel::MemoryChannel::device_handle
//! [`PortChannel::device_handle`]: crate::channel::PortChannel::device_handle
//! [`GridBarrier::device_handle`]: crate::channel::GridBarrier::device_handle
//! [`Communicator`]: crate::comm::Communicator
//! [`Proxy::fifo`]: crate::proxy::Proxy::fifo
//! [`Fifo::device_handle`]: crate::proxy::Fifo::device_handle

#[doc(inline)]
pub use aqueduct_ptx::abi::{
    ABI_VERSION, AbortHandle, ChannelTrigger, FifoHandle, GridBarrierHandle, LEFT_CLOSED, LEFT_NOT,
    LEFT_REFUSED, LEFT_TOLD, MemoryChannelHandle, NO_PEER, Operation, PortChannelHandle, ProxyTrigger,
    SemaphoreHandle, TriggerError, TriggerKind,
};

pub use crate::channel::kernels::device_library;
