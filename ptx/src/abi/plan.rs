//! Parameters of a plan's kernel.

use super::abort::AbortHandle;
use super::layout::device_struct;

device_struct! {
    /// The fixed part of the one parameter of a plan's kernel. Behind it lie, by value, the addresses that the plan names, 8
    /// bytes each (see [`crate::plan::Kernel::addresses`]).
    ///
    /// A chunk of input or output has `chunk` bytes, and the buffer ends after `input_bytes` or `output_bytes`: what lies behind
    /// is neither read nor written. Scratch keeps chunks apart by `scratch_chunk` bytes, which does not change between calls of
    /// different sizes: so a chunk of scratch is always the same memory, and the order that a plan gives to accesses of one chunk
    /// holds between calls, and each packet has one writer. Packets take twice as much.
    ///
    /// A move handles `vectors` vectors of 16 bytes for each chunk, the last of which may be cut short by the chunk's end, and
    /// two packets for each vector whether the data fills them or not. Vector v of a range of several chunks is vector v - q *
    /// vectors of chunk q, q = v / vectors; the quotient is `(v * magic) >> shift` in 64 bits for v below 2^31 (Granlund and
    /// Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    pub struct PlanArgs as "PLAN_ARGS" size 96 {
        /// Bytes from one chunk of input or output to the next.
        pub chunk: u64 => "CHUNK" at 0,
        /// Bytes from one chunk of plain scratch to the next: a multiple of 128, at least `chunk`.
        pub scratch_chunk: u64 => "SCRATCH_CHUNK" at 8,
        /// Bytes of the input.
        pub input_bytes: u64 => "INPUT_BYTES" at 16,
        /// Bytes of the output.
        pub output_bytes: u64 => "OUTPUT_BYTES" at 24,
        /// Bytes from the first half of plain scratch to the second; zero if there is one half only. Packets: twice as many.
        pub half: u64 => "HALF" at 32,
        /// Base of this rank's control area (device memory): counters of channels, semaphores, barriers and the calls of each
        /// block, where the kernel's description says. Written once before the first call, zero but for semaphores.
        pub control: u64 => "CONTROL" at 40,
        /// Abort word, claim of the record and my rank.
        pub abort: AbortHandle => "ABORT" at 48,
        /// Vectors of 16 bytes of a chunk: `chunk` / 16, rounded up; not zero, because a call that exchanges nothing must not be
        /// counted. A range has fewer than 2^31, or 2^30 if packets take part.
        pub vectors: u32 => "VECTORS" at 72,
        /// For the division by `vectors`: 2^`shift` / `vectors`, rounded up.
        pub magic: u32 => "MAGIC" at 76,
        /// For the division: 31 + the base-two logarithm of `vectors`, rounded up.
        pub shift: u32 => "SHIFT" at 80,
        /// For the division by the blocks of the launch, as `magic`. Only a kernel that runs with any grid reads it
        /// ([`Kernel::runs_with_any_grid`](crate::plan::Kernel::runs_with_any_grid)).
        pub grid_magic: u32 => "GRID_MAGIC" at 84,
        /// For that division, as `shift`.
        pub grid_shift: u32 => "GRID_SHIFT" at 88,
        /// Units of LL128 packets from one chunk to the next, of 8 lines each: `scratch_chunk` / 960, rounded up.
        pub lines: u32 => "LINES" at 92,
    }
}

device_struct! {
    /// The caller's numbers for a kernel whose chunks have sizes of their own, behind the other addresses in its parameter: for
    /// every rank how many elements this rank sends it, from where in the input, how many it has room for, and where in the
    /// output. A number stands in an array of u64 in memory that the device reads, at a distance of `stride` bytes for each rank;
    /// an array at 0 is all zeros.
    pub struct PlanRows as "PLAN_ROWS" size 96 {
        /// Elements for each rank.
        pub send_counts: u64 => "SEND_COUNTS" at 0,
        /// Bytes from number to number: 8, or 0 for one number for all ranks.
        pub send_counts_stride: u64 => "SEND_COUNTS_STRIDE" at 8,
        /// Elements from the start of the input.
        pub send_offsets: u64 => "SEND_OFFSETS" at 16,
        /// As above.
        pub send_offsets_stride: u64 => "SEND_OFFSETS_STRIDE" at 24,
        /// Elements that there is room for from each rank.
        pub receive_counts: u64 => "RECEIVE_COUNTS" at 32,
        /// As above.
        pub receive_counts_stride: u64 => "RECEIVE_COUNTS_STRIDE" at 40,
        /// Elements from the start of the output.
        pub receive_offsets: u64 => "RECEIVE_OFFSETS" at 48,
        /// As above.
        pub receive_offsets_stride: u64 => "RECEIVE_OFFSETS_STRIDE" at 56,
        /// Bytes of an element.
        pub element: u64 => "ELEMENT" at 64,
        /// The [`OverflowRecord`] of this rank.
        pub record: u64 => "RECORD" at 72,
        /// An array of u64 for the elements that came from each rank, or 0.
        pub received: u64 => "RECEIVED" at 80,
        /// Number of the buffers that this rank passes: ranks that pass different ones would write out of each other's bounds.
        pub shown: u64 => "SHOWN" at 88,
    }
}

device_struct! {
    /// A row of a table that ranks show each other: what one rank sends another one, and the room that it has for what comes from
    /// it.
    pub struct PlanRow as "PLAN_ROW" size 48 {
        /// Bytes from the start of the sender's input.
        pub send_offset: u64 => "SEND_OFFSET" at 0,
        /// Bytes sent; 2^64 - 1 if the row is none that the rank can keep to.
        pub send_bytes: u64 => "SEND_BYTES" at 8,
        /// Bytes from the start of the receiver's output.
        pub receive_offset: u64 => "RECEIVE_OFFSET" at 16,
        /// Bytes that there is room for.
        pub room: u64 => "ROOM" at 24,
        /// Number of the buffers that the rank passes.
        pub shown: u64 => "SHOWN" at 32,
        /// Nothing: rows begin at multiples of 16 bytes.
        pub _pad: u64 => "PAD" at 40,
    }
}

device_struct! {
    /// The last call of which some row did not fit (pinned host memory): nothing was moved. Read it when the kernel is done.
    pub struct OverflowRecord as "OVERFLOW_RECORD" size 32 {
        /// Number of such calls.
        pub calls: u64 => "CALLS" at 0,
        /// Bytes to be sent; 2^64 - 1 if a row of the sender's leaves its buffers, 2^64 - 2 if sender and receiver pass buffers of different
        /// numbers.
        pub bytes: u64 => "BYTES" at 8,
        /// Bytes that the receiver had room for.
        pub room: u64 => "ROOM" at 16,
        /// The sender's rank.
        pub sender: u32 => "SENDER" at 24,
        /// The receiver's rank.
        pub receiver: u32 => "RECEIVER" at 28,
    }
}

device_struct! {
    /// A time that a block of a plan's kernel noted: see [`crate::plan::Step::Mark`].
    pub struct TraceRecord as "TRACE_RECORD" size 16 {
        /// Nanoseconds of `%globaltimer`.
        pub time: u64 => "TIME" at 0,
        /// The mark's number.
        pub number: u64 => "NUMBER" at 8,
    }
}
