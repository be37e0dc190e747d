//! Services that kernels share with the host, besides memory.

use super::console::Console;
use crate::mem::heap::Heap;

/// The output and the heap of the kernels of one device.
#[derive(Debug, Default)]
pub struct Services {
    /// The output of `vprintf` and of failed assertions.
    pub console: Console,
    /// The memory of `malloc`.
    pub heap: Heap,
}
