//! The device ABI: every structure that host code and PTX both read or write.
//!
//! All structures are `repr(C)`, hold integers only (device pointers are `u64` *global* addresses) and are
//! declared through one macro, which freezes each offset with a constant assertion and exports it by name to
//! the kernel templates: the field `dst` of [`MemoryChannelHandle`] is `${MEMORY_CHANNEL_DST}` there. No PTX file
//! contains a typed offset.
//!
//! Counters are 64 bits wide, absolute and never reset. Ownership is stated per field: "mine" is the rank
//! that launches the kernel, "peer" the rank at the other end.

mod layout;
mod port;
mod trigger;

pub use layout::{DeviceStruct, Field, StructLayout, symbol, symbols};
pub use port::{LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD, PortChannelHandle};
pub use trigger::{ChannelTrigger, Fifo, ProxyTrigger, TriggerError, TriggerKind, lap_bit};

use layout::device_struct;

/// Version of everything in this module. Ranks compare it when they connect; a difference is refused.
pub const ABI_VERSION: u32 = 2;

/// Largest number of ranks that can share one [`ScratchRegion`] (one NVLink domain of the largest kind sold).
pub const MAX_REGION_RANKS: usize = 72;

/// Spins that look only at the awaited word, before the abort word is read for the first time.
pub const SPINS_FREE: u32 = 1000;

/// Spins between two reads of the abort word after that.
pub const SPINS_PER_ABORT_READ: u32 = 1000;

/// Value of the abort word that lets kernels run; any other value asks every waiting kernel to leave.
pub const ABORT_WORD_RUN: u32 = 0;

/// [`AbortRecord::state`]: nothing has been recorded.
pub const ABORT_RECORD_EMPTY: u32 = 0;
/// [`AbortRecord::state`]: complete; valid after an acquire load of `state`.
pub const ABORT_RECORD_COMPLETE: u32 = 1;

/// [`AbortClaim::state`]: no thread has left early.
pub const ABORT_CLAIM_FREE: u32 = 0;
/// [`AbortClaim::state`]: one thread has the right to write the record.
pub const ABORT_CLAIM_TAKEN: u32 = 1;

/// [`AbortRecord::peer`] when the wait was not for one particular rank (a grid barrier).
pub const NO_PEER: u32 = u32::MAX;

/// What a kernel was doing when it left early. An integer newtype: a newer kernel may record a newer code.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation(pub u32);

impl Operation {
    /// Waiting for a semaphore's inbound counter.
    pub const WAIT: Self = Self(1);
    /// Waiting for LL8 packets.
    pub const UNPACK_LL8: Self = Self(2);
    /// Waiting for LL16 packets.
    pub const UNPACK_LL16: Self = Self(3);
    /// Waiting for LL128 packets.
    pub const UNPACK_LL128: Self = Self(4);
    /// Waiting for the other blocks of the same grid.
    pub const GRID_BARRIER: Self = Self(5);
    /// Waiting inside an all-reduce.
    pub const ALL_REDUCE: Self = Self(6);
    /// Waiting for room in a FIFO, or for one of its positions.
    pub const FIFO: Self = Self(7);
    /// Waiting inside a measuring kernel.
    pub const PERF: Self = Self(8);
    /// Waiting for a port channel's flush.
    pub const FLUSH: Self = Self(9);

    /// The field's name for the operation, or `"unknown operation"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WAIT => "semaphore wait",
            Self::UNPACK_LL8 => "LL8 unpack",
            Self::UNPACK_LL16 => "LL16 unpack",
            Self::UNPACK_LL128 => "LL128 unpack",
            Self::GRID_BARRIER => "grid barrier",
            Self::ALL_REDUCE => "all-reduce",
            Self::FIFO => "FIFO",
            Self::PERF => "perf",
            Self::FLUSH => "flush",
            _ => "unknown operation",
        }
    }
}

device_struct! {
    /// A Device2Device semaphore as the kernels see it (the receiving half and the sending half of one end).
    ///
    /// The sender increments its own `outbound` and publishes the new absolute value into the peer's inbound
    /// counter (`st.release.sys`); the receiver increments `expected_inbound` and waits until inbound has
    /// reached it (`ld.acquire.sys`). Each word has one writer; no native atomics are needed.
    pub struct SemaphoreHandle as "SEMAPHORE" size 32 {
        /// Address of my inbound counter (u64, my device memory): written by the peer, read by me.
        pub inbound: u64 => "INBOUND" at 0,
        /// Address of the value I wait for next minus one (u64, my device memory): mine alone.
        pub expected_inbound: u64 => "EXPECTED_INBOUND" at 8,
        /// Address of the number of signals I have sent (u64, my device memory): mine alone.
        pub outbound: u64 => "OUTBOUND" at 16,
        /// Address of the peer's inbound counter (u64, mapped here): written by me, read by the peer.
        pub remote_inbound: u64 => "REMOTE_INBOUND" at 24,
    }
}

