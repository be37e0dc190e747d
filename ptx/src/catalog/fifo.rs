//! Pushing triggers.

use super::row::{Entry, Kernel, Launch, arg};

pub(super) const ROWS: &[Kernel] = &[Kernel {
    name: "fifo",
    file: "fifo.ptx",
    doc: "triggers pushed by every thread of a grid, for tests and measurements",
    min_sm: 70,
    min_ptx: 60,
    params: &[],
    entries: &[Entry {
        symbol: "aqueduct_fifo_push",
        args: &[arg("fifo", "Fifo"), arg("count", "u32"), arg("cells", "u64"), arg("status", "u64")],
        launch: Launch::AnyGrid,
        doc: "push count triggers per thread; if cells != 0, write a cell before each and wait until it is popped",
    }],
}];
