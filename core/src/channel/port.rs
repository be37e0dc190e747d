//! Channels to peers over a connection of any transport, through a proxy.

mod packets;

use std::sync::Arc;

use aqueduct_ptx::abi::{self, SemaphoreHandle, TriggerKind};

use super::checks::check;
use super::geometry::Geometry;
use super::kernels::{load_kernels, take};
use super::launch::{Channel, ONE_WARP, check_result, launch};
use crate::comm::RegisteredMemory;
use crate::error::{Error, Result};
use crate::gpu::{
    BufferOptions, Context, DeviceSlice, Function, GpuBuffer, HandlePolicy, KeepAlive, KernelArg,
    LaunchConfig, Stream, arg,
};
use crate::outcome::Outcome;
use crate::proxy::{MemoryId, Port, PortCounters, ProxyService, SemaphoreId};

/// One end of a channel to a peer over a connection of any transport, driven by kernels and executed by a
/// [`ProxyService`] (PortChannel in MSCCL++, once ProxyChannel).
///
/// | operation | asks the proxy to | returns |
/// |---|---|---|
/// | [`put`](Self::put) | copy from my `src` to the peer's `dst` | at once |
/// | [`signal`](Self::signal) | signal the peer, behind all puts of this connection before | at once |
/// | [`flush`](Self::flush) | report when everything asked of this connection before has completed | then; `src` can be used again |
/// | [`put_with_signal`](Self::put_with_signal), [`put_with_signal_and_flush`](Self::put_with_signal_and_flush) | both or all three, as one request | as above |
/// | [`wait`](Self::wait), [`poll`](Self::poll) | nothing: they take one signal of the peer | when there is one; at once |
/// | [`put_packets`](Self::put_packets), [`unpack_packets`](Self::unpack_packets) | copy packets that carry their own flags | at once; when they have come |
///
/// Each call enqueues one kernel; "returns" is when that kernel ends. A kernel of your own does the same with
/// [`device_handle`](Self::device_handle). Offsets and sizes are bytes; a put of up to 2^40 bytes is one request.
/// Signals and waits are matched one to one. Waits belong on one stream, or on streams the caller orders; everything
/// else may come from any number of threads and streams.
///
/// A kernel that waits leaves when the connection, its peer, the service or the communicator fails, or when
/// the service stops; [`check`](Self::check) then has the reason. A request that only this side finds wrong, such as a put to
/// memory that was removed, fails this side's ports of the connection and tells the peer nothing: a kernel there that waits for the
/// signal behind it goes on waiting until this rank leaves or somebody [aborts](crate::comm::Communicator::abort).
#[derive(Clone, Debug)]
pub struct PortChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    handle: abi::PortChannelHandle,
    port: Port,
    packets: Option<Packets>,
    geometry: Geometry,
    functions: Functions,
    /// Holds the counter at `handle.arrived`.
    _arrived: GpuBuffer,
}

/// Memory that only the packet form uses.
#[derive(Clone, Debug)]
struct Packets {
    data: RegisteredMemory,
    inbox: RegisteredMemory,
}

#[derive(Debug)]
struct Functions {
    act: Function,
    wait: Function,
    poll: Function,
    /// LL8 and LL16: put and unpack.
    packets: [[Function; 2]; 2],
}

impl Channel for Inner {
    type Handle = abi::PortChannelHandle;

    fn handle(&self) -> &Self::Handle {
        &self.handle
    }

    fn outcome(&self) -> &Arc<dyn Outcome> {
        &self.port.outcome
    }

    fn check(&self) -> Result<()> {
        self.port.check()
    }
}

impl PortChannel {
    /// A channel over semaphore `semaphore` of `service` that puts from its memory `src`, this rank's, to its memory
    /// `dst`, received from the semaphore's peer. Any number of channels may share a semaphore.
    ///
    /// Loads the channel's kernels, so make channels before kernels spin.
    ///
    /// # Errors
    /// `InvalidUsage` for a number that is not in the service, memory of the wrong side, or memory that is not
    /// registered for the connection's transport; the reason if the service has stopped or failed.
    pub fn new(service: &ProxyService, semaphore: SemaphoreId, dst: MemoryId, src: MemoryId) -> Result<Self> {
        Self::make(service.port(semaphore, dst, src)?, dst, src, None)
    }

