//! Arguments and results that operations of several families share.

use crate::abi::{AbortHandle, DeviceStruct};
use crate::forms::operation::{Argument, Given, Type, wide};

pub(super) const THREAD: Argument = wide("thread", "index of this thread in its group");
pub(super) const THREADS: Argument = wide("threads", "threads in the group, at least 1");
/// Of operations in which warps act together.
pub(super) const WARPS: Argument = wide("threads", "threads in the group, a multiple of 32");
pub(super) const BARRIER: Argument =
    Argument { name: "barrier", ty: Type::U32, doc: "barrier resource, 0 to 15, that no other group uses" };

/// Status of what waits.
pub(super) const WAITED: Given =
    Given { param: "ABORTED", name: "status", doc: "LEFT_NOT, or LEFT_TOLD if the wait was given up" };
/// Status of what is pushed.
pub(super) const PUSHED: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT; LEFT_TOLD if the wait for room was given up; LEFT_REFUSED if an argument does not fit; LEFT_CLOSED",
};
pub(super) const POSITION: Given =
    Given { param: "POSITION", name: "position", doc: "position of the trigger in the FIFO" };
pub(super) const TAKEN: Given =
    Given { param: "TAKEN", name: "taken", doc: "1 if a signal was taken, else 0" };
pub(super) const LAST: Given = Given { param: "LAST", name: "last", doc: "1 in the last caller, else 0" };
pub(super) const ABORT: Argument = Argument {
    name: "abort",
    ty: Type::Handle(&AbortHandle::LAYOUT),
    doc: "how the wait learns that it must be given up, and for whom it waits",
};
