//! Waits of streams for signals from a peer's host.
#![forbid(unsafe_code)]

use super::semaphore::StreamSemaphore;
use crate::comm::Host2DeviceSemaphore;
use crate::error::Result;
use crate::gpu::{DeviceSlice, Stream};

/// Lets streams wait for signals of a peer's host: the device side of a [`Host2DeviceSemaphore`].
///
/// A kernel of your own does the same with the semaphore's [`device_handle`](Host2DeviceSemaphore::device_handle).
/// Calls belong on one stream, or on streams the caller orders: because the count of waits has one writer. A waiting
/// kernel leaves when the communicator aborts or the connection fails.
#[derive(Clone, Debug)]
pub struct InboundSignals {
    semaphore: StreamSemaphore,
}

impl InboundSignals {
    /// Loads the kernels, so make it before kernels spin.
    ///
    /// # Errors
    /// A failure to compile or load the kernels.
    pub fn new(semaphore: &Host2DeviceSemaphore) -> Result<Self> {
        Ok(Self { semaphore: StreamSemaphore::host(semaphore)? })
    }

    /// Waits for one signal; later work of the stream sees what the peer wrote before it (`ld.acquire.sys`).
    ///
    /// # Errors
    /// The reason if no signal can come any more; a driver error.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.semaphore.wait(stream)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    ///
    /// # Errors
    /// `InvalidUsage` unless `taken` has four aligned bytes of this device's memory; otherwise as for
    /// [`wait`](Self::wait).
    pub fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        self.semaphore.poll(stream, taken)
    }
}