    fn make(port: Port, dst: MemoryId, src: MemoryId, packets: Option<Packets>) -> Result<Self> {
        check_sides(&port)?;
        let context = port.semaphore.context();
        let plain = BufferOptions { zeroed: true, handles: HandlePolicy::Legacy };
        let arrived = GpuBuffer::with_options(context, size_of::<u64>(), plain)?;
        let (data, inbox) = (packets.as_ref().map(|p| &p.data), packets.as_ref().map(|p| &p.inbox));
        let at = |memory: Option<&RegisteredMemory>| memory.map_or(0, RegisteredMemory::ptr);
        let bytes = |memory: Option<&RegisteredMemory>| memory.map_or(0, |memory| memory.len() as u64);
        let handle = abi::PortChannelHandle {
            fifo: port.fifo,
            semaphore: SemaphoreHandle { abort: port.abort, ..port.semaphore.device_handle() },
            flushed: port.flushed,
            dst_bytes: port.dst.len() as u64,
            src: port.src.ptr(),
            src_bytes: port.src.len() as u64,
            data: at(data),
            data_bytes: bytes(data),
            packets: at(inbox),
            packet_bytes: bytes(inbox),
            arrived: arrived.ptr(),
            semaphore_id: u32::from(port.id().0),
            dst_id: u32::from(dst.0),
            src_id: u32::from(src.0),
            reserved: 0,
        };
        let (geometry, functions) = (Geometry::of(context)?, Functions::load(context)?);
        let inner = Inner { handle, port, packets, geometry, functions, _arrived: arrived };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The channel as kernels see it: plain data, valid as long as this channel lives.
    pub fn device_handle(&self) -> abi::PortChannelHandle {
        self.inner.handle
    }

    /// The owner that a stream must retain while a kernel uses the handle.
    pub fn keep_alive(&self) -> KeepAlive {
        self.inner.clone()
    }

    /// Has waits for `stream` return an error if the channel fails, as they do for the channel's own calls. Call it after
    /// launching a kernel of your own that uses the handle.
    pub fn report_to(&self, stream: &Stream) {
        stream.depend_on(&self.inner.port.outcome);
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.inner.port.semaphore.peer()
    }

    /// Returns `Ok` while the channel works.
    ///
    /// # Errors
    /// The failure of its connection, its peer or the service.
    pub fn check(&self) -> Result<()> {
        self.inner.port.check()
    }

    /// Numbers of operations completed for all channels of this semaphore.
    ///
    /// # Errors
    /// `InvalidUsage` if the semaphore was removed.
    pub fn counters(&self) -> Result<PortCounters> {
        self.inner.port.service().port_counters(self.inner.port.id())
    }

    /// Puts `bytes` bytes from my `src_offset` to the peer's `dst_offset`.
    ///
    /// # Errors
    /// `InvalidUsage` past the end; the reason if the channel has failed; a driver error.
    pub fn put(&self, stream: &Stream, dst_offset: usize, src_offset: usize, bytes: usize) -> Result<()> {
        self.move_bytes(stream, TriggerKind::DATA, dst_offset, src_offset, bytes)
    }

    /// [`put`](Self::put), then [`signal`](Self::signal), as one request.
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
        self.move_bytes(stream, TriggerKind::DATA.with(TriggerKind::FLAG), dst_offset, src_offset, bytes)
    }

