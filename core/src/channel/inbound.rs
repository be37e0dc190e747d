//! Waits of streams for signals from a peer's host.

use std::sync::Arc;

use aqueduct_ptx::abi;

use super::kernels::{load_kernels, take};
use super::launch::{Channel, ONE_WARP, check_result, launch};
use crate::comm::Host2DeviceSemaphore;
use crate::error::Result;
use crate::gpu::{DeviceSlice, Function, KernelArg, Stream, arg};
use crate::outcome::Outcome;

/// Lets streams wait for signals of a peer's host: the device side of a [`Host2DeviceSemaphore`].
///
/// A kernel of your own does the same with the semaphore's [`device_handle`](Host2DeviceSemaphore::device_handle).
/// Calls belong on one stream, or on streams the caller orders: because the count of waits has one writer. A waiting
/// kernel leaves when the communicator aborts or the connection fails.
#[derive(Clone, Debug)]
pub struct InboundSignals {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    outcome: Arc<dyn Outcome>,
    handle: abi::MemoryChannelHandle,
    semaphore: Host2DeviceSemaphore,
    wait: Function,
    poll: Function,
}

impl Channel for Inner {
    type Handle = abi::MemoryChannelHandle;

    fn handle(&self) -> &Self::Handle {
        &self.handle
    }

    fn outcome(&self) -> &Arc<dyn Outcome> {
        &self.outcome
    }

    fn check(&self) -> Result<()> {
        self.semaphore.connection().check("wait")
    }
}

impl InboundSignals {
    /// Loads the kernels, so make it before kernels spin.
    ///
    /// # Errors
    /// A failure to compile or load the kernels.
    pub fn new(semaphore: &Host2DeviceSemaphore) -> Result<Self> {
        let [_, _, wait, _, poll] = take(load_kernels(semaphore.context(), "semaphore", &[])?)?;
        // The kernels take a whole channel and use its semaphore only.
        let handle = abi::MemoryChannelHandle {
            semaphore: semaphore.device_handle(),
            dst: 0,
            dst_bytes: 0,
            src: 0,
            src_bytes: 0,
            packets: 0,
            packet_bytes: 0,
            arrived: 0,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                outcome: semaphore.outcome(),
                handle,
                semaphore: semaphore.clone(),
                wait,
                poll,
            }),
        })
    }

    /// Waits for one signal; later work of the stream sees what the peer wrote before it (`ld.acquire.sys`).
    ///
    /// # Errors
    /// The reason if no signal can come any more; a driver error.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.act(&self.inner.wait, stream, &[], None)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    ///
    /// # Errors
    /// `InvalidUsage` unless `taken` has four aligned bytes of this device's memory; otherwise as for
    /// [`wait`](Self::wait).
    pub fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        check_result::<u32>("poll", self.inner.semaphore.context(), taken)?;
        self.act(&self.inner.poll, stream, &[arg(&taken.ptr())], Some(taken))
    }

    fn act(
        &self,
        function: &Function,
        stream: &Stream,
        args: &[KernelArg<'_>],
        result: Option<&DeviceSlice>,
    ) -> Result<()> {
        // SAFETY: the arguments are those of the function's catalog row; the counters belong to the semaphore, which
        // the channel holds; the result has been checked.
        unsafe { launch(&self.inner, function, stream, &ONE_WARP, args, result) }
    }
}