device_struct! {
    /// How a kernel learns that it must leave, and where it says what it was waiting for.
    pub struct AbortHandle as "ABORT_HANDLE" size 24 {
        /// Address of the abort word (u32, pinned host memory): written by the host, see [`ABORT_WORD_RUN`].
        pub word: u64 => "WORD" at 0,
        /// Address of this rank's [`AbortClaim`] (u64, my device memory).
        pub claim: u64 => "CLAIM" at 8,
        /// My rank.
        pub rank: u32 => "RANK" at 16,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 20,
    }
}

device_struct! {
    /// Who may write an [`AbortRecord`], and where it lies. Memory of the device whose kernels leave, one per record.
    ///
    /// The first thread that leaves early wins by compare-and-swap on `state`, of device scope. A claim in host memory
    /// would need native atomics across the link, which PCIe lacks on many machines. The host writes a claim once,
    /// before any kernel knows it, and resets it only while no kernel that knows it is running.
    pub struct AbortClaim as "ABORT_CLAIM" size 16 {
        /// [`ABORT_CLAIM_FREE`] or [`ABORT_CLAIM_TAKEN`].
        pub state: u32 => "STATE" at 0,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 4,
        /// Address of the [`AbortRecord`] (pinned host memory).
        pub record: u64 => "RECORD" at 8,
    }
}

device_struct! {
    /// What the first thread that left early was waiting for. Pinned host memory, one per rank and context.
    ///
    /// The thread that won the [`AbortClaim`] fills the fields by plain stores and publishes them with a release store of
    /// [`ABORT_RECORD_COMPLETE`] (`SYNC abort.record`). The host may clear a record only while no kernel that knows its
    /// claim is running.
    pub struct AbortRecord as "ABORT_RECORD" size 40 {
        /// One of the `ABORT_RECORD_*` states.
        pub state: u32 => "STATE" at 0,
        /// The rank that was waiting.
        pub rank: u32 => "RANK" at 4,
        /// [`Operation`] code.
        pub operation: u32 => "OPERATION" at 8,
        /// The rank it waited for, or [`NO_PEER`].
        pub peer: u32 => "PEER" at 12,
        /// Block index within the grid.
        pub block: u32 => "BLOCK" at 16,
        /// Packet flag or epoch it waited for; zero for semaphores.
        pub epoch: u32 => "EPOCH" at 20,
        /// Counter value it waited for; zero for packets.
        pub awaited: u64 => "AWAITED" at 24,
        /// The value it saw last (counter, or the packet's flag).
        pub seen: u64 => "SEEN" at 32,
    }
}

device_struct! {
    /// One end of a memory channel, passed by value to every `channel` and `packet` kernel.
    ///
    /// `put` copies `src` to `dst`; `get` copies `dst` to `src`; `put_packets` writes packets made from `src` to
    /// `dst`; `unpack_packets` reads packets from `packets` into `src` (so the peer's `dst` is this buffer).
    /// Sizes are for the host's checks: kernels do not look at them.
    pub struct MemoryChannelHandle as "MEMORY_CHANNEL" size 120 {
        /// The semaphore of the connection.
        pub semaphore: SemaphoreHandle => "SEMAPHORE" at 0,
        /// Base of the peer's buffer, mapped here.
        pub dst: u64 => "DST" at 32,
        /// Bytes at `dst`.
        pub dst_bytes: u64 => "DST_BYTES" at 40,
        /// Base of my buffer.
        pub src: u64 => "SRC" at 48,
        /// Bytes at `src`.
        pub src_bytes: u64 => "SRC_BYTES" at 56,
        /// Base of my packet buffer, 16-byte aligned (128 for LL128); zero if the channel has none.
        pub packets: u64 => "PACKETS" at 64,
        /// Bytes at `packets`.
        pub packet_bytes: u64 => "PACKET_BYTES" at 72,
        /// Address of a u32 in my device memory that counts finished blocks of a launch; zero between launches.
        pub arrived: u64 => "ARRIVED" at 80,
        /// Abort word, claim of the record and my rank.
        pub abort: AbortHandle => "ABORT" at 88,
        /// Rank of the peer.
        pub peer: u32 => "PEER" at 112,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 116,
    }
}

