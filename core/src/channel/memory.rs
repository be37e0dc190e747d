//! Channels to peers whose memory this GPU can load from and store to.

mod functions;
mod packets;
mod words;

use std::sync::Arc;

use aqueduct_ptx::abi;

use super::checks::check;
use super::geometry::Geometry;
use super::launch::{Channel, ONE_WARP, launch};
use super::semaphore::StreamSemaphore;
use crate::comm::{Device2DeviceSemaphore, RegisteredMemory, Rights};
use crate::error::{Error, Result};
use crate::gpu::{
    BufferOptions, DeviceSlice, Function, GpuBuffer, HandlePolicy, KeepAlive, KernelArg, LaunchConfig,
    Stream, arg,
};
use crate::outcome::Outcome;
use functions::{Functions, UNROLL};

/// One end of a channel to a peer whose memory this GPU can load from and store to (MemoryChannel in MSCCL++, once
/// SmChannel). Signals alone need no memory: [`SignalChannel`](super::SignalChannel).
///
/// | operation | moves | ordering |
/// |---|---|---|
/// | [`put`](Self::put) | my `src` to the peer's `dst` | published by a later signal |
/// | [`put_with_signal`](Self::put_with_signal) | the same, then one signal after all of it | release |
/// | [`get`](Self::get) | the peer's `dst` to my `src` | behind a wait |
/// | [`put_aligned`](Self::put_aligned), [`put_aligned_with_signal`](Self::put_aligned_with_signal), [`get_aligned`](Self::get_aligned) | the same, in multiples of 16 bytes | the same |
/// | [`put_packets`](Self::put_packets) | my `src`, as packets, to the peer's `dst` | each packet by its own flag |
/// | [`unpack_packets`](Self::unpack_packets) | packets in my packet buffer to my `src` | each packet by its own flag |
/// | [`signal`](Self::signal) / [`wait`](Self::wait) | one count of the semaphore | release / acquire |
/// | [`relaxed_signal`](Self::relaxed_signal) / [`relaxed_wait`](Self::relaxed_wait) | the same | what the stream did before its kernel / none |
/// | [`poll`](Self::poll) | takes a count if there is one | acquire |
///
/// Offsets and sizes are bytes. Every call enqueues one kernel and returns; the stream keeps the channel alive. Calls
/// on one channel belong on one stream, or on streams the caller orders: because its counters have one writer.
///
/// Each signal is matched by one wait at the other end. A kernel that waits leaves when the communicator aborts, and
/// the abort record then holds what it waited for.
#[derive(Clone, Debug)]
pub struct MemoryChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    outcome: Arc<dyn Outcome>,
    handle: abi::MemoryChannelHandle,
    semaphore: Device2DeviceSemaphore,
    signals: StreamSemaphore,
    dst: RegisteredMemory,
    src: RegisteredMemory,
    packets: Option<RegisteredMemory>,
    geometry: Geometry,
    functions: Functions,
    /// Holds the counter at `handle.arrived`.
    _arrived: GpuBuffer,
}

/// Bytes of a vector, of which [`MemoryChannel::put_aligned`] and the other aligned operations need multiples.
const VECTOR: usize = 16;

impl Channel for Inner {
    type Handle = abi::MemoryChannelHandle;

    fn handle(&self) -> &Self::Handle {
        &self.handle
    }

    fn outcome(&self) -> &Arc<dyn Outcome> {
        &self.outcome
    }

    fn check(&self) -> Result<()> {
        self.semaphore.check()
    }
}

/// The alignment that a copy relies on.
#[derive(Clone, Copy, Debug)]
enum Copy {
    /// At any alignment.
    Bytes,
    /// In 16-byte vectors only.
    Words,
}

