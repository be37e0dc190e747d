//! The kernels of a memory channel.

use crate::channel::kernels::{load_kernels, take};
use crate::error::Result;
use crate::gpu::{Context, Function};

/// Vectors in flight per thread of the copy kernels.
pub(super) const UNROLL: usize = 4;

#[derive(Debug)]
pub(super) struct Functions {
    /// Per [`Copy`](super::Copy): put and get.
    pub(super) copies: [[Function; 2]; 2],
    /// Per [`PacketFormat`](crate::channel::PacketFormat): put and unpack.
    pub(super) packets: [[Function; 2]; 3],
    pub(super) read_u32: Function,
    pub(super) write_u32: Function,
    pub(super) read_u64: Function,
    pub(super) write_u64: Function,
}

impl Functions {
    pub(super) fn load(context: &Context) -> Result<Self> {
        let unroll = UNROLL.to_string();
        let copies = |copy| take(load_kernels(context, "channel", &[("UNROLL", &unroll), ("COPY", copy)])?);
        let copies = [copies("bytes")?, copies("words")?];
        let [read_u32, write_u32] = take(load_kernels(context, "element", &[("TYPE", "u32")])?)?;
        let [read_u64, write_u64] = take(load_kernels(context, "element", &[("TYPE", "u64")])?)?;
        let packets = [
            take(load_kernels(context, "packet", &[("FORMAT", "ll8")])?)?,
            take(load_kernels(context, "packet", &[("FORMAT", "ll16")])?)?,
            take(load_kernels(context, "ll128", &[])?)?,
        ];
        Ok(Self { copies, packets, read_u32, write_u32, read_u64, write_u64 })
    }
}
