//! Parameters of a plan's kernel.

use super::abort::AbortHandle;
use super::layout::device_struct;

device_struct! {
    /// The fixed part of the one parameter of a plan's kernel. Behind it lie, by value, the addresses that the plan names, 8
    /// bytes each (see [`crate::plan::Kernel::addresses`]).
    ///
    /// A chunk of input or output has `chunk` bytes, and the buffer ends after `input_bytes` or `output_bytes`: what lies
    /// behind is neither read nor written. Scratch keeps chunks apart by `scratch_chunk` bytes, and those of packets by twice
    /// as many, so that they are aligned whatever a message's size is. If `chunk` is not a multiple of 16, chunks that are
    /// neighbours in a message are none in scratch: a move then goes chunk by chunk, and of blocks that share a range and of
    /// iterations of a loop the first handles all of it.
    pub struct PlanArgs as "PLAN_ARGS" size 72 {
        /// Bytes from one chunk of input or output to the next.
        pub chunk: u64 => "CHUNK" at 0,
        /// Bytes from one chunk of plain scratch to the next: a multiple of 16, at least `chunk`.
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
    }
}