impl MemoryChannel {
    /// A channel over `semaphore` that writes to `dst` (received from the semaphore's peer) and reads `src` (mine).
    /// `packets` is my packet buffer, which the peer's channel has as its `dst` when it puts packets.
    ///
    /// Loads the channel's kernels, so make channels before kernels spin.
    ///
    /// # Errors
    /// `InvalidUsage` for memory of another peer, another context, or the wrong side; a failure to compile or load the
    /// kernels.
    pub fn new(
        semaphore: &Device2DeviceSemaphore,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
        packets: Option<&RegisteredMemory>,
    ) -> Result<Self> {
        let context = src.context();
        check_sides(semaphore, dst, src, packets)?;
        let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
        let arrived = GpuBuffer::with_options(context, size_of::<u64>(), plain)?;
        let handle = abi::MemoryChannelHandle {
            semaphore: semaphore.device_handle(),
            dst: dst.ptr(),
            dst_bytes: dst.len() as u64,
            src: src.ptr(),
            src_bytes: src.len() as u64,
            packets: packets.map_or(0, RegisteredMemory::ptr),
            packet_bytes: packets.map_or(0, |p| p.len() as u64),
            arrived: arrived.ptr(),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                outcome: semaphore.outcome(),
                handle,
                semaphore: semaphore.clone(),
                signals: StreamSemaphore::device(semaphore)?,
                dst: dst.clone(),
                src: src.clone(),
                packets: packets.cloned(),
                geometry: Geometry::of(context)?,
                functions: Functions::load(context)?,
                _arrived: arrived,
            }),
        })
    }

    /// The channel as kernels see it: plain data, valid as long as this channel lives.
    pub fn device_handle(&self) -> abi::MemoryChannelHandle {
        self.inner.handle
    }

    /// The owner that a stream must retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.inner.clone()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.inner.semaphore.peer()
    }

    /// Copies `bytes` from my `src_offset` to the peer's `dst_offset`. Any alignment.
    ///
    /// # Errors
    /// `InvalidUsage` past the end, and for memory that its owner has not registered for it ([`Rights`](crate::comm::Rights)); the reason
    /// if the channel has failed; a driver error.
    pub fn put(&self, stream: &Stream, dst_offset: usize, src_offset: usize, bytes: usize) -> Result<()> {
        self.put_then(stream, Copy::Bytes, dst_offset, src_offset, bytes, false)
    }

    /// [`put`](Self::put), then one signal that publishes all of it.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn put_with_signal(
        &self,
        stream: &Stream,
        dst_offset: usize,
        src_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.put_then(stream, Copy::Bytes, dst_offset, src_offset, bytes, true)
    }

    /// [`put`](Self::put) of multiples of 16 bytes between multiples of 16: the kernel has no code for other cases.
    ///
    /// # Errors
    /// As for [`put`](Self::put); `InvalidUsage` if an offset, the size or the address of `dst` or `src` is not a
    /// multiple of 16.
    pub fn put_aligned(
        &self,
        stream: &Stream,
        dst_offset: usize,
        src_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.put_then(stream, Copy::Words, dst_offset, src_offset, bytes, false)
    }

    /// [`put_aligned`](Self::put_aligned), then one signal that publishes all of it.
    ///
    /// # Errors
    /// As for [`put_aligned`](Self::put_aligned).
    pub fn put_aligned_with_signal(
        &self,
        stream: &Stream,
        dst_offset: usize,
        src_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.put_then(stream, Copy::Words, dst_offset, src_offset, bytes, true)
    }

    fn put_then(
        &self,
        stream: &Stream,
        copy: Copy,
        dst: usize,
        src: usize,
        bytes: usize,
        signal: bool,
    ) -> Result<()> {
        let config = self.copies("put", copy, dst, src, bytes)?;
        let [put, _] = &self.inner.functions.copies[copy as usize];
        let (dst, src, bytes, signal) = (dst as u64, src as u64, bytes as u64, u32::from(signal));
        self.launch(put, stream, &config, &[arg(&dst), arg(&src), arg(&bytes), arg(&signal)])
    }

    /// Copies `bytes` from the peer's `remote_offset` to my `local_offset`. Any alignment.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn get(
        &self,
        stream: &Stream,
        remote_offset: usize,
        local_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.get_by(stream, Copy::Bytes, remote_offset, local_offset, bytes)
    }

    /// [`get`](Self::get) of multiples of 16 bytes between multiples of 16.
    ///
    /// # Errors
    /// As for [`put_aligned`](Self::put_aligned).
    pub fn get_aligned(
        &self,
        stream: &Stream,
        remote_offset: usize,
        local_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.get_by(stream, Copy::Words, remote_offset, local_offset, bytes)
    }

    fn get_by(&self, stream: &Stream, copy: Copy, remote: usize, local: usize, bytes: usize) -> Result<()> {
        let config = self.copies("get", copy, remote, local, bytes)?;
        let [_, get] = &self.inner.functions.copies[copy as usize];
        let (remote, local, bytes) = (remote as u64, local as u64, bytes as u64);
        self.launch(get, stream, &config, &[arg(&remote), arg(&local), arg(&bytes)])
    }

    /// Checks a copy between `dst` and `src` at these offsets, and returns its launch.
    fn copies(
        &self,
        op: &'static str,
        copy: Copy,
        dst: usize,
        src: usize,
        bytes: usize,
    ) -> Result<LaunchConfig> {
        let needed = if op == "get" { Rights::REMOTE_READ } else { Rights::REMOTE_WRITE };
        self.inner.dst.check_rights(op, needed)?;
        // A reader of `get` would take the peer's memory for the source.
        let [theirs, mine] = if op == "get" { ["the peer's memory", "my memory"] } else { ["dst", "src"] };
        check(op, theirs, dst, bytes, self.inner.dst.len())?;
        check(op, mine, src, bytes, self.inner.src.len())?;
        if let Copy::Words = copy {
            self.check_words(op, dst, src, bytes)?;
        }
        Ok(self.inner.geometry.copy(bytes, UNROLL))
    }

    fn check_words(&self, op: &'static str, dst: usize, src: usize, bytes: usize) -> Result<()> {
        let handle = &self.inner.handle;
        if ![dst, src, bytes].iter().all(|value| value.is_multiple_of(VECTOR)) {
            let message = format!(
                "an aligned {op} needs multiples of {VECTOR}; offset {dst} of dst, offset {src} of src, size {bytes}; \
                 `{op}` takes any"
            );
            return Err(Error::usage(op, message));
        }
        if ![handle.dst, handle.src].iter().all(|address| address.is_multiple_of(VECTOR as u64)) {
            let message = format!(
                "an aligned {op} needs memory at multiples of {VECTOR}; dst lies at {:#x}, src at {:#x}; `{op}` takes any",
                handle.dst, handle.src
            );
            return Err(Error::usage(op, message));
        }
        Ok(())
    }

    /// Publishes what this stream did before, then signals the peer once (`st.release.sys`).
    ///
    /// # Errors
    /// `InvalidUsage` for a stream of another context; a driver error.
    pub fn signal(&self, stream: &Stream) -> Result<()> {
        self.inner.signals.signal(stream)
    }

    /// Signals the peer once by a relaxed store. The start of its kernel has published what the stream did before
    /// (docs/memory-model.md, "The start of a kernel"), so a [`wait`](Self::wait) sees that; the fence of [`signal`](Self::signal) is left out.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn relaxed_signal(&self, stream: &Stream) -> Result<()> {
        self.inner.signals.relaxed_signal(stream)
    }

    /// Waits for one signal; later work of the stream sees what it published (`ld.acquire.sys`).
    ///
    /// # Errors
    /// As for [`signal`](Self::signal). [`Stream::synchronize`] returns an error if the kernel gave the wait up.
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.inner.signals.wait(stream)
    }

    /// Waits for one signal without seeing what was published before it.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn relaxed_wait(&self, stream: &Stream) -> Result<()> {
        self.inner.signals.relaxed_wait(stream)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal); `InvalidUsage` for fewer than four bytes, or a misaligned address.
    pub fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        self.inner.signals.poll(stream, taken)
    }

    /// One warp, whose first thread acts.
    fn act(&self, function: &Function, stream: &Stream, args: &[KernelArg<'_>]) -> Result<()> {
        self.launch(function, stream, &ONE_WARP, args)
    }

    fn launch(
        &self,
        function: &Function,
        stream: &Stream,
        config: &LaunchConfig,
        args: &[KernelArg<'_>],
    ) -> Result<()> {
        self.launch_with(function, stream, config, args, None)
    }

    /// `result` is the user's memory that the kernel writes, checked for size and alignment.
    fn launch_with(
        &self,
        function: &Function,
        stream: &Stream,
        config: &LaunchConfig,
        args: &[KernelArg<'_>],
        result: Option<&DeviceSlice>,
    ) -> Result<()> {
        // SAFETY: the arguments are those of the catalog row this function was loaded from; its ranges were checked
        // against the registered memory, which the channel holds; the result has been checked.
        unsafe { launch(&self.inner, function, stream, config, args, result) }
    }
}

fn check_sides(
    semaphore: &Device2DeviceSemaphore,
    dst: &RegisteredMemory,
    src: &RegisteredMemory,
    packets: Option<&RegisteredMemory>,
) -> Result<()> {
    let refuse = |message: String| Err(Error::usage("MemoryChannel::new", message));
    let (peer, group) = (semaphore.peer(), semaphore.connection().group());
    if dst.is_local() {
        return refuse(format!("dst is this rank's own memory; receive rank {peer}'s with recv_memory"));
    }
    if dst.owner_in(group) != Some(peer) {
        let whose = dst.whose(group);
        return refuse(format!("dst must be memory of the semaphore's peer, rank {peer}; {whose}"));
    }
    dst.slice()?;
    for (name, memory) in [("src", Some(src)), ("the packet buffer", packets)] {
        let Some(memory) = memory else { continue };
        if !memory.is_local() {
            return refuse(format!("{name} must be this rank's own; {}", memory.whose(group)));
        }
        if memory.context() != semaphore.context() {
            return refuse(format!("{name} belongs to another context than the semaphore"));
        }
        memory.slice()?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests;
