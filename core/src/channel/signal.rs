//! A channel without memory.
#![forbid(unsafe_code)]

use super::semaphore::StreamSemaphore;
use crate::comm::Device2DeviceSemaphore;
use crate::error::Result;
use crate::gpu::{DeviceSlice, Stream};

/// One end of a channel that only signals and waits: a [`Device2DeviceSemaphore`] as streams use it, without
/// registered memory (BaseMemoryChannel in MSCCL++).
///
/// It orders whatever the two devices do with memory that both reach, however that was put there. A kernel of your
/// own does the same with the semaphore's [`device_handle`](Device2DeviceSemaphore::device_handle) and the
/// `semaphore_` functions of the device library; for the host of one side see
/// [`Host2DeviceSemaphore`](crate::comm::Host2DeviceSemaphore).
///
/// Each call enqueues one kernel and returns; the stream keeps the semaphore alive. Each signal is matched by one
/// wait at the other end. Calls on one semaphore, by channels with memory too, belong on one stream, or on streams
/// the caller orders: because its counters have one writer. A kernel that waits leaves when the communicator aborts,
/// and waits for the stream then return why.
#[derive(Clone, Debug)]
pub struct SignalChannel {
    semaphore: StreamSemaphore,
    peer: u32,
}

impl SignalChannel {
    /// Loads the kernels, so make it before kernels spin.
    ///
    /// # Errors
    /// A failure to compile or load the kernels.
    pub fn new(semaphore: &Device2DeviceSemaphore) -> Result<Self> {
        Ok(Self { semaphore: StreamSemaphore::device(semaphore)?, peer: semaphore.peer() })
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// Publishes what this stream did before, then signals the peer once (`st.release.sys`).
    ///
    /// # Errors
    /// The reason if the channel has failed; a driver error.
    pub fn signal(&self, stream: &Stream) -> Result<()> {
        self.semaphore.signal(stream)
    }

    /// Signals the peer once by a relaxed store. The start of its kernel has published what the stream did before
    /// (docs/memory-model.md, "The start of a kernel"), so a [`wait`](Self::wait) sees that; the fence of [`signal`](Self::signal) is left out.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn relaxed_signal(&self, stream: &Stream) -> Result<()> {
        self.semaphore.relaxed_signal(stream)
    }

    /// Waits for one signal; later work of the stream sees what it published (`ld.acquire.sys`).
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.semaphore.wait(stream)
    }

    /// Waits for one signal without seeing what was published before it.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn relaxed_wait(&self, stream: &Stream) -> Result<()> {
        self.semaphore.relaxed_wait(stream)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    ///
    /// # Errors
    /// `InvalidUsage` unless `taken` has four aligned bytes of this device; otherwise as for [`signal`](Self::signal).
    pub fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        self.semaphore.poll(stream, taken)
    }
}
