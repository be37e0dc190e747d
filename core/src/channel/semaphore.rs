//! Stream operations on semaphores, shared by all channels to mapped memory.

use std::sync::Arc;

use aqueduct_ptx::abi::{MemoryChannelHandle, SemaphoreHandle};

use super::kernels::{load_kernels, take};
use super::launch::{Channel, ONE_WARP, check_result, launch};
use crate::comm::{Connection, Device2DeviceSemaphore, Host2DeviceSemaphore};
use crate::error::Result;
use crate::gpu::{Context, DeviceSlice, Function, KeepAlive, KernelArg, Stream, arg};
use crate::outcome::Outcome;

/// One end of a semaphore as streams use it. Each call enqueues one kernel, of which one thread acts; the stream
/// keeps the semaphore until it has ended.
#[derive(Clone, Debug)]
pub(super) struct StreamSemaphore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    outcome: Arc<dyn Outcome>,
    /// The kernels take a whole channel and use its semaphore only.
    handle: MemoryChannelHandle,
    context: Context,
    connection: Connection,
    signal: Function,
    relaxed_signal: Function,
    wait: Function,
    relaxed_wait: Function,
    poll: Function,
    /// The owner of the words behind the handle.
    _semaphore: KeepAlive,
}

impl Channel for Inner {
    type Handle = MemoryChannelHandle;

    fn handle(&self) -> &Self::Handle {
        &self.handle
    }

    fn outcome(&self) -> &Arc<dyn Outcome> {
        &self.outcome
    }

    fn check(&self) -> Result<()> {
        self.connection.check("semaphore")
    }
}

impl StreamSemaphore {
    /// Loads the kernels.
    pub(super) fn device(semaphore: &Device2DeviceSemaphore) -> Result<Self> {
        let handle = semaphore.device_handle();
        let (outcome, keep) = (semaphore.outcome(), semaphore.keep_alive());
        Self::make(semaphore.context(), semaphore.connection(), handle, outcome, keep)
    }

    /// The same for a semaphore that devices only wait for.
    pub(super) fn host(semaphore: &Host2DeviceSemaphore) -> Result<Self> {
        let handle = semaphore.device_handle();
        let (outcome, keep) = (semaphore.outcome(), semaphore.keep_alive());
        Self::make(semaphore.context(), semaphore.connection(), handle, outcome, keep)
    }

    fn make(
        context: &Context,
        connection: &Connection,
        semaphore: SemaphoreHandle,
        outcome: Arc<dyn Outcome>,
        keep: KeepAlive,
    ) -> Result<Self> {
        let [signal, relaxed_signal, wait, relaxed_wait, poll] =
            take(load_kernels(context, "semaphore", &[])?)?;
        let handle = MemoryChannelHandle {
            semaphore,
            dst: 0,
            dst_bytes: 0,
            src: 0,
            src_bytes: 0,
            packets: 0,
            packet_bytes: 0,
            arrived: 0,
        };
        let inner = Inner {
            outcome,
            handle,
            context: context.clone(),
            connection: connection.clone(),
            signal,
            relaxed_signal,
            wait,
            relaxed_wait,
            poll,
            _semaphore: keep,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Publishes what this stream did before, then signals the peer once (`st.release.sys`). Not for a semaphore of
    /// hosts.
    pub(super) fn signal(&self, stream: &Stream) -> Result<()> {
        self.act(&self.inner.signal, stream, &[], None)
    }

    /// Signals the peer once without publishing anything. Not for a semaphore of hosts.
    pub(super) fn relaxed_signal(&self, stream: &Stream) -> Result<()> {
        self.act(&self.inner.relaxed_signal, stream, &[], None)
    }

    /// Waits for one signal; later work of the stream sees what it published (`ld.acquire.sys`).
    pub(super) fn wait(&self, stream: &Stream) -> Result<()> {
        self.act(&self.inner.wait, stream, &[], None)
    }

    /// Waits for one signal without seeing what was published before it.
    pub(super) fn relaxed_wait(&self, stream: &Stream) -> Result<()> {
        self.act(&self.inner.relaxed_wait, stream, &[], None)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    pub(super) fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        check_result::<u32>("poll", &self.inner.context, taken)?;
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
        // `inner` holds; the result has been checked.
        unsafe { launch(&self.inner, function, stream, &ONE_WARP, args, result) }
    }
}
