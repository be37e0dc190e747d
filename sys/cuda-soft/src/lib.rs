//! A CUDA device in software, behind the driver-API table.
//!
//! [`driver_table`] is what `libcuda` is to a program that calls through
//! [`DriverTable`](cuda_driver_sys::DriverTable): devices, primary contexts, memory in all its forms, streams, events,
//! graphs by capture, modules from PTX text, and launches, in one process or in several that share memory. It exists so
//! that everything, kernels included, runs where there is no GPU. Each process has one machine, shaped by [`configure`]
//! or by the environment (see [`Config`]).
//!
//! # Layers
//! | module | what it knows |
//! |---|---|
//! | [`ptx`] | text to syntax tree |
//! | [`lower`] | syntax tree to [`code`] |
//! | [`exec`] | running code and stream work on a few threads |
//! | [`mem`] | shared memory objects, addresses, rights, doorbells |
//! | `stream` | operations and their order: streams, events, captures, graphs |
//! | `driver` | the calls, one family per file |
//!
//! # Unkind on purpose
//! - An access outside a mapping, or without the right to it, fails the context for good
//!   (`CUDA_ERROR_ILLEGAL_ADDRESS` and its relatives); other devices go on. The fault is also said on standard error.
//! - `cuMemFree`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuMemUnmap`, `cuIpcCloseMemHandle`, `cuModuleLoadData`,
//!   `cuModuleUnload` and `cuCtxDisablePeerAccess` wait for work in flight.
//! - Captures are invalidated by the calls that invalidate them on hardware, with the same codes.
//! - Handles are numbers that are never used twice; dead and invented ones are errors.
//! - Grids larger than the device run in turns, so a grid-wide barrier in one waits for ever, and cooperative launches
//!   that do not fit are refused.
//! - After `fork` every call in the child answers `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! # Different from hardware
//! - Bounds are exact to the byte, not to the page, and host code can touch device memory.
//! - Every allocation takes a file descriptor. Memory is counted per process, not per device of the host.
//! - The last release of a primary context clears its error; hardware may need a new process.
//! - `cuMemcpyPeer` waits on the host for both contexts. Priorities are kept and not obeyed.
//! - There is no register file: kernels report 32 registers, and registers never limit occupancy.
//! - A linked image is PTX, compiled again where it is loaded.
//!
//! # Not supported, and said so
//! IPC events, the per-thread default stream, external event waits, multicast, fabric handles, dma-buf, host memory by
//! `cuMemCreate`, clusters and other launch attributes, cubins and fat binaries, managed memory, textures.

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
