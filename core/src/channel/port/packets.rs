//! The packet form of a port channel: data that carries its own flags.

use super::{NO_STATUS, Packets, PortChannel, own};
use crate::channel::checks::{Location, check_packets};
use crate::channel::packet::PacketFormat;
use crate::comm::{RegisteredMemory, Transport};
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Function, Stream, arg};
use crate::proxy::{MemoryId, ProxyService, SemaphoreId};

impl PortChannel {
    /// [`new`](Self::new), with the packet form: `data`, this rank's, is what becomes packets in `src` and what packets in
    /// `inbox`, this rank's, become. `inbox` is what the peer's channel has as its `dst`.
    ///
    /// Packets rely on how the transport writes: `CudaIpc` and `Ethernet` end in a copy engine, which writes aligned
    /// 8-byte words at once on all GPUs tested, though NVIDIA does not promise it. `docs/memory-model.md` has the
    /// argument.
    ///
    /// # Errors
    /// As for [`new`](Self::new); `InvalidUsage` if a memory has no address on this device; `Unsupported` over verbs,
    /// where data is registered for relaxed ordering and a flag may arrive before its data.
    pub fn with_packets(
        service: &ProxyService,
        semaphore: SemaphoreId,
        dst: MemoryId,
        src: MemoryId,
        data: &RegisteredMemory,
        inbox: &RegisteredMemory,
    ) -> Result<Self> {
        const OP: &str = "PortChannel::with_packets";
        let port = service.port(semaphore, dst, src)?;
        if let Transport::Ib(_) = port.semaphore.connection().transport() {
            let message = "a NIC may write a packet's flag before its data, because data is registered for relaxed ordering; use \
                           put_with_signal and wait, or packets over another transport";
            return Err(Error::new(ErrorKind::Unsupported, OP, message).with_peer(port.semaphore.peer()));
        }
        for memory in [data, inbox, &port.src] {
            own(OP, memory, &port)?;
            memory.slice()?;
        }
        let packets = Packets { data: data.clone(), inbox: inbox.clone() };
        Self::make(port, dst, src, Some(packets))
    }

    /// Writes `bytes` bytes of the data at `data_offset` as packets with `flag` to `src_offset` of my `src`, and puts
    /// those to `dst_offset` of the peer's packet buffer. The receiver needs no signal: each packet carries its flag,
    /// which must differ from every flag those packets may still carry there, and is never 0. Before you
    /// overwrite the packets of an earlier put, make sure that they have left `src`: by a flush, or by an answer of the
    /// peer.
    ///
    /// # Errors
    /// `InvalidUsage` if the channel was made without packets, for LL128, for what does not fit or is not aligned;
    /// otherwise as for [`signal`](Self::signal).
    #[expect(clippy::too_many_arguments, reason = "three places and how much: as in the seed")]
    pub fn put_packets(
        &self,
        stream: &Stream,
        format: PacketFormat,
        dst_offset: usize,
        src_offset: usize,
        data_offset: usize,
        bytes: usize,
        flag: u32,
    ) -> Result<()> {
        const OP: &str = "put_packets";
        let (packets, functions) = self.packet_form(OP, format)?;
        let port = &self.inner.port;
        let data = Location { what: "data", offset: data_offset, len: packets.data.len() };
        let dst = Location { what: "dst", offset: dst_offset, len: port.dst.len() };
        let src = Location { what: "src", offset: src_offset, len: port.src.len() };
        check_packets(OP, format, bytes, flag, &data, &[dst, src])?;
        let config = self.inner.geometry.packets(format.work(bytes));
        let [dst, src, data, bytes] = [dst_offset, src_offset, data_offset, bytes].map(|value| value as u64);
        let args = [arg(&dst), arg(&src), arg(&data), arg(&bytes), arg(&flag), arg(&NO_STATUS)];
        self.launch(&functions[0], stream, &config, &args, None)
    }

    /// Waits for the packets with `flag` at `packet_offset` of my packet buffer and stores their `bytes` bytes of data
    /// at `data_offset` of the data.
    ///
    /// # Errors
    /// As for [`put_packets`](Self::put_packets).
    pub fn unpack_packets(
        &self,
        stream: &Stream,
        format: PacketFormat,
        packet_offset: usize,
        data_offset: usize,
        bytes: usize,
        flag: u32,
    ) -> Result<()> {
        const OP: &str = "unpack_packets";
        let (packets, functions) = self.packet_form(OP, format)?;
        let data = Location { what: "data", offset: data_offset, len: packets.data.len() };
        let inbox = Location { what: "the packet buffer", offset: packet_offset, len: packets.inbox.len() };
        check_packets(OP, format, bytes, flag, &data, &[inbox])?;
        let config = self.inner.geometry.packets(format.work(bytes));
        let [from, to, bytes] = [packet_offset, data_offset, bytes].map(|value| value as u64);
        let args = [arg(&from), arg(&to), arg(&bytes), arg(&flag), arg(&NO_STATUS)];
        self.launch(&functions[1], stream, &config, &args, None)
    }

    fn packet_form(&self, op: &'static str, format: PacketFormat) -> Result<(&Packets, &[Function; 2])> {
        let packets = self.inner.packets.as_ref().ok_or_else(|| {
            Error::usage(op, "the channel has no packet buffer; make it with PortChannel::with_packets")
        })?;
        let index = match format {
            PacketFormat::Ll8 => 0,
            PacketFormat::Ll16 => 1,
            PacketFormat::Ll128 => {
                let message = "LL128 needs lines that arrive whole, which no copy engine and no network promises: use LL16";
                return Err(Error::usage(op, message));
            }
        };
        Ok((packets, &self.inner.functions.packets[index]))
    }
}