device_struct! {
    /// State of the barrier across the blocks of one grid: device memory, zeroed once, never reset.
    ///
    /// The low 31 bits count arrivals and return to zero by themselves; the top bit is the phase. All blocks must
    /// be resident (cooperative launch). After an abort the word is undefined: the host zeroes it before reuse.
    pub struct GridBarrier as "GRID_BARRIER" size 8 {
        /// Phase bit and arrivals.
        pub word: u32 => "WORD" at 0,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 4,
    }
}

device_struct! {
    /// A symmetric scratch region: the same layout in the memory of every rank, mapped by all of them.
    ///
    /// A region is two halves of `half_bytes`; epoch `e` uses half `e & 1`. It carries one packet format for life
    /// and serves one stream order; every pair of ranks exchanges something in every call and block, which is
    /// why two halves suffice. `epochs[b]` is the epoch block `b` used last; a launch of `G` blocks uses
    /// [`next_epoch`] of it and stores the result to every entry `i` with `i % G == b`.
    pub struct ScratchRegion as "SCRATCH" size 648 {
        /// Base of my region, 128-byte aligned.
        pub base: u64 => "BASE" at 0,
        /// Address of `max_blocks` u32 epochs in my device memory (u64 step counts for [`PACKET_FORMAT_HB`], which
        /// has no halves: see [`crate::collective::HbLayout`]).
        pub epochs: u64 => "EPOCHS" at 8,
        /// Bytes in one half, a multiple of 128.
        pub half_bytes: u64 => "HALF_BYTES" at 16,
        /// Entries at `epochs`: the largest grid.
        pub max_blocks: u32 => "MAX_BLOCKS" at 24,
        /// Number of ranks.
        pub ranks: u32 => "RANKS" at 28,
        /// My rank.
        pub rank: u32 => "RANK" at 32,
        /// One of the `PACKET_FORMAT_*` values.
        pub format: u32 => "FORMAT" at 36,
        /// Address of a [`GridBarrier`] in my device memory.
        pub barrier: u64 => "BARRIER" at 40,
        /// Abort word, claim of the record and my rank.
        pub abort: AbortHandle => "ABORT" at 48,
        /// Base of every rank's region as mapped here; entry `rank` is `base`.
        pub peers: [u64; 72] => "PEERS" at 72,
    }
}

/// [`ScratchRegion::format`]: plain data, published by signals.
pub const PACKET_FORMAT_HB: u32 = 0;
/// [`ScratchRegion::format`]: 4 bytes of data and a 4-byte flag per 8 bytes.
pub const PACKET_FORMAT_LL8: u32 = 1;
/// [`ScratchRegion::format`]: two such words per 16 bytes, moved together.
pub const PACKET_FORMAT_LL16: u32 = 2;
/// [`ScratchRegion::format`]: 120 bytes of data and an 8-byte flag per 128 bytes.
pub const PACKET_FORMAT_LL128: u32 = 3;

/// Largest epoch; the one after it is [`FIRST_EPOCH_OF_LAP`].
pub const LAST_EPOCH: u32 = u32::MAX;
/// The epoch after [`LAST_EPOCH`]: not 0, which is never a flag, and even, so that the halves keep alternating.
pub const FIRST_EPOCH_OF_LAP: u32 = 2;

/// The epoch that follows `epoch`.
pub const fn next_epoch(epoch: u32) -> u32 {
    if epoch == LAST_EPOCH { FIRST_EPOCH_OF_LAP } else { epoch + 1 }
}

/// Whether a call with this epoch must zero the *other* half of its own region before it sends anything.
///
/// A flag of the previous lap would otherwise pass for one of the new lap. In epoch `LAST_EPOCH` the even half
/// is idle, in `FIRST_EPOCH_OF_LAP` the odd one; no peer can send the next epoch before it has this one's
/// packets from every block, so zeroing before sending is early enough.
pub const fn epoch_scrubs(epoch: u32) -> bool {
    epoch == LAST_EPOCH || epoch == FIRST_EPOCH_OF_LAP
}

