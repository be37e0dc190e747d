//! Collectives written by hand.

use super::row::{Arg, Entry, Kernel, Launch, Param, arg};

/// Element type, operation, and number of ranks (0: any number, by loops instead of unrolled code).
const REDUCTION: &[Param] = &[
    Param { name: "TYPE", values: &["f32", "f16", "bf16", "i32"] },
    Param { name: "OP", values: &["sum", "min", "max"] },
    Param { name: "RANKS", values: &["0", "2", "4", "8"] },
];

const REGION: Arg = arg("region", "ScratchRegion");

pub(super) const ROWS: &[Kernel] = &[
    Kernel {
        name: "all_reduce_ll16",
        file: "all_reduce_ll16.ptx",
        doc: "one-shot all-reduce of small buffers through LL16 packets",
        min_sm: 70,
        min_ptx: 60,
        params: REDUCTION,
        entries: &[Entry {
            symbol: "aqueduct_all_reduce_ll16_${TYPE}_${OP}_n${RANKS}",
            args: &[REGION, arg("input", "u64"), arg("output", "u64"), arg("count", "u64")],
            launch: Launch::AnyGrid,
            doc: "output = input of all ranks, reduced in rank order; count elements, 0 included",
        }],
    },
    Kernel {
        name: "all_reduce_hb",
        file: "all_reduce_hb.ptx",
        doc: "two-shot all-reduce of large buffers: push to the owner, reduce, push back",
        min_sm: 70,
        min_ptx: 60,
        params: REDUCTION,
        entries: &[Entry {
            symbol: "aqueduct_all_reduce_hb_${TYPE}_${OP}_n${RANKS}",
            args: &[
                REGION,
                arg("input", "u64"),
                arg("output", "u64"),
                arg("count", "u64"),
                arg("slot_bytes", "u32"),
                arg("slice_bytes", "u32"),
            ],
            launch: Launch::Cooperative,
            doc: "output = input of all ranks, reduced in rank order, by tiles of ranks * slice_bytes",
        }],
    },
];