    /// [`put`](Self::put), then [`signal`](Self::signal), then [`flush`](Self::flush), as one request.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn put_with_signal_and_flush(
        &self,
        stream: &Stream,
        dst_offset: usize,
        src_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let kind = TriggerKind::DATA.with(TriggerKind::FLAG).with(TriggerKind::SYNC);
        self.move_bytes(stream, kind, dst_offset, src_offset, bytes)
    }

    /// Signals the peer once, after the data of all puts of this connection before.
    ///
    /// # Errors
    /// The reason if the channel has failed; a driver error.
    pub fn signal(&self, stream: &Stream) -> Result<()> {
        self.act(stream, TriggerKind::FLAG, 0, 0, 0)
    }

    /// Lets later work of the stream begin when everything asked of this connection before has completed: sources may
    /// be used again. What others ask for meanwhile is not waited for.
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn flush(&self, stream: &Stream) -> Result<()> {
        self.act(stream, TriggerKind::SYNC, 0, 0, 0)
    }

    /// Waits for one signal; later work of the stream sees the data of the puts before it (`ld.acquire.sys`).
    ///
    /// # Errors
    /// As for [`signal`](Self::signal).
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.launch(&self.inner.functions.wait, stream, &ONE_WARP, &[arg(&NO_STATUS)], None)
    }

    /// Takes one signal if there is one; stores 1 or 0 (u32) into the first four bytes of `taken`.
    ///
    /// # Errors
    /// `InvalidUsage` unless `taken` has four aligned bytes of this device; as for [`signal`](Self::signal).
    pub fn poll(&self, stream: &Stream, taken: &DeviceSlice) -> Result<()> {
        check_result::<u32>("poll", self.inner.port.semaphore.context(), taken)?;
        self.launch(&self.inner.functions.poll, stream, &ONE_WARP, &[arg(&taken.ptr())], Some(taken))
    }

    fn move_bytes(
        &self,
        stream: &Stream,
        kind: TriggerKind,
        dst: usize,
        src: usize,
        bytes: usize,
    ) -> Result<()> {
        check("put", "dst", dst, bytes, self.inner.port.dst.len())?;
        check("put", "src", src, bytes, self.inner.port.src.len())?;
        if bytes as u64 >> 40 != 0 {
            return Err(Error::usage(
                "put",
                format!("{bytes} bytes: a put has less than 2^40; make several"),
            ));
        }
        self.act(stream, kind, dst as u64, src as u64, bytes as u64)
    }

    fn act(&self, stream: &Stream, kind: TriggerKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let kind = u32::from(kind.0);
        let args = [arg(&kind), arg(&dst), arg(&src), arg(&bytes), arg(&NO_STATUS)];
        self.launch(&self.inner.functions.act, stream, &ONE_WARP, &args, None)
    }

    /// `result` is the user's memory that the kernel writes, checked for size and alignment.
    fn launch(
        &self,
        function: &Function,
        stream: &Stream,
        config: &LaunchConfig,
        args: &[KernelArg<'_>],
        result: Option<&DeviceSlice>,
    ) -> Result<()> {
        // SAFETY: the arguments are those of the catalog row this function was loaded from. Ranges were checked
        // against the memories, which the channel holds; the result has been checked.
        unsafe { launch(&self.inner, function, stream, config, args, result) }
    }
}

/// Tells kernels not to report why they left early: the service knows the reason.
const NO_STATUS: u64 = 0;

impl Functions {
    fn load(context: &Context) -> Result<Self> {
        let [act, wait, poll] = take(load_kernels(context, "port", &[])?)?;
        let packets = |format| take(load_kernels(context, "port_packet", &[("FORMAT", format)])?);
        Ok(Self { act, wait, poll, packets: [packets("ll8")?, packets("ll16")?] })
    }
}

fn check_sides(port: &Port) -> Result<()> {
    const OP: &str = "PortChannel::new";
    let peer = port.semaphore.peer();
    let group = port.semaphore.connection().group();
    if port.dst.owner_in(group) != Some(peer) {
        let whose = port.dst.whose(group);
        return Err(Error::usage(
            OP,
            format!("dst must be memory of the semaphore's peer, rank {peer}; {whose}"),
        ));
    }
    own(OP, &port.src, port)?;
    let transport = port.semaphore.connection().transport();
    port.dst.check_transport(OP, transport)?;
    port.src.check_transport(OP, transport)
}

/// Returns an error unless `memory` is this rank's own, in the semaphore's context.
fn own(op: &'static str, memory: &RegisteredMemory, port: &Port) -> Result<()> {
    let group = port.semaphore.connection().group();
    if memory.owner_in(group) != Some(group.rank()) {
        let whose = memory.whose(group);
        return Err(Error::usage(op, format!("the memory to put from must be this rank's own; {whose}")));
    }
    if memory.context() != port.semaphore.context() {
        return Err(Error::usage(
            op,
            "the memory belongs to another context than the semaphore; make both from one Context",
        ));
    }
    Ok(())
}