/// Constants other than offsets that templates may name, as `(name, value)`.
pub const CONSTANTS: &[(&str, u64)] = &[
    ("ABI_VERSION", ABI_VERSION as u64),
    ("MAX_REGION_RANKS", MAX_REGION_RANKS as u64),
    ("SPINS_FREE", SPINS_FREE as u64),
    ("SPINS_PER_ABORT_READ", SPINS_PER_ABORT_READ as u64),
    ("ABORT_WORD_RUN", ABORT_WORD_RUN as u64),
    ("ABORT_RECORD_EMPTY", ABORT_RECORD_EMPTY as u64),
    ("ABORT_RECORD_COMPLETE", ABORT_RECORD_COMPLETE as u64),
    ("ABORT_CLAIM_FREE", ABORT_CLAIM_FREE as u64),
    ("ABORT_CLAIM_TAKEN", ABORT_CLAIM_TAKEN as u64),
    ("NO_PEER", NO_PEER as u64),
    ("OPERATION_WAIT", Operation::WAIT.0 as u64),
    ("OPERATION_UNPACK_LL8", Operation::UNPACK_LL8.0 as u64),
    ("OPERATION_UNPACK_LL16", Operation::UNPACK_LL16.0 as u64),
    ("OPERATION_UNPACK_LL128", Operation::UNPACK_LL128.0 as u64),
    ("OPERATION_GRID_BARRIER", Operation::GRID_BARRIER.0 as u64),
    ("OPERATION_ALL_REDUCE", Operation::ALL_REDUCE.0 as u64),
    ("OPERATION_FIFO", Operation::FIFO.0 as u64),
    ("OPERATION_PERF", Operation::PERF.0 as u64),
    ("OPERATION_FLUSH", Operation::FLUSH.0 as u64),
    ("LEFT_NOT", LEFT_NOT as u64),
    ("LEFT_TOLD", LEFT_TOLD as u64),
    ("LEFT_REFUSED", LEFT_REFUSED as u64),
    ("LEFT_CLOSED", LEFT_CLOSED as u64),
    ("TRIGGER_DATA", TriggerKind::DATA.0 as u64),
    ("TRIGGER_FLAG", TriggerKind::FLAG.0 as u64),
    ("TRIGGER_SYNC", TriggerKind::SYNC.0 as u64),
    ("TRIGGER_OFFSET_BITS", trigger::OFFSET_BITS as u64),
    ("TRIGGER_SIZE_BITS", trigger::SIZE_BITS as u64),
    ("TRIGGER_ID_BITS", trigger::ID_BITS as u64),
    ("LAST_EPOCH", LAST_EPOCH as u64),
    ("FIRST_EPOCH_OF_LAP", FIRST_EPOCH_OF_LAP as u64),
];

/// Every structure of the ABI, in the order in which a C header can declare them.
pub const STRUCTS: &[&StructLayout] = &[
    &SemaphoreHandle::LAYOUT,
    &AbortHandle::LAYOUT,
    &AbortClaim::LAYOUT,
    &AbortRecord::LAYOUT,
    &MemoryChannelHandle::LAYOUT,
    &GridBarrier::LAYOUT,
    &ScratchRegion::LAYOUT,
    &ProxyTrigger::LAYOUT,
    &Fifo::LAYOUT,
    &PortChannelHandle::LAYOUT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_skip_zero_and_alternate_halves() {
        for start in [0, 1, 2, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let next = next_epoch(start);
            assert_ne!(next, 0);
            assert_ne!(next & 1, start & 1, "epoch {start} and its successor share a half");
        }
    }

    #[test]
    fn both_halves_are_scrubbed_between_two_laps() {
        let mut epoch = LAST_EPOCH - 1;
        let mut scrubbed = Vec::new();
        for _ in 0..4 {
            epoch = next_epoch(epoch);
            if epoch_scrubs(epoch) {
                scrubbed.push((epoch & 1) ^ 1);
            }
        }
        assert_eq!(scrubbed, [0, 1]);
    }

    #[test]
    fn symbols_are_unique_and_agree_with_the_compiler() {
        let mut names: Vec<String> = symbols().into_iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "two symbols share a name");
        assert_eq!(symbol("MEMORY_CHANNEL_DST"), Some(std::mem::offset_of!(MemoryChannelHandle, dst) as u64));
        assert_eq!(symbol("SCRATCH_SIZE"), Some(size_of::<ScratchRegion>() as u64));
        assert_eq!(symbol("SCRATCH_NOTHING"), None);
    }
}
