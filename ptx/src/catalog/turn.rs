//! The order of launches.

use super::row::{Arg, Entry, Kernel, Launch, arg};

const QUEUE: Arg = arg("queue", "u64");
const CALLER: Arg = arg("caller", "u32");
const ABORT: Arg = arg("abort", "AbortHandle");

pub(super) const ROWS: &[Kernel] = &[Kernel {
    name: "turn",
    file: "turn.ptx",
    doc: "the order of launches that rank 0 decides for kernels that do not all fit on the devices together",
    min_sm: 70,
    min_ptx: 60,
    params: &[],
    entries: &[
        Entry {
            symbol: "aqueduct_turn_ask",
            args: &[QUEUE, CALLER, ABORT],
            launch: Launch::OneBlock,
            doc: "take the next position of the queue (a TurnQueue in device memory) for a caller, and grant its call if nothing is \
                  before it",
        },
        Entry {
            symbol: "aqueduct_turn_leave",
            args: &[arg("granted", "u64"), arg("done", "u64"), ABORT],
            launch: Launch::OneBlock,
            doc: "the call that was granted last is done on this rank: take back the grant at the address granted, and tell rank 0 by the \
                  word at the address done",
        },
        Entry {
            symbol: "aqueduct_turn_end",
            args: &[QUEUE, CALLER, ABORT],
            launch: Launch::OneBlock,
            doc: "wait until the call that was granted last is done on all ranks, and grant the next one if it has asked; takes a \
                  thread for each rank",
        },
    ],
}];
