//! A software CUDA device behind the driver-API table.
//!
//! [`driver_table`] returns a [`DriverTable`](cuda_driver_sys::DriverTable) that programs use in place of the one
//! loaded from `libcuda`. It covers devices, primary contexts, memory of all kinds, streams, events, captured graphs,
//! modules from PTX text, and kernel launches, in one process or in several that share memory. With it everything,
//! kernels included, runs without a GPU. Each process has one machine, described by [`configure`] or by the environment
//! (see [`Config`]).
//!
//! # Layers
//! | module | job |
//! |---|---|
//! | [`ptx`] | parses text into a syntax tree |
//! | [`lower`] | compiles the syntax tree to [`code`] |
//! | [`exec`] | executes code and stream work on a few threads |
//! | [`mem`] | shared memory objects, the address space, access rights, event counts |
//! | `stream` | operations and their order: streams, events, captures, graphs |
//! | `driver` | the API calls, one family per file |
//!
//! # Strict on purpose
//! - An access outside a mapping, or without the right to it, leaves the context with a sticky error
//!   (`CUDA_ERROR_ILLEGAL_ADDRESS` or a relative) and is printed on standard error. Other devices continue.
//! - `cuMemFree`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuMemUnmap`, `cuIpcCloseMemHandle`, `cuModuleLoadData`,
//!   `cuModuleUnload` and `cuCtxDisablePeerAccess` wait for work in flight.
//! - A call that invalidates a capture on hardware invalidates it here, with the same error code.
//! - Handles are numbers that are never reused, so a stale or made-up handle is always an error.
//! - A module with an instruction that this device does not have is refused, and the JIT log names the instruction and its
//!   line.
//! - A `.param` variable of a call is accessed without a predicate, and read only behind a call that returns it.
//! - A grid larger than the device runs in waves, so a grid-wide barrier in it never completes. A cooperative launch
//!   that does not fit is refused.
//! - After `fork`, every call in the child that needs a device returns `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! # Differences from hardware
//! - Approximations (`sin.approx`, `ex2.approx` and the like) are the host's `libm`, not an H200's bits. Both keep the errors that
//!   the PTX ISA documents; a kernel's results can differ by as much.
//! - Bounds are exact to the byte, not to the page, and host code can access device memory.
//! - Each allocation takes one file descriptor. The memory limit applies to each process separately.
//! - The last release of a primary context clears its error; hardware may need a new process.
//! - `cuMemcpyPeer` blocks the caller until both contexts are idle and the copy is done. Stream priorities are stored and have no effect.
//! - Asynchronous copies (`cp.async`, bulk ones included) complete at once.
//! - The heap of kernels has 8 MiB, and the buffer of `printf` 1 MiB; their limits cannot be changed.
//! - Multicast is off unless `AQUEDUCT_SOFT_MULTICAST=1`. Plain loads, stores and copies of a multicast address are faults. A
//!   process's bindings end when it has neither a handle nor a mapping of the multicast object left; others need the right to
//!   open its descriptors, as for legacy IPC.
//! - There is no register file: kernels report 32 registers, and registers never limit occupancy.
//! - `discard` leaves the values as they are, unless memory is weak or the device unkind; the race detector takes it for the weak write
//!   that it is.
//! - A linked image is PTX, and is compiled again when it is loaded.
//! - A dma-buf descriptor is the memory's memfd: other processes can map it, but no kernel driver accepts it.
//!
//! # Not supported (the calls return errors)
//! IPC events, the per-thread default stream, graphs that wait for events (`CU_EVENT_WAIT_EXTERNAL`), fabric handles, host memory from
//! `cuMemCreate`, programmatic dependent launch and some other launch attributes, stream values without a
//! memory barrier, cubins and fat binaries, managed memory, textures and surfaces, matrix
//! instructions (`mma`, `wmma`, `wgmma`, `tcgen05`, `ldmatrix`), tensor maps, kernels that launch kernels, `.b128` of `atom`.
//!
//! Of the 142 files of the public CUDA samples that CUDA 13.0's nvcc compiles without other libraries (`ci/samples.sh`; 33 more
//! need one, or relocatable code), 108 load for `sm_75` and 105 for `sm_90`. In both, 31 are refused for textures or surfaces and
//! one for conditional graph nodes, an extern of the device runtime; 2 and 5 are refused for `wmma`, one of these for `cvt` to
//! `.tf32`, too. Without these instructions, each of the others loads. With a whole toolkit 153 compile, of which 121 load for `sm_75`
//! and 118 for `sm_90` (`benches/records/2026-11-29-h200-samples`, which also compares what they compute with a GPU).

pub mod code;
pub mod exec;
pub mod lower;
pub mod mem;
pub mod ptx;

mod abi;
mod check;
mod config;
mod driver;
mod handles;
mod jit;
mod machine;
mod module;
mod sticky;
mod stream;

pub use config::{Check, Config, Lacks, Lines, Weak, configure};
pub use driver::driver_table;
pub use machine::{races, weaken};
