//! A port channel as kernels see it.

use super::layout::device_struct;
use super::memory_channel::SemaphoreHandle;
use super::trigger::FifoHandle;

/// `ABORTED` of a device operation: it was done.
pub const LEFT_NOT: u32 = 0;
/// `ABORTED` of a device operation: it was told to leave; the abort record holds what it waited for, the host the
/// reason.
pub const LEFT_TOLD: u32 = 1;
/// `ABORTED` of a device operation: an argument does not fit, such as a put past the end; nothing was done.
pub const LEFT_REFUSED: u32 = 2;
/// `ABORTED` of a device operation: the FIFO was closed, because its proxy has stopped or failed; nothing was done.
pub const LEFT_CLOSED: u32 = 3;

device_struct! {
    /// One end of a port channel, passed by value to every `port` kernel.
    ///
    /// A put copies from `src`, which the proxy knows as `src_id`, to the peer's memory, which it knows as `dst_id`;
    /// a signal raises the peer's inbound counter behind all puts before it. A flush waits until everything pushed
    /// before it on this connection has completed, by its position in the FIFO. `data` and `packets` serve the packet
    /// form: data becomes packets in `src`, which are put; packets that arrive in `packets` become `data`.
    pub struct PortChannelHandle as "PORT_CHANNEL" size 208 {
        /// The queue to the proxy.
        pub fifo: FifoHandle => "FIFO" at 0,
        /// The semaphore of the connection; its outbound counter is the host's. Its abort handle is the channel's own, for waits
        /// for the peer and for flushes.
        pub semaphore: SemaphoreHandle => "SEMAPHORE" at 64,
        /// Address of the FIFO position behind the latest flush that has completed (u64, pinned host memory).
        pub flushed: u64 => "FLUSHED" at 120,
        /// Bytes of the peer's memory.
        pub dst_bytes: u64 => "DST_BYTES" at 128,
        /// Base of my memory that puts read; zero if it is not mapped for this device.
        pub src: u64 => "SRC" at 136,
        /// Bytes at `src`.
        pub src_bytes: u64 => "SRC_BYTES" at 144,
        /// Base of the data of the packet form; zero if the channel has none.
        pub data: u64 => "DATA" at 152,
        /// Bytes at `data`.
        pub data_bytes: u64 => "DATA_BYTES" at 160,
        /// Base of my packet buffer, which the peer's channel has as its destination.
        pub packets: u64 => "PACKETS" at 168,
        /// Bytes at `packets`.
        pub packet_bytes: u64 => "PACKET_BYTES" at 176,
        /// Address of a u32 in my device memory that counts finished blocks of a launch; zero between launches.
        pub arrived: u64 => "ARRIVED" at 184,
        /// The proxy's number of the semaphore.
        pub semaphore_id: u32 => "SEMAPHORE_ID" at 192,
        /// The proxy's number of the peer's memory.
        pub dst_id: u32 => "DST_ID" at 196,
        /// The proxy's number of my memory.
        pub src_id: u32 => "SRC_ID" at 200,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 204,
    }
}
