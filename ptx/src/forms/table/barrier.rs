//! Barriers of threads of one GPU, which spread a status.

use super::common::{ABORT, BARRIER, LAST};
use crate::forms::operation::{Argument, Given, Operation, Type, same};

const STATUS: Argument = Argument {
    name: "status",
    ty: Type::U32,
    doc: "what this thread's operations gave: LEFT_NOT, or anything else to make all leave",
};
const THREADS: Argument =
    Argument { name: "threads", ty: Type::U32, doc: "threads in the group, whole warps: a multiple of 32" };
const AGREED: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT if every thread of the group came with it and nothing was given up, else LEFT_TOLD; the same in all of them",
};

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "group_barrier",
        does: &[
            "Barrier of a group of threads of one block that spreads a status: all leave together or none does. What any",
            "of them wrote before, all see after.",
        ],
        fragment: "group_sync",
        takes: &[STATUS, BARRIER, THREADS],
        with: &[("NTHREADS", "threads"), ("ABORTED", "status")],
        gives: &[AGREED],
    },
    Operation {
        name: "grid_barrier",
        does: &[
            "Barrier of all groups (blocks) of a grid, launched cooperatively: what any thread wrote before, every thread",
            "sees after. Spreads the status within each group, not between groups.",
        ],
        fragment: "grid_barrier",
        takes: &[
            STATUS,
            Argument { name: "state", ty: Type::Address, doc: "a GridBarrier in device memory, zeroed once" },
            same("groups"),
            Argument { name: "thread", ty: Type::U32, doc: "index of this thread in its group" },
            THREADS,
            BARRIER,
            ABORT,
        ],
        with: &[("ABORTED", "status")],
        gives: &[AGREED],
    },
    Operation {
        name: "last_group",
        does: &[
            "Counts a finished group; the last one learns that it is, and sees what all wrote. Call it behind the group's",
            "barrier. The counter returns to zero by itself.",
        ],
        fragment: "last_block",
        takes: &[
            Argument {
                name: "arrived",
                ty: Type::Address,
                doc: "counter (u32, device memory), zero before the launch",
            },
            same("groups"),
        ],
        with: &[],
        gives: &[LAST],
    },
];
