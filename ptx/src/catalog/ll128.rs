//! LL128 lines of a memory channel.

use super::row::{Arg, Entry, Kernel, Launch, arg};

const CHANNEL: Arg = arg("channel", "MemoryChannelHandle");

pub(super) const ROWS: &[Kernel] = &[Kernel {
    name: "ll128",
    file: "ll128.ptx",
    doc: "put and unpack of LL128 lines, over NVLink or within a GPU",
    min_sm: 70,
    min_ptx: 60,
    params: &[],
    entries: &[
        Entry {
            symbol: "aqueduct_channel_put_packets_ll128",
            args: &[
                CHANNEL,
                arg("dst_offset", "u64"),
                arg("src_offset", "u64"),
                arg("bytes", "u64"),
                arg("flag", "u32"),
            ],
            launch: Launch::AnyGrid,
            doc: "src + src_offset becomes lines at dst + dst_offset",
        },
        Entry {
            symbol: "aqueduct_channel_unpack_packets_ll128",
            args: &[
                CHANNEL,
                arg("packet_offset", "u64"),
                arg("dst_offset", "u64"),
                arg("bytes", "u64"),
                arg("flag", "u32"),
            ],
            launch: Launch::AnyGrid,
            doc: "lines at packets + packet_offset become data at src + dst_offset",
        },
    ],
}];
