//! A semaphore and a memory channel as kernels see them.

use super::abort::AbortHandle;
use super::layout::device_struct;

device_struct! {
    /// A Device2Device semaphore as the kernels see it (the receiving half and the sending half of one end).
    ///
    /// The sender increments its own `outbound` and publishes the new absolute value into the peer's inbound
    /// counter (`st.release.sys`); the receiver increments `expected_inbound` and waits until inbound has
    /// reached it (`ld.acquire.sys`). Each word has one writer; no native atomics are needed.
    pub struct SemaphoreHandle as "SEMAPHORE" size 56 {
        /// Address of my inbound counter (u64, my device memory): written by the peer, read by me.
        pub inbound: u64 => "INBOUND" at 0,
        /// Address of the value I wait for next minus one (u64, my device memory): mine alone.
        pub expected_inbound: u64 => "EXPECTED_INBOUND" at 8,
        /// Address of the number of signals I have sent (u64, my device memory): mine alone.
        pub outbound: u64 => "OUTBOUND" at 16,
        /// Address of the peer's inbound counter (u64, mapped here): written by me, read by the peer.
        pub remote_inbound: u64 => "REMOTE_INBOUND" at 24,
        /// Abort word, claim of the record, my rank and the peer's, for waits.
        pub abort: AbortHandle => "ABORT" at 32,
    }
}

device_struct! {
    /// One end of a memory channel, passed by value to every `channel` and `packet` kernel.
    ///
    /// `put` copies `src` to `dst`; `get` copies `dst` to `src`; `put_packets` writes packets made from `src` to
    /// `dst`; `unpack_packets` reads packets from `packets` into `src` (so the peer's `dst` is this buffer).
    /// Sizes are for the host's checks: kernels do not look at them.
    pub struct MemoryChannelHandle as "MEMORY_CHANNEL" size 112 {
        /// The semaphore of the connection. Its abort handle serves the channel's other waits, too.
        pub semaphore: SemaphoreHandle => "SEMAPHORE" at 0,
        /// Base of the peer's buffer, mapped here.
        pub dst: u64 => "DST" at 56,
        /// Bytes at `dst`.
        pub dst_bytes: u64 => "DST_BYTES" at 64,
        /// Base of my buffer.
        pub src: u64 => "SRC" at 72,
        /// Bytes at `src`.
        pub src_bytes: u64 => "SRC_BYTES" at 80,
        /// Base of my packet buffer, 16-byte aligned (128 for LL128); zero if the channel has none.
        pub packets: u64 => "PACKETS" at 88,
        /// Bytes at `packets`.
        pub packet_bytes: u64 => "PACKET_BYTES" at 96,
        /// Address of a u32 in my device memory that counts finished blocks of a launch; zero between launches.
        pub arrived: u64 => "ARRIVED" at 104,
    }
}
