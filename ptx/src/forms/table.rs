//! The rows of the device library, by family.

mod barrier;
mod fifo;
mod memory;
mod plain;
mod port;
mod semaphore;

use super::operation::{Argument, Given, Operation, Type, wide};

/// Every operation, in the order of header and functions.
pub(super) fn operations() -> impl Iterator<Item = &'static Operation> {
    [memory::ALL, port::ALL, fifo::ALL, semaphore::ALL, barrier::ALL, plain::ALL].into_iter().flatten()
}

const THREAD: Argument = wide("thread", "index of this thread in its group");
const THREADS: Argument = wide("threads", "threads in the group, at least 1");
/// Of operations in which warps act together.
const WARPS: Argument = wide("threads", "threads in the group, a multiple of 32");
const BARRIER: Argument =
    Argument { name: "barrier", ty: Type::U32, doc: "barrier resource, 0 to 15, that no other group uses" };

/// Status of what waits.
const WAITED: Given =
    Given { param: "ABORTED", name: "status", doc: "LEFT_NOT, or LEFT_TOLD if the wait was given up" };
/// Status of what is pushed.
const PUSHED: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT; LEFT_TOLD if the wait for room was given up; LEFT_REFUSED if an argument does not fit; LEFT_CLOSED",
};
const POSITION: Given =
    Given { param: "POSITION", name: "position", doc: "position of the trigger in the FIFO" };
const TAKEN: Given = Given { param: "TAKEN", name: "taken", doc: "1 if a signal was taken, else 0" };
const LAST: Given = Given { param: "LAST", name: "last", doc: "1 in the last caller, else 0" };
