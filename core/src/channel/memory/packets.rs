//! The packet form of a memory channel: data that carries its own flags.

use super::MemoryChannel;
use crate::channel::checks::{Location, check_packets};
use crate::channel::packet::PacketFormat;
use crate::comm::Rights;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{LaunchConfig, Stream, arg};

impl MemoryChannel {
    /// Whether packets of this format can be put to the peer and unpacked here. LL8 and LL16 always can; LL128 needs
    /// a path between the devices that keeps lines of 128 bytes whole: NVLink, or one device. Check this before a
    /// kernel of your own uses LL128 with the [`device_handle`](Self::device_handle), which checks nothing.
    pub fn carries(&self, format: PacketFormat) -> bool {
        format != PacketFormat::Ll128 || self.inner.semaphore.topology().is_nvlink()
    }

    /// Returns an error unless the format [can be carried](Self::carries).
    fn check_carries(&self, op: &'static str, format: PacketFormat) -> Result<()> {
        if self.carries(format) {
            return Ok(());
        }
        let peer = self.peer();
        let why = match self.inner.semaphore.topology().link {
            Some(_) => format!("the device of rank {peer} is not joined to this one by NVLink"),
            None => format!(
                "this process does not see the device of rank {peer} (CUDA_VISIBLE_DEVICES), so nothing says that \
                 NVLink joins them"
            ),
        };
        let message = format!("{format} relies on lines of 128 bytes that stay whole, and {why}; use LL16");
        Err(Error::new(ErrorKind::Unsupported, op, message).with_peer(peer))
    }

    /// Writes `bytes` from my `src_offset` as packets with `flag` to `dst_offset` of the peer's packet buffer, which is
    /// this channel's `dst`. `flag` must differ from every flag those packets may still carry there, and is never 0.
    ///
    /// # Errors
    /// `InvalidUsage` for what does not fit or is not aligned, and for flag 0; `Unsupported` for a format that this
    /// channel does not [carry](Self::carries); otherwise as for [`put`](Self::put).
    pub fn put_packets(
        &self,
        stream: &Stream,
        format: PacketFormat,
        dst_offset: usize,
        src_offset: usize,
        bytes: usize,
        flag: u32,
    ) -> Result<()> {
        self.inner.dst.check_rights("put_packets", Rights::REMOTE_WRITE)?;
        let dst = Location { what: "dst", offset: dst_offset, len: self.inner.dst.len() };
        let config = self.packets("put_packets", format, bytes, flag, src_offset, dst)?;
        let (dst, src, bytes) = (dst_offset as u64, src_offset as u64, bytes as u64);
        let [put, _] = &self.inner.functions.packets[format as usize];
        self.launch(put, stream, &config, &[arg(&dst), arg(&src), arg(&bytes), arg(&flag)])
    }

    /// Waits for the packets with `flag` at `packet_offset` of my packet buffer and stores their `bytes` of data at
    /// `dst_offset` of my `src`.
    ///
    /// # Errors
    /// As for [`put_packets`](Self::put_packets); `InvalidUsage` if the channel has no packet buffer.
    pub fn unpack_packets(
        &self,
        stream: &Stream,
        format: PacketFormat,
        packet_offset: usize,
        dst_offset: usize,
        bytes: usize,
        flag: u32,
    ) -> Result<()> {
        let Some(packets) = &self.inner.packets else {
            return Err(Error::usage(
                "unpack_packets",
                "the channel has no packet buffer; give one to MemoryChannel::new",
            ));
        };
        let packets = Location { what: "packet buffer", offset: packet_offset, len: packets.len() };
        let config = self.packets("unpack_packets", format, bytes, flag, dst_offset, packets)?;
        let (packets, dst, bytes) = (packet_offset as u64, dst_offset as u64, bytes as u64);
        let [_, unpack] = &self.inner.functions.packets[format as usize];
        self.launch(unpack, stream, &config, &[arg(&packets), arg(&dst), arg(&bytes), arg(&flag)])
    }

    /// Checks a copy between `data` of my `src` and `packets`, and returns its launch.
    fn packets(
        &self,
        op: &'static str,
        format: PacketFormat,
        bytes: usize,
        flag: u32,
        data: usize,
        packets: Location,
    ) -> Result<LaunchConfig> {
        let data = Location { what: "src", offset: data, len: self.inner.src.len() };
        check_packets(op, format, bytes, flag, &data, &[packets])?;
        self.check_carries(op, format)?;
        Ok(self.inner.geometry.packets(format.work(bytes)))
    }
}
