//! Copies and packets between addresses, without a channel.

use super::common::{ABORT, THREAD, THREADS, WAITED, WARPS};
use crate::forms::operation::{Argument, Operation, Type, same};

const DST: Argument = Argument { name: "dst", ty: Type::Address, doc: "where to" };
const SRC: Argument = Argument { name: "src", ty: Type::Address, doc: "where from" };
const PACKETS: Argument = Argument {
    name: "packets",
    ty: Type::Address,
    doc: "the packets, aligned to 8 (LL8), 16 (LL16) or 128 (LL128)",
};

pub(super) static ALL: &[Operation] = &[
    Operation {
        name: "copy",
        does: &["Copies bytes, whatever the alignment of either end; the ranges must not overlap."],
        fragment: "copy",
        takes: &[DST, SRC, same("bytes"), THREAD, THREADS],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "copy_aligned",
        does: &[
            "Copies bytes where both addresses and bytes are multiples of 16, which nothing checks; the ranges must not",
            "overlap.",
        ],
        fragment: "copy_aligned",
        takes: &[DST, SRC, same("bytes"), THREAD, THREADS],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "put_packets",
        does: &["Writes bytes of data as packets."],
        fragment: "put_packets",
        takes: &[PACKETS, SRC, same("bytes"), THREAD, THREADS, same("flag")],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "put_packets_ll128",
        does: &[
            "Writes bytes of data as LL128 lines. Only over NVLink, or to the same GPU: over PCIe a line may split.",
        ],
        fragment: "ll128_put",
        takes: &[PACKETS, SRC, same("bytes"), THREAD, WARPS, same("flag")],
        with: &[],
        gives: &[],
    },
    Operation {
        name: "unpack_packets",
        does: &["Waits for packets with this flag and writes their bytes of data."],
        fragment: "unpack_packets",
        takes: &[PACKETS, DST, same("bytes"), THREAD, THREADS, same("flag"), ABORT],
        with: &[],
        gives: &[WAITED],
    },
    Operation {
        name: "unpack_packets_ll128",
        does: &["Waits for LL128 lines with this flag and writes their bytes of data."],
        fragment: "ll128_unpack",
        takes: &[PACKETS, DST, same("bytes"), THREAD, WARPS, same("flag"), ABORT],
        with: &[],
        gives: &[WAITED],
    },
];
