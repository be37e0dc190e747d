//! Semaphores, by which the device or host of one rank waits for that of another.
//!
//! Each end has three 64-bit counters. *Inbound* is written by the peer and waited on here; *expected inbound* counts
//! the waits here; *outbound* counts the signals sent, and a signal publishes its absolute value as the peer's inbound.
//! Each word has one writer, so nothing needs atomics across devices.
//!
//! | semaphore | signalled by | waited for by | transports |
//! |---|---|---|---|
//! | [`Device2DeviceSemaphore`] | a kernel, into the peer's memory | a kernel | CudaIpc |
//! | [`Host2DeviceSemaphore`] | the host, through the connection | a kernel | all |
//! | [`Host2HostSemaphore`] | the host, through the connection | the host | all |

mod device;
mod ends;
mod host;
mod item;

pub use device::Device2DeviceSemaphore;
pub use ends::SemaphoreCounters;
pub(crate) use ends::Site;
pub use host::{Host2DeviceSemaphore, Host2HostSemaphore};
pub(crate) use item::{Flavour, SemaphoreItem};
