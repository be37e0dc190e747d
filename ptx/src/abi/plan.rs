//! Parameters of a plan's kernel.

use super::abort::AbortHandle;
use super::layout::device_struct;

device_struct! {
    /// The fixed part of the one parameter of a plan's kernel. Behind it lie, by value, the addresses that the plan names, 8
    /// bytes each (see [`crate::plan::Kernel::addresses`]).
    ///
    /// A chunk of input or output has `chunk` bytes, and the buffer ends after `input_bytes` or `output_bytes`: what lies behind is
    /// neither read nor written. Scratch keeps chunks apart by `scratch_chunk` bytes, which does not change between calls of
    /// different sizes: so a chunk of scratch is always the same memory, and the order that a plan gives to accesses of
    /// one chunk holds between calls, and each packet has one writer. Packets take twice as much.
    ///
    /// A move handles `vectors` vectors of 16 bytes for each chunk, the last of which may be cut short by the chunk's end, and two
    /// packets for each vector whether the data fills them or not. Vector v of a range of several chunks is vector v - q * vectors
    /// of chunk q, q = v / vectors; the quotient is `(v * magic) >> shift` in 64 bits for v below 2^31 (Granlund and Montgomery,
    /// "Division by Invariant Integers using Multiplication", 1994).
    pub struct PlanArgs as "PLAN_ARGS" size 88 {
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
        /// Vectors of 16 bytes of a chunk: `chunk` / 16, rounded up; not zero, because a call that exchanges nothing must not be counted.
        /// A range has fewer than 2^31, or 2^30 if packets take part.
        pub vectors: u32 => "VECTORS" at 72,
        /// For the division by `vectors`: 2^`shift` / `vectors`, rounded up.
        pub magic: u32 => "MAGIC" at 76,
        /// For the division: 31 + the base-two logarithm of `vectors`, rounded up.
        pub shift: u32 => "SHIFT" at 80,
        /// Zero.
        pub reserved: u32 => "RESERVED" at 84,
    }
}
