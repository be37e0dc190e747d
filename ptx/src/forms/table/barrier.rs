//! Barriers of threads of one GPU, which spread a status.

use super::common::{BARRIER, LAST};
use crate::abi::{DeviceStruct, GridBarrierHandle};
use crate::forms::operation::{Argument, Given, Operation, Type, same};

const STATUS: Argument = Argument {
    name: "status",
    ty: Type::U32,
    doc: "what this thread's operations gave: LEFT_NOT, or anything else to make all leave",
};
const THREADS: Argument =
    Argument { name: "threads", ty: Type::U32, doc: "threads in the group, whole warps: a multiple of 32" };
const GRID: Argument =
    Argument { name: "grid", ty: Type::Handle(&GridBarrierHandle::LAYOUT), doc: "the grid's barrier" };
const AGREED: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT if every thread of the group came with it, else LEFT_TOLD; the same in all of them",
};
const AGREED_BY_ALL: Given = Given {
    param: "ABORTED",
    name: "status",
    doc: "LEFT_NOT if every thread of every group came with it, and no group gave up; else LEFT_TOLD in all of them",
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
        name: "grid_sync",
        does: &[
            "Barrier of all threads of a grid, launched cooperatively, that spreads a status: all leave together or none",
            "does. What any thread wrote before, every thread sees after. Grid and blocks of any shape.",
        ],
        fragment: "grid_sync",
        takes: &[GRID, STATUS],
        with: &[("ABORTED", "status")],
        gives: &[AGREED_BY_ALL],
    },
    Operation {
        name: "grid_barrier",
        does: &[
            "As grid_sync, of some groups of threads only, each of one block: of one role in every block, for example. Calls",
            "that share a grid's barrier come one after the other.",
        ],
        fragment: "grid_barrier",
        takes: &[
            GRID,
            STATUS,
            same("groups"),
            Argument { name: "thread", ty: Type::U32, doc: "index of this thread in its group" },
            THREADS,
            BARRIER,
        ],
        with: &[("ABORTED", "status")],
        gives: &[AGREED_BY_ALL],
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
